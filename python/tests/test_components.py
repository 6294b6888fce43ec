"""Components of every kind: their calls, their states, and their errors."""

import json
import os
import signal
import subprocess
import sys
import threading

import capo_rl
import numpy as np
import pytest

from conftest import TARGET, batches, changed, layer, mask_of, small


def test_states_continue_bit_for_bit():
    files = batches("paper-token-adam")
    whole = mask_of("paper-token-adam")
    results, states = [], []
    for path in files:
        batch = capo_rl.load_batch(path)
        token_mask, records = whole(batch)
        whole.step_end(batch, token_mask, True)
        results.append((token_mask, records))
        states.append(whole.state_dict())
    resumed = mask_of("paper-token-adam")
    resumed.load_state_dict(states[1])
    for path, (token_mask, records), state in zip(files[2:], results[2:], states[2:], strict=True):
        batch = capo_rl.load_batch(path)
        again, reports = resumed(batch)
        resumed.step_end(batch, again, True)
        assert np.array_equal(again, token_mask)
        assert reports["capo.curvature/m_f"].tobytes() == records["capo.curvature/m_f"].tobytes()
        assert resumed.state_dict() == state
    assert states[0] != states[1], "the state moves"


def test_refuses_the_state_of_another_component(tmp_path):
    mask = mask_of("paper-token-adam")
    with pytest.raises(ValueError, match="this is the state of `other` \\(it must be that of `capo.curvature`\\)"):
        mask.load_state_dict({"component": "other", "state": b""})
    with pytest.raises(capo_rl.CapoError, match="component `capo.curvature`: "):
        mask.load_state_dict({"component": "capo.curvature", "state": b"no state"})
    with pytest.raises(ValueError, match="`state` has no `component` \\(give the dict that `state_dict` gave\\)"):
        mask.load_state_dict({})
    with pytest.raises(ValueError, match="`state` has no `state`"):
        mask.load_state_dict({"component": "capo.curvature"})
    with pytest.raises(TypeError, match="`state` is of type `bytes` \\(give the dict"):
        mask.load_state_dict(b"x")
    with pytest.raises(TypeError, match="`state\\['state'\\]` is of type `str` \\(it must be bytes"):
        mask.load_state_dict({"component": "capo.curvature", "state": "x"})


def test_torch_checkpoints_save_states(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    mask, batch = mask_of("paper-token-adam"), capo_rl.load_batch(batches("paper-token-adam")[0])
    token_mask, _ = mask(batch)
    mask.step_end(batch, token_mask, True)
    torch.save({"mask": mask.state_dict()}, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert loaded["mask"] == mask.state_dict()


def test_tokens_dropped_by_earlier_masks_stay_dropped():
    mask = capo_rl.Mask("capo.curvature", optimizer="sgd", fisher_threshold=1e9, hessian_threshold=1e9)
    batch = small(**layer())
    before = np.array([[0, 1, 1], [1, 0, 0]], np.int64)
    token_mask, _ = mask(batch, before)
    assert token_mask.tolist() == before.tolist() and token_mask.dtype == np.uint8
    with pytest.raises(ValueError, match="`token_mask` is 1 at completion 1, token 2, which is padding"):
        mask(batch, np.ones((2, 3), bool))
    with pytest.raises(ValueError, match="`token_mask` has shape \\[3\\] \\(it must be \\[2, 3\\], as the batch is\\)"):
        mask.step_end(batch, np.ones(3, np.uint8), True)


def test_calls_a_weight():
    weight = capo_rl.Weight("capo.curvature-weight", optimizer="sgd", fisher_threshold=1e-4)
    batch = small(**layer())
    weights, records = weight(batch)
    assert weights.dtype == np.float32 and weights.shape == (2, 3) and weights[1, 2] == 0
    assert ((weights > 0) & (weights < 1)).any(), weights
    assert weight.step_end(batch, weights, True) == {} or records


def test_computes_advantages_and_losses():
    batch = small(advantages=None)
    advantages, _ = capo_rl.Advantage("capo.advantage")(batch)
    assert advantages[0, 0] > 0 > advantages[1, 0] and advantages[1, 2] == 0
    objective = capo_rl.Objective("capo.objective")
    batch = batch.replace(advantages=advantages, old_logps=batch.logps)
    losses, slopes, _ = objective(batch)
    assert objective.reduction == "completion_mean"
    assert np.array_equal(slopes, -advantages), "on policy the slope is the advantage"
    assert np.array_equal(losses, -advantages)


def test_a_reward_scores_text():
    library = TARGET / "debug/librewarding.so"
    if not library.exists():
        pytest.skip(f"there is no `{library}` (cargo build --workspace)")
    offered = [component for component in capo_rl.Plugins(library).describe()["components"] if component["point"] == "reward"]
    reward = capo_rl.Reward(offered[0]["id"], plugin=library)
    rewards, _ = reward(["1+1=", "1+2="], ["2", "4"], answers=["2", "3"], columns=[{"a": 1}, {"a": 2}])
    assert rewards.shape == (2,) and rewards.dtype == np.float32
    with pytest.raises(ValueError, match="`prompts` has 1 entries \\(it must be 2, as `completions` is\\)"):
        reward(["1+1="], ["2", "4"])


def test_names_missing_inputs():
    mask = mask_of("paper-token-sgd")
    assert mask.inputs == {"LAST_LAYER"}
    with pytest.raises(ValueError, match="component `capo.curvature` asks for LAST_LAYER, which the batch does not hold \\(give `last_layer` to `Batch`\\)"):
        mask(small())
    with pytest.raises(ValueError, match="component `capo.curvature` needs to know the optimizer"):
        mask(small(**layer(), optimizer=None))


def test_traits_of_components():
    assert "TOKEN_WISE" in capo_rl.Mask("capo.curvature").traits
    assert "TOKEN_WISE" not in capo_rl.Mask("capo.curvature", granularity="completion").traits
    assert "TOKEN_WISE" not in capo_rl.Mask("capo.curvature", assign="random").traits
    assert capo_rl.Mask("masks.mis").traits == {"NO_OPTIMIZER"}
    assert capo_rl.Mask("masks.mis", level="token").traits == {"TOKEN_WISE", "SUMS_RANKS", "NO_OPTIMIZER"}
    assert "TOKEN_WISE" in capo_rl.Mask("capo.curvature", target_rejection_rate=0.02).traits
    assert "TOKEN_WISE" in capo_rl.Weight("capo.curvature-weight", fisher_threshold="auto").traits
    assert capo_rl.Weight("masks.tis", rollout_is_batch_normalize=True).traits == {"NO_OPTIMIZER"}
    assert "NO_OPTIMIZER" not in capo_rl.Mask("capo.curvature").traits


def test_traits_without_optimizer():
    batch = small(old_logps=np.array([[-0.5, -1.5, -8.0], [-4.0, -9.0, 0.0]], np.float32), optimizer=None)
    for component in (capo_rl.Mask("masks.ratio-range", low=0.5, high=2.0), capo_rl.Weight("masks.low-probability")):
        given, _ = component(batch)
        component.step_end(batch, given, True)


def test_a_mask_reads_the_samplers_settings():
    mask = capo_rl.Mask("masks.ratio-range", policies="trainer/sampler", low=0.5, high=2.0)
    assert mask.inputs == {"ROLLOUT_CONTEXT"}
    with pytest.raises(ValueError, match="asks for ROLLOUT_CONTEXT, which the batch does not hold \\(give `rollout_context` to `Batch`\\)"):
        mask(small())
    drawn = np.array([[-0.5, -1.5, -8.5], [-4.0, -8.8, 0.0]], np.float32)
    token_mask, _ = mask(small(sampler_logps=drawn))
    assert token_mask.tolist() == [[1, 1, 1], [0, 1, 0]]


def test_help_shows_the_keys():
    text = capo_rl.Mask("masks.icepop").__doc__
    assert text.startswith("Drops tokens on which trainer and sampler disagree.\n\nKeys:\n")
    assert "  alpha = 0.5  # Smallest ratio that is kept. [0 or more]\n" in text
    assert "[trainer/sampler, trainer/old, old/sampler]" in text


def test_refuses_unknown_ids_and_keys():
    with pytest.raises(capo_rl.CapoError, match="names `capo.curvatur`, which no loaded plugin offers \\(did you mean `capo.curvature`\\?\\)"):
        capo_rl.Mask("capo.curvatur")
    with pytest.raises(capo_rl.CapoError, match="unknown key `fisher` \\(did you mean `fisher_threshold`\\?\\)"):
        capo_rl.Mask("capo.curvature", fisher=1.0)
    with pytest.raises(TypeError, match="the keys of `capo.curvature` are no table of TOML: "):
        capo_rl.Mask("capo.curvature", fisher_threshold=object())
    with pytest.raises(capo_rl.CapoError, match="plugin `libmissing.so` was not found; tried `./libmissing.so`"):
        capo_rl.Mask("a.b", plugin="libmissing.so")


def test_finds_plugins_and_opens_each_once():
    by_name, by_path = capo_rl.Plugins("libcapo.so"), capo_rl.Plugins(capo_rl.__path__[0] + "/plugins/libcapo.so")
    assert by_name.pins() == by_path.pins() and by_name.pins()[0].split("@sha256:")[0].endswith("capo_rl/plugins/libcapo.so")
    before = mapped()
    for plugin in (by_name, by_path, "libcapo.so", ["libcapo.so"]):
        capo_rl.Mask("capo.curvature", plugin=plugin)
    assert mapped() == before
    packages = {component["package"] for component in capo_rl.Plugins().describe()["components"]}
    assert packages == {"capo", "capo-rewards", "drcapo", "governor", "masks", "reincapo"}


def mapped() -> int:
    """Number of plugin libraries that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return len({line.split()[-1] for line in maps if "memfd:lib" in line})


def test_runs_a_mask_from_new_plugin(third_party):
    mask = capo_rl.Mask("third.mask", plugin=third_party, max_nats=5.0)
    assert mask.inputs == frozenset() and repr(mask) == "Mask('third.mask', max_nats=5.0)"
    token_mask, records = mask(small())
    assert token_mask.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert records["third.mask/surprise"].tolist() == [[0.5, 1, 8], [2, 9, 0]]


def test_python_runs_while_a_mask_works(third_party, tmp_path):
    mask = capo_rl.Mask("third.waits", plugin=third_party, folder=str(tmp_path))
    results = []
    thread = threading.Thread(target=lambda: results.append(mask(small())))
    thread.start()
    # If the call held Python's lock, this line would not run before the file exists.
    while not (tmp_path / "started").exists():
        os.sched_yield()
    assert not results
    (tmp_path / "go").touch()
    thread.join()
    assert results[0][0].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_survives_a_fork_during_a_call(third_party, tmp_path):
    mask, idle = (capo_rl.Mask("third.waits", plugin=third_party, folder=str(tmp_path)) for _ in range(2))
    curvature, batch = mask_of("paper-token-adam"), capo_rl.load_batch(batches("paper-token-adam")[0])
    curvature(batch)
    thread = threading.Thread(target=lambda: mask(small()))
    thread.start()
    while not (tmp_path / "started").exists():
        os.sched_yield()
    answers, say = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        told = []
        for call in (lambda: mask(small()), mask.state_dict, lambda: idle.state_dict() and "well", lambda: curvature(batch) and "well"):
            try:
                told.append(call())
            except capo_rl.CapoError as error:
                told.append(str(error))
        os.write(say, json.dumps(told).encode())
        os._exit(0)
    (tmp_path / "go").touch()
    thread.join()
    os.close(say)
    with os.fdopen(answers) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "it did not hang"
    told = json.loads(told)
    sentence = "component `third.waits` was in a call of another thread when this process was forked, which never ends here "
    assert all(one.startswith(sentence) for one in told[:2]) and told[2:] == ["well", "well"], told


def test_the_command_line(tmp_path):
    def run(*arguments, **settings):
        command = [sys.executable, "-m", "capo_rl", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, **settings)

    listed = run("plugins", "--plugin", "libcapo.so")
    assert listed.returncode == 0 and "capo.curvature" in listed.stdout and "recipe" in listed.stdout
    described = json.loads(run("plugins", "--json").stdout)
    assert described["capo_rl"] and {"drcapo.curvature", "governor.kl"} <= {one["id"] for one in described["components"]}
    replayed = run("replay", "--plugin", "libcapo.so", "--out", tmp_path / "out", *batches("paper-token-sgd"))
    assert replayed.stdout.count("rejected") == 4 and len(list((tmp_path / "out").iterdir())) == 4
    refused = run("replay", "--plugin", "libcapo.so", "--out", tmp_path / "out", tmp_path / "missing")
    assert refused.returncode == 2 and refused.stderr.startswith("error: cannot read ")
    unchecked = run("check", "libcapo.so", env={**os.environ, "PATH": str(tmp_path)})
    assert unchecked.returncode == 2 and "no `host` of capo was found on `PATH`" in unchecked.stderr


def test_a_reader_may_stop_early():
    reader, writer = os.pipe()
    os.close(reader)
    listed = subprocess.run([sys.executable, "-m", "capo_rl", "plugins"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (listed.returncode, listed.stderr) == (0, b"")


def test_check_runs_host(host, tmp_path):
    path = f"{host.parent}{os.pathsep}{os.environ['PATH']}"
    checked = subprocess.run(
        [sys.executable, "-m", "capo_rl", "check", "--list"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = subprocess.run([host, "check", "--list"], capture_output=True, text=True, check=True)
    assert checked.stdout == listed.stdout


def test_reads_the_samplers_most_likely_tokens():
    logits = np.array([[[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]], np.float32)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.array([[[0, 1, 2], [0, 1, 2]]], np.int32)
    # At the first token the sampler agrees with the trainer; at the second it was sure of another token.
    sampler = np.stack([logps[:, 0, :2], np.log([[0.05, 0.9]])], 1).astype(np.float32)
    context = capo_rl.RolloutContext(
        sampler_logps=np.array([[logps[0, 0, 0] - 0.01, np.log(0.05)]]), sampler_topk_ids=np.array([[[0, 1], [0, 1]]]), sampler_topk_logps=sampler
    )
    last_layer = capo_rl.LastLayer(
        hidden=np.zeros((1, 2, 1), np.float32),
        topk_ids=ids,
        topk_logits=logits,
        logsumexp=np.log(np.exp(logits).sum(-1)),
        action_logits=logits[..., 0],
        vocab_size=3,
    )
    batch = capo_rl.Batch(
        np.array([[0, 0]]),
        np.ones((1, 2), bool),
        logps[..., 0],
        np.ones(1, np.float32),
        rollout_context=context,
        last_layer=last_layer,
        optimizer=capo_rl.Optimizer("adamw", 1e-6),
    )
    assert "SAMPLER_TOP_K" in batch.inputs
    token_mask, _ = capo_rl.Mask("masks.dppo-topk-tv", clip_ratio=0.2)(batch)
    assert token_mask.tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="asks for SAMPLER_TOP_K, which the batch does not hold"):
        capo_rl.Mask("masks.dppo-topk-tv")(changed(batch, sampler_topk_ids=None, sampler_topk_logps=None))


def test_reports_that_a_trainer_logs():
    from capo_rl._metrics import named

    records = {"a.mask/m_f": np.array([[1.0, 3.0, 99.0]]), "a.mask/rows": 2, "a.mask/threshold": 0.5, "step_control/applied": 1.0}
    tokens = np.array([[1, 1, 0]])
    assert capo_rl.metrics(records, tokens) == {"a.mask/m_f/mean": 2.0, "a.mask/threshold": 0.5, "step_control/applied": 1.0}
    assert capo_rl.metrics(records, tokens, "all") == capo_rl.metrics(records, tokens) | {"a.mask/m_f/max": 3.0, "a.mask/rows": 2.0}
    for without in (None, 0 * tokens):
        assert "a.mask/m_f/mean" not in capo_rl.metrics(records, without, "all"), "a mean of nothing is none"
    with pytest.raises(ValueError, match='component_metrics is \'few\' \\(use "main" or "all"\\)'):
        capo_rl.metrics(records, tokens, "few")
    assert [name for name, _ in named([capo_rl.Mask("masks.mis"), capo_rl.Mask("masks.truncated"), capo_rl.Mask("masks.mis")])] == [
        "masks.mis",
        "masks.truncated",
        "masks.mis#2",
    ]


class Measure:
    """A step with known measurements. `fails` is raised in place of a measurement."""

    def __init__(self, kl=4e-4, fisher=1e-4, fails=None):
        self.kl, self.estimate, self.fails, self.asked = kl, fisher, fails, []

    def norms(self):
        return [1.0, 2.0]

    def fisher(self):
        return self.estimate

    def last_layer_kl(self):
        return 0.0

    def measure_kl(self, fraction, share):
        self.asked.append(fraction)
        if self.fails is not None:
            raise self.fails
        return self.kl


GROUPS, WEIGHTS = {"embedding": 3, "last_layer": 4}, np.ones((2, 3), np.float32)


def test_a_step_control_returns_the_share_of_a_step():
    control, measure = capo_rl.StepControl("governor.kl", target=1e-4, fraction=0.25), Measure()
    assert control(small(optimizer=None), WEIGHTS, GROUPS, measure) == ([0.5, 0.5], {"governor.kl/kl": 4e-4, "governor.kl/scale": 0.5})
    assert measure.asked == [0.25] and not control.restores_moments and control.inputs == frozenset()
    assert capo_rl.StepControl("governor.last-layer").inputs == {"LAST_LAYER"}


def test_states_of_step_controls_continue_bit_for_bit():
    first, again = (capo_rl.StepControl("governor.kl", target=1e-4, every=2) for _ in range(2))
    assert first.state_dict()["state"] == b"governor.kl/1 none"
    first(small(step=0), WEIGHTS, GROUPS, Measure())
    again.load_state_dict(first.state_dict())
    assert first(small(step=1), WEIGHTS, GROUPS, Measure(fisher=3e-4)) == again(small(step=1), WEIGHTS, GROUPS, Measure(fisher=3e-4))
    assert first.state_dict() == again.state_dict() and first.state_dict()["state"] != b"governor.kl/1 none"


def test_refuses_wrong_step_controls():
    control = capo_rl.StepControl("governor.kl", target=1e-4)
    with pytest.raises(capo_rl.CapoError, match="`measure.measure_kl` raised RuntimeError: no graph") as error:
        control(small(), WEIGHTS, GROUPS, Measure(fails=RuntimeError("no graph")))
    assert isinstance(error.value.__cause__, RuntimeError)
    with pytest.raises(KeyboardInterrupt):
        control(small(), WEIGHTS, GROUPS, Measure(fails=KeyboardInterrupt()))
    with pytest.raises(
        TypeError, match="`measure` is of type `int`, which has no `norms` \\(it must have `norms`, `fisher`, `last_layer_kl` and `measure_kl`\\)"
    ):
        control(small(), WEIGHTS, GROUPS, 3)
    with pytest.raises(ValueError, match="`weights` has shape \\[1, 3\\] \\(it must be \\[2, 3\\], as the batch is\\)"):
        control(small(), WEIGHTS[:1], GROUPS, Measure())
    with pytest.raises(ValueError, match="asks for LAST_LAYER, which the batch does not hold"):
        capo_rl.StepControl("governor.last-layer")(small(), WEIGHTS, GROUPS, Measure())
    with pytest.raises(ValueError, match="component `governor.last-layer` needs to know the optimizer"):
        capo_rl.StepControl("governor.last-layer")(small(**layer(), optimizer=None), WEIGHTS, GROUPS, Measure())
    with pytest.raises(capo_rl.CapoError, match="is offered at the step control point"):
        capo_rl.Mask("governor.kl")
    # The last layer's part alone is smaller than the target, so the whole step is applied.
    both = np.zeros((2, 3), np.float32)
    batch = small(**layer(), losses=both, dloss_dlogp=np.array([[-1, -1, -1], [1, 1, 0]], np.float32))
    scales, records = capo_rl.StepControl("governor.last-layer", target=1e9)(batch, WEIGHTS, GROUPS, Measure())
    assert scales == [1.0, 1.0] and records["governor.last-layer/predicted_kl"] > 0
