"""Masks in verl's own workers on CPUs: equal decisions for every split of the batch over micro-batches and ranks; states; error messages.

verl has no platform without accelerators. `verl_cpu.py` adds one through verl's registry of platforms. Everything else is the installed verl.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import capo_rl
import pytest

from conftest import MISBEHAVE, NOT_FINITE, WEIGHTS, replayed_weights
from verl_runs import ACTOR, AHEAD, CASES, DYNAMIC, MODEL, PACKED, TINY, difference, in_one, kept, launch, rates, saved, torch

RECIPE = Path(__file__).parents[1] / "examples/verl/qwen2.5-7b-gsm8k.sh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def whole(folder):
    return launch(folder, "whole", AHEAD)


MORE = ("holes", "holes=1", "steps=3", AHEAD, "--", "state", "masks=state", "steps=3", AHEAD, "--", "half", "dtype=bf16", "steps=2", AHEAD)


@pytest.fixture(scope="module")
def ranks(folder):
    """The runs on two ranks, and those of `MORE`."""
    return launch(folder, "ranks", AHEAD, "--", *[word if "=" in word or word == "--" else f"ranks-{word}" for word in MORE], ranks=2)


def test_rejects_some_tokens_and_records_why(whole):
    assert whole["engine"] == "CapoEngine"
    assert [size for _, size in whole["seen"]] == [4] * 4, "whole groups, next to each other"
    assert len(rates(whole)) == 4 and all(0 < rate < 1 for rate in rates(whole)), rates(whole)
    assert "capo/capo.curvature/m_f_p99" in whole["numbers"][0]
    assert len(whole["states"][0]) > 1000, "the mask keeps Adam's moments of its own"


def test_logs_a_few_metrics_of_each_component_by_default(folder, whole):
    launch(folder, "few-ahead", AHEAD, "steps=1", "metrics=", "controls=half", "--", "few-inflight", "mode=inflight", "steps=1", "metrics=", "controls=half")
    names = {"capo.curvature/rejection_rate", "capo.curvature/m_f/mean", "capo.curvature/kl/mean", "governor.kl/kl", "governor.kl/applied"}
    for name in ("few-ahead", "few-inflight"):
        told = saved(folder, name)["numbers"][0]
        assert {metric for metric in told if metric.startswith(("capo/capo.", "capo/governor."))} == {f"capo/{metric}" for metric in names}
    assert whole["numbers"][0]["capo/capo.curvature/rejection_rate"] == pytest.approx(whole["numbers"][0]["capo/rejection_rate"])


def same(whole, first, second):
    assert first["seen"] == second["seen"] == whole["seen"], "the same rows in the same order"
    assert rates(first) == rates(whole) and kept(first, second) == kept(whole)
    assert difference(first, whole) < 1e-5
    assert first["states"] == second["states"], "bit for bit"
    assert difference(first, second) == 0


def test_truncated_responses_lack_an_end_token():
    """The third response has an end inside, as between two turns. The fourth has no token."""
    from capo_rl.verl._rows import Rows

    responses = [torch.tensor(row, dtype=torch.int64) for row in ([6, 1], [6, 5], [1, 6, 6], [])]
    data = {"input_ids": [torch.cat([torch.tensor([4, 4]), row]) for row in responses], "responses": responses}
    rows = Rows({name: torch.nested.as_nested_tensor(value, layout=torch.jagged) for name, value in data.items()})
    assert rows.truncated([1, 5]).tolist() == [0, 0, 1, 1] and rows.truncated([]).tolist() == [0] * 4


def test_two_ranks_decide_the_same(whole, ranks):
    same(whole, *ranks)


def test_two_ranks_with_tools_optimizer_state_and_half_precision(folder, ranks):
    launch(folder, *MORE)
    for name in ("holes", "state"):
        same(saved(folder, name), saved(folder, f"ranks-{name}", 0), saved(folder, f"ranks-{name}", 1))
    first, second = (saved(folder, "ranks-half", rank) for rank in range(2))
    assert first["states"] == second["states"] and difference(first, second) == 0
    assert all(0 < rate < 1 for rate in rates(first))


def test_masks_see_the_optimizers_state_if_fsdp2_keeps_weights_gathered(folder):
    words, gathered = ("masks=state", "steps=3"), ("infer=1", f"{ACTOR}.fsdp_config.reshard_after_forward=false")
    launch(folder, *in_one({"in-pieces": words, "gathered": (*words, *gathered), "gathered-ahead": (*words, *gathered, AHEAD)}))
    for name in ("gathered", "gathered-ahead"):
        assert kept(saved(folder, name)) == kept(saved(folder, "in-pieces")), name


def test_two_ranks_under_fsdp1(folder, whole):
    launch(folder, "fsdp1", AHEAD, "strategy=fsdp", "--", "fsdp1-inflight", "strategy=fsdp", "mode=inflight", ranks=2)
    same(whole, saved(folder, "fsdp1", 0), saved(folder, "fsdp1", 1))
    first, second = (saved(folder, "fsdp1-inflight", rank) for rank in range(2))
    assert kept(first, second) == kept(whole) and difference(first, whole) < 1e-5 and first["states"] == second["states"]


def test_two_workers_of_ray(folder, whole):
    launch(folder, "ray", "ray=2", AHEAD)
    same(whole, saved(folder, "ray", 0), saved(folder, "ray", 1))


def test_split_padded_and_packed_micro_batches_decide_the_same(folder, whole):
    fused = f"{MODEL}.use_fused_kernels=true"
    ways = {"split": ("micro=2", "layout=padded"), "packed": (*PACKED, *DYNAMIC), "fused": ("strategy=fsdp", fused, *PACKED)}
    ways = {f"{name}-{mode}": (*words, f"mode={mode}") for name, words in ways.items() for mode in ("ahead", "inflight")}
    launch(folder, *in_one(ways))
    for name in ways:
        other = saved(folder, name)
        assert rates(other) == rates(whole) and kept(other) == kept(whole), name
        assert difference(other, whole) < 1e-5, name


def test_dropping_tokens_equals_removing_them_by_hand(folder):
    lines = ["from capo_rl.verl import register_objective", "register_objective('capo.objective', epsilon=0.2, reduction='token_mean')"]
    (folder / "my_losses.py").write_text("\n".join(lines))
    words = []
    for name, (fields, *options) in CASES.items():
        setting = [option for option in options if option.startswith(("set=", "entropy")) and "capo" not in option]
        words += [name, AHEAD, "steps=2", *options, "--", f"{name}-inflight", "mode=inflight", "steps=2", *options, "--"]
        words += [f"{name}-by-hand", "steps=2", "masks=none", f"reference={name}.0", f"reference_fields={fields}", *setting, "--"]
    launch(folder, *words[:-1])
    for name in CASES:
        masked, by_hand = saved(folder, name), saved(folder, f"{name}-by-hand")
        assert name == "weights" or all(0 < rate < 1 for rate in rates(masked)), name
        # Adam magnifies the rounding of small gradients, to 2e-6 on one processor. Wrong rules differ by more, see below.
        assert difference(masked, by_hand) < 5e-6 and difference(saved(folder, f"{name}-inflight"), by_hand) < 1e-5, name
        assert any((rows > 0).logical_and(rows < 1).any() for rows in masked["token_weights"]) == (name == "weights")
    assert difference(saved(folder, "token-mean-kept"), saved(folder, "token-mean-original")) > 1e-5
    assert difference(saved(folder, "token-mean-kept"), saved(folder, "kl-and-entropy")) > 1e-4
    assert difference(saved(folder, "seq-mean-kept"), saved(folder, "seq-mean-original")) > 1e-5


def test_components_see_verls_corrected_advantages(folder):
    launch(folder, *in_one({f"corrected-{way}": ("steps=2", f"corrected={way}") for way in ("verl", "by-hand")}))
    one, other = (saved(folder, f"corrected-{way}") for way in ("verl", "by-hand"))
    assert rates(one) == rates(other) and all(0 < rate < 1 for rate in rates(one)) and difference(one, other) < 1e-6


def test_a_step_without_kept_tokens_changes_nothing(folder):
    launch(folder, "all", "masks=all", "steps=1", "--", "all-four", "masks=all")
    one, four = saved(folder, "all"), saved(folder, "all-four")
    assert difference(one, four) == 0 and rates(four) == [1.0] * 4
    assert all(line["capo/skipped"] == [1.0] and line["grad_norm"] == [0.0] for line in four["numbers"])


def test_several_masks_mini_batches_epochs_adapters_and_tied_weights(folder):
    more = ["several", "masks=several", "steps=2", "--", "mini", "mini=2", "epochs=2", "micro=2", "steps=2"]
    lora = ["lora", "steps=2", f"{MODEL}.lora_rank=4", f"{MODEL}.target_modules=[q_proj,v_proj]", "--", "tied", "tied=1", "steps=2"]
    launch(folder, *more, "--", *lora)
    several = saved(folder, "several")
    assert all(rate > 0.15 for rate in rates(several)), "a fifth goes by entropy alone"
    assert "capo/masks.entropy-quantile/limit_nats" in several["numbers"][0] and len(several["states"]) == 3
    assert [len(line["capo/rejection_rate"]) for line in saved(folder, "mini")["numbers"]] == [4, 4], "two mini-batches, twice"
    for name in ("lora", "tied"):
        assert all(0 < rate < 1 for rate in rates(saved(folder, name))), name


def refused(folder, *words):
    ended = subprocess.run([sys.executable, str(TINY), "refused", *words], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode != 0
    return ended.stderr


def test_refuses_checkpoints_of_other_masks_and_missing_fields(folder):
    launch(folder, "plain", "masks=none", "steps=1", "save=1", "--", "other", "masks=several", "steps=1", "save=1")
    assert "is missing: this checkpoint was made without components" in refused(folder, f"resume={folder / 'plain-1'}")
    assert "(give it the same masks, weights and step controls)" in refused(folder, f"resume={folder / 'other-1'}")
    # icepop reads the sampler's log-probabilities.
    said = refused(folder, "masks=several", "without=rollout_log_probs")
    assert "(set actor_rollout_ref.rollout.calculate_log_probs=true)" in said


@pytest.fixture(scope="module")
def in_verl():
    """verl and this package's module for it, in this process."""
    import capo_rl.verl

    import verl_cpu  # noqa: F401

    yield capo_rl.verl
    os.environ.pop("VERL_ENGINE_VENDOR", None)


@pytest.mark.parametrize(
    "capo, actor, said",
    [
        (
            {"mask": []},
            {},
            "`capo.mask` is unknown (known: masks, weights, step_controls, mask_denominator, mode, second_moment, last_layer_top_k, component_metrics)",
        ),
        ({"masks": "capo.curvature"}, {}, "`capo.masks` is 'capo.curvature' (it must be a list, such as `[capo.curvature]`)"),
        ({"component_metrics": "some"}, {}, "`capo.component_metrics` is 'some' (use `main`, `all`)"),
        ({"mode": "later"}, {}, "`capo.mode` is 'later' (use `auto`, `ahead`, `inflight`)"),
        ({"second_moment": True}, {}, "`capo.second_moment` is True (use `kept`, `kept_and_rejected`)"),
        (
            {"step_controls": ["governor.kl"]},
            {},
            "step controls cannot tell weights and gradients apart under strategy `fsdp`, which flattens them (set actor.strategy=fsdp2)",
        ),
        ({"step_controls": ["governor.last-layer"]}, {}, "`governor.last-layer` reads losses, which verl does not show (use `governor.kl`)"),
        (
            {"second_moment": "kept_and_rejected"},
            {"strategy": "fsdp2", "optim": SimpleNamespace(optimizer_impl="torchao.optim", optimizer="_AdamW", total_training_steps=1)},
            "second_moment `kept_and_rejected` is for AdamW of torch.optim, and actor.optim is `torchao.optim._AdamW` (leave it at AdamW)",
        ),
        ({"masks": [{"fisher_threshold": 1}]}, {}, "a table of `capo.masks` has no `use` (write `{use: capo.curvature}`)"),
        ({"last_layer_top_k": 0}, {}, "`capo.last_layer_top_k` is 0 (it must be a number of logits, 1 or more)"),
        ({"mask_denominator": "some"}, {}, "`capo.mask_denominator` is 'some' (use `kept` or `original`)"),
        (
            {"mask_denominator": "kept"},
            {"loss_agg_mode": "seq-mean-token-sum-norm"},
            "loss_agg_mode `seq-mean-token-sum-norm` divides by a number that masks do not change (use `capo.mask_denominator=original`)",
        ),
        ({}, {"strategy": "megatron", "megatron": {}}, "actor.strategy is `megatron`, an engine that shows masks no whole step (use `fsdp2` or `fsdp`)"),
        (
            {},
            {"loss_agg_mode": "token-sum"},
            "loss_agg_mode `token-sum` is none that plugins know (known: token-mean, seq-mean-token-mean, seq-mean-token-sum-norm)",
        ),
        ({}, {"ulysses_sequence_parallel_size": 2}, "masks need whole sequences on a rank (set ulysses_sequence_parallel_size to 1)"),
    ],
)
def test_refuses_contradictory_settings(in_verl, capo, actor, said):
    with pytest.raises(ValueError) as error:
        in_verl.CapoActorConfig(rollout_n=4, ppo_micro_batch_size_per_gpu=1, capo={"masks": ["capo.curvature"], **capo}, **actor)
    assert str(error.value) == said


def test_refuses_masks_of_the_whole_step_in_flight(in_verl):
    masks = ["capo.curvature", "masks.entropy-quantile"]
    make = lambda **capo: in_verl.CapoActorConfig(rollout_n=4, ppo_micro_batch_size_per_gpu=1, capo=capo).engine.capo
    with pytest.raises(ValueError) as error:
        settings = make(masks=masks, mode="inflight")
        settings.inflight(settings.components()[0])
    assert str(error.value) == "`masks.entropy-quantile` may need the whole step, which no micro-batch of a rank shows (use `capo.mode=ahead`)"
    decides = lambda **capo: make(**capo).inflight(make(**capo).components()[0])
    assert [decides(masks=masks), decides(masks=masks[:1]), decides(masks=masks[:1], mode="ahead"), decides()] == [False, True, False, True]


def test_verl_accepts_the_recipes_configuration(in_verl, tmp_path):
    import verl
    from hydra import compose, initialize_config_dir
    from verl.utils.config import validate_config

    recorder = tmp_path / "python3"
    recorder.write_text('#!/bin/sh\nshift 2; printf "%s\\n" "$@"\n')
    recorder.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run([RECIPE, "trainer.nnodes=2"], env=path, capture_output=True, text=True, check=True).stdout
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=told.splitlines())
    validate_config(config, use_reference_policy=False, use_critic=False)
    actor = config.actor_rollout_ref.actor
    assert actor._target_ == "capo_rl.verl.CapoActorConfig" and actor.capo.masks[0].use == "capo.curvature" and config.trainer.nnodes == 2


def test_refuses_engines_of_other_vendors(in_verl, monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "metax")
    with pytest.raises(ValueError, match="`VERL_ENGINE_VENDOR` is `metax`, an engine that knows no masks"):
        in_verl.CapoActorConfig(rollout_n=4, ppo_micro_batch_size_per_gpu=1, capo={"masks": ["capo.curvature"]})


def test_adds_advantages_to_verls_estimators(in_verl):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn

    in_verl.register_advantage("drcapo.advantage")
    rewards, mask = torch.zeros(6, 3), torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]] * 2)
    rewards[:, 0] = torch.tensor([1.0, 0.0, 0.5, 0.25, 0.0, 1.0])
    prompts = ["b", "a", "a", "b", "a", "b"]
    given, _ = get_adv_estimator_fn("drcapo.advantage")(token_level_rewards=rewards, response_mask=mask, index=prompts, config=None)
    own, _ = compute_grpo_outcome_advantage(rewards, mask, prompts, norm_adv_by_std_in_grpo=False)
    torch.testing.assert_close(given, own)
    with pytest.raises(ValueError, match="one has 1 and another 5"):
        get_adv_estimator_fn("drcapo.advantage")(token_level_rewards=rewards, response_mask=mask, index=["a"] * 5 + ["b"])


def test_adds_objectives_to_verls_losses(in_verl):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    in_verl.register_objective("capo.objective", epsilon=0.2, reduction="token_mean")
    random = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    old, advantages = -torch.rand(2, 4, generator=random), torch.randn(2, 1, generator=random).expand(2, 4)
    config = in_verl.CapoActorConfig(rollout_n=2, ppo_micro_batch_size_per_gpu=1)
    found = []
    for name in ("vanilla", "capo.objective"):
        logps = (old + torch.linspace(-0.5, 0.5, 8).view(2, 4)).requires_grad_()
        loss, _ = get_policy_loss_fn(name)(old, logps, advantages, mask, loss_agg_mode="token-mean", config=config)
        loss.backward()
        found.append((loss.detach(), logps.grad))
    torch.testing.assert_close(*found)
    assert (found[0][1] == 0).any() and (found[0][1] != 0).any(), "some are clipped"
    with pytest.raises(ValueError, match=r"made for loss_agg_mode `token-mean`, and it is `seq-mean-token-mean` \(set actor.loss_agg_mode=token-mean\)"):
        get_policy_loss_fn("capo.objective")(old, logps, advantages, mask, loss_agg_mode="seq-mean-token-mean", config=config)
    with pytest.raises(ValueError, match="`reincapo.objective` reads REF_LOGPS, which verl keeps from policy losses"):
        in_verl.register_objective("reincapo.objective", beta=0.1)


def test_verl_applies_weights_as_host_does(folder, host):
    """A weight sees the tokens that the weight before it kept."""
    keys = [each | {"policies": "trainer/old"} for each in WEIGHTS]
    weights = ",".join(f"{{use: masks.tis, {', '.join(f'{name}: {value}' for name, value in each.items())}}}" for each in keys)
    run = launch(folder, "left", "masks=none", f"weights={weights}", "steps=2", f"batches={folder / 'left-batch'}", AHEAD)
    dropped = 0
    for step, found in enumerate(kept(run)):
        file = folder / f"left-batch.{step}.safetensors"
        ended, expected = replayed_weights(host, folder, file, keys)
        assert ended.returncode == 0, ended.stderr
        mask = capo_rl.load_batch(file).completion_mask == 1
        assert found == sorted(tuple(row[there].tolist()) for row, there in zip(expected["weights"], mask, strict=True)), step
        dropped += int(mask.sum() - expected["token_mask"].sum())
    assert dropped > 0, "else it shows nothing"


def test_verl_refuses_a_product_that_is_not_finite(folder):
    huge = f"{{use: misbehave.weight, plugin: '{MISBEHAVE}', sin: huge}}"
    words = ("huge", "masks=none", f"weights={huge},{huge}", "steps=1", AHEAD)
    ended = subprocess.run([sys.executable, str(TINY), *words], cwd=folder, env=os.environ, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 1 and f"CapoError: the weights of completion 0, token 0 {NOT_FINITE}" in ended.stderr, ended.stderr[-3000:]
