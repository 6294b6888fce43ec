"""`CapoGRPOTrainer`: equal decisions for every split of the batch over micro-batches and ranks; states; error messages."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

from conftest import GOVERNED, GOVERNED_NUMBERS, GOVERNED_STEPS, PLUGINS, recorded_run  # noqa: E402

TINY = Path(__file__).with_name("tiny_trl.py")


def launch(folder, name, *options, ranks=1):
    """Runs the tiny trainer, and returns what each rank saved."""
    python = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    ended = subprocess.run([*python, str(TINY), name, *options, f"folder={name}-run"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    saved = [torch.load(folder / f"{name}.{rank}", weights_only=False) for rank in range(ranks)]
    for each in saved:
        each["numbers"] = json.loads(each["numbers"])
        each["said"] = ended.stderr
    return saved if ranks > 1 else saved[0]


def refused(folder, *options):
    ended = subprocess.run([sys.executable, str(TINY), "refused", *options], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode != 0
    return ended.stderr.strip().splitlines()[-1]


def difference(one, other):
    return max(float((one["weights"][name] - other["weights"][name]).abs().max()) for name in one["weights"])


def rejected(saved):
    return [line["capo/rejected_tokens"] for line in saved["numbers"] if "capo/rejected_tokens" in line]


def rates(saved):
    return [line["capo/rejection_rate"] for line in saved["numbers"] if "capo/rejection_rate" in line]


def thresholds(saved, mask):
    return [line[f"capo/{mask}/threshold"] for line in saved["numbers"] if f"capo/{mask}/threshold" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trl")


@pytest.fixture(scope="module")
def whole(folder):
    return launch(folder, "whole", "mode=ahead")


def test_rejects_some_tokens_and_records_why(whole):
    assert len(rates(whole)) == 4 and sum(0 < rate < 1 for rate in rates(whole)) >= 2, rates(whole)
    assert "capo/capo.curvature/m_f_p99" in whole["numbers"][0]
    assert [line["capo/skipped"] for line in whole["numbers"] if "capo/skipped" in line] == [0.0] * 4, "a mean over steps tells their share"
    assert len(whole["states"][0]) > 1000, "the mask keeps Adam's moments of its own"


def test_logs_a_few_metrics_of_each_component_by_default(folder, whole):
    of_components = lambda saved: {name for name in saved["numbers"][0] if name.startswith(("capo/capo.curvature", "capo/masks.", "capo/governor."))}
    few = launch(folder, "few", "masks=several", "controls=kl", "mode=ahead", "metrics=main", "steps=1")
    names = {
        "capo.curvature": ("rejection_rate", "m_f/mean", "kl/mean"),
        "masks.entropy-quantile": ("rejection_rate",),
        "masks.icepop": ("rejection_rate",),
        "governor.kl": ("kl", "applied"),
    }
    assert of_components(few) == {f"capo/{component}/{name}" for component, each in names.items() for name in each}
    assert {"capo/rejection_rate", "capo/skipped", "capo/seconds", "capo/step_control/applied"} < set(few["numbers"][0])
    first = whole["numbers"][0]
    assert len(of_components(whole)) > 30 and first["capo/capo.curvature/rejection_rate"] == pytest.approx(first["capo/rejection_rate"])
    assert 0 < first["capo/capo.curvature/m_f/mean"] <= first["capo/capo.curvature/m_f_p99"] <= first["capo/capo.curvature/m_f/max"]
    assert refused(folder, "metrics=some") == 'ValueError: component_metrics is \'some\' (use "main" or "all")'


WAYS = {"split": (1, ["accumulate=2"]), "ranks": (2, []), "ranks-split": (2, ["accumulate=2"]), "fsdp2": (2, ["fsdp=1"])}


@pytest.fixture(scope="module")
def ways(folder):
    """The run of `whole` with every split of the batch, in both modes, by rank."""
    found = {}
    for mode in ("ahead", "inflight"):
        for way, (ranks, options) in WAYS.items():
            saved = launch(folder, f"{mode}-{way}", f"mode={mode}", *options, ranks=ranks)
            found[mode, way] = saved if ranks > 1 else [saved]
    return found


def test_decisions_do_not_depend_on_the_split(ways, whole):
    for way, saved in ways.items():
        for rank in saved:
            assert rejected(rank) == rejected(whole) and difference(rank, whole) < 1e-5, way
            assert rank["states"] == saved[0]["states"], f"{way}: bit for bit on all ranks"
            assert difference(rank, saved[0]) == 0, way


def test_masks_see_the_optimizers_moments_under_fsdp2(folder):
    for mode in ("ahead", "inflight"):
        whole, pieces = (launch(folder, f"host-{mode}-{fsdp}", "masks=host", f"mode={mode}", f"fsdp={fsdp}", ranks=2)[0] for fsdp in (0, 1))
        m_f = [[line["capo/capo.curvature/m_f_p99"] for line in saved["numbers"] if line] for saved in (whole, pieces)]
        assert len(m_f[0]) == 4 and m_f[1] == pytest.approx(m_f[0], rel=1e-4), mode


def test_bits_in_flight_equal_those_ahead(folder, ways, whole):
    inflight = launch(folder, "inflight", "mode=inflight")
    assert difference(inflight, whole) == 0 and inflight["states"] == whole["states"]
    assert difference(ways["inflight", "split"][0], ways["ahead", "split"][0]) == 0


def test_ranks_exchange_sums_in_place_of_rows(folder, ways, whole):
    first, second = launch(folder, "sums", "exchange=sums", "accumulate=2", ranks=2)
    assert rejected(first) == rejected(whole) and difference(first, whole) < 1e-5
    assert first["states"] == second["states"] and difference(first, second) == 0, "bit for bit on both"
    fewer = launch(folder, "fewer", "exchange=auto", "accumulate=2", ranks=2)[0]
    assert difference(fewer, first) == 0, "of a model so small the sums are fewer bytes"
    received = lambda saved: [line["capo/bytes_gathered"] for line in saved["numbers"] if "capo/bytes_gathered" in line]
    assert 0 < max(received(first)) < min(received(ways["inflight", "ranks-split"][0]))


def test_rejected_gradients_enter_the_second_moment(folder, whole):
    remembering = launch(folder, "remembering", "second_moment=kept_and_rejected")
    assert difference(remembering, whole) > 1e-4
    told = remembering["numbers"][1]
    assert 0 < told["capo/second_pass_completions"] < 8 and told["capo/rejected_grad_norm"] > 0
    for name, options, ranks in [
        ("split", ["accumulate=2"], 1),
        ("ranks", ["accumulate=2", "mode=ahead"], 2),
        ("fsdp2", ["accumulate=2", "fsdp=1"], 2),
        ("sums", ["exchange=sums"], 2),
    ]:
        saved = launch(folder, f"remembering-{name}", "second_moment=kept_and_rejected", *options, ranks=ranks)
        one = saved if ranks == 1 else saved[0]
        assert rejected(one) == rejected(remembering) and difference(one, remembering) < 1e-5, name
    plain = launch(folder, "nothing-rejected", "masks=none", "second_moment=kept_and_rejected")
    assert difference(plain, launch(folder, "plain-adamw", "masks=")) == 0, "where nothing is rejected, it is AdamW to the bit"


def test_a_resumed_run_equals_an_uninterrupted_one(folder, whole):
    for name, options, ranks, uninterrupted in [
        ("ahead", ["mode=ahead"], 1, whole),
        ("remembering", ["second_moment=kept_and_rejected"], 1, launch(folder, "uninterrupted", "second_moment=kept_and_rejected")),
        ("two-ranks", [], 2, launch(folder, "uninterrupted-ranks", ranks=2)[0]),
        ("controlled", [*CONTROLLED, "accumulate=2"], 1, launch(folder, "uninterrupted-controlled", *CONTROLLED, "accumulate=2")),
    ]:
        launch(folder, f"cut-{name}", "save=2", "steps=2", *options, ranks=ranks)
        resumed = launch(folder, f"resumed-{name}", f"resume={folder / f'cut-{name}-run/checkpoint-2'}", "save=2", *options, ranks=ranks)
        resumed = resumed if ranks == 1 else resumed[0]
        assert difference(resumed, uninterrupted) == 0 and resumed["states"] == uninterrupted["states"], name


def test_adaptive_thresholds_are_equal_on_all_ranks(folder):
    rate = launch(folder, "rate", "masks=rate", "mode=ahead")
    assert rates(rate)[0] == 0 and all(0.1 < each < 0.6 for each in rates(rate)[1:]), "nothing is known before the first step"
    for name, options, ranks in [
        ("inflight", ["mode=inflight"], 1),
        ("ahead-ranks", ["mode=ahead"], 2),
        ("inflight-ranks", ["mode=inflight"], 2),
        ("inflight-sums", ["mode=inflight", "exchange=sums"], 2),
    ]:
        saved = launch(folder, f"rate-{name}", "masks=rate", *options, ranks=ranks)
        for rank in saved if ranks > 1 else [saved]:
            assert rejected(rank) == rejected(rate) and difference(rank, rate) < 1e-5, name
            for mask in ("capo.curvature", "masks.probability-floor"):
                assert thresholds(rank, mask) == pytest.approx(thresholds(rate, mask), rel=1e-5) and len(thresholds(rate, mask)) == 3, name
            assert ranks == 1 or rank["states"] == saved[0]["states"], f"{name}: bit for bit on all ranks"


def test_several_steps_per_rollout(folder):
    steps = launch(folder, "steps", "per_rollout=2")
    split = launch(folder, "steps-split", "per_rollout=2", "accumulate=2")
    assert len(rates(steps)) == 4 and rates(steps) == rates(split) and difference(steps, split) < 1e-5


def test_several_rollouts_per_step(folder):
    for name, ranks, options in [("grpo", 2, ["controls=kl"]), ("dapo", 1, ["loss=dapo"]), ("remembering", 1, ["second_moment=kept_and_rejected"])]:
        one = launch(folder, f"rollout-{name}", *options, "accumulate=2", "rollouts=1")
        assert sum(0 < rate < 1 for rate in rates(one)) >= 2, name
        two = launch(folder, f"rollouts-{name}", *options, "accumulate=2", "rollouts=2", ranks=ranks)
        for rank in two if ranks > 1 else [two]:
            assert rejected(rank) == rejected(one) and of_control(rank, "scale") == pytest.approx(of_control(one, "scale"), rel=1e-3), name
            # In TRL's dapo each rollout has its own denominator.
            assert name == "dapo" or difference(rank, one) < 1e-5, name
    several = refused(folder, "masks=several", "accumulate=2", "rollouts=2")
    assert several.startswith(
        "ValueError: `masks.entropy-quantile` may decide by the whole step, and its 2 micro-batches are of more than one rollout, of 1 each"
    )
    assert refused(folder, "mode=ahead", "accumulate=2", "rollouts=2").startswith('ValueError: mode="ahead" scores the whole step, and its 2 micro-batches')


def test_several_masks_apply_in_order(folder):
    several = launch(folder, "several", "masks=several")
    assert all(rate > 0.15 for rate in rates(several)), "a fifth goes by entropy alone"
    assert "capo/masks.entropy-quantile/limit_nats" in several["numbers"][0] and len(several["states"]) == 3


def test_a_step_without_kept_tokens_changes_nothing(folder):
    one, four = launch(folder, "all", "masks=all", "steps=1"), launch(folder, "all-four", "masks=all")
    assert difference(one, four) == 0 and rates(four) == [1.0] * 4
    assert all(line["capo/skipped"] == 1.0 for line in four["numbers"] if line)


def test_truncated_completions_are_those_that_trl_counts_as_clipped(folder):
    """The model has two tokens that end a completion, and one completion has such a token inside, as between two turns."""
    told = launch(folder, "ends", "masks=truncated", "ends=several", "steps=1")["numbers"][0]
    assert told["completions/clipped_ratio"] == told["capo/rejection_rate"] == 0.25


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo", "bnpo", "cispo", "sapo"])
def test_losses_and_denominators(folder, loss):
    saved = launch(folder, loss, f"loss={loss}", "steps=2")
    assert all(0 < rate < 1 for rate in rates(saved)), rates(saved)
    if loss == "dapo":
        kept = launch(folder, "dapo-kept", "loss=dapo", "steps=2", "denominator=kept", "lr=1e-3")
        assert rejected(kept) == rejected(saved) and difference(kept, saved) > 0


def test_luspo_is_dr_grpo_times_max_completion_length(folder):
    luspo, fixed = (launch(folder, f"length-{loss}", f"loss={loss}", "steps=1") for loss in ("luspo", "dr_grpo"))
    norm = lambda saved: saved["numbers"][0]["grad_norm"]
    assert 0 < rates(luspo)[0] < 1 and rejected(luspo) == rejected(fixed) and norm(luspo) == pytest.approx(12 * norm(fixed), rel=1e-5)


def test_weights_and_adapters(folder, whole):
    soft = launch(folder, "soft", "masks=", "weights=capo", "lr=1e-2")
    plain = launch(folder, "plain", "masks=", "lr=1e-2")
    assert difference(soft, plain) > 0 and not rates(plain)
    assert all(0 < line["capo/mean_weight"] < 1 for line in soft["numbers"] if "capo/rejection_rate" in line)
    lora = launch(folder, "lora", "lora=1", "steps=2")
    assert len(rates(lora)) == 2


def test_refuses_contradictory_settings(folder, whole):
    assert refused(folder, "loss=dr_grpo", "denominator=kept") == (
        'ValueError: loss_type `dr_grpo` divides by a number that masks do not change (use mask_denominator="original")'
    )
    assert refused(folder, "loss=dapo", "denominator=kept", "mode=inflight").endswith('which no micro-batch shows (use mode="ahead")')
    assert refused(folder, "masks=several", "mode=inflight") == (
        'ValueError: `masks.entropy-quantile` may decide by the whole step, which no micro-batch shows (use mode="ahead")'
    )
    assert refused(folder, "mode=ahead", "exchange=sums") == ('ValueError: masks ahead of a step see all of it, so sums do not do (use exchange="arrays")')
    assert refused(folder, "second_moment=kept_and_rejected", "optim=sgd") == (
        'ValueError: second_moment "kept_and_rejected" is for AdamW, and optim is `sgd` (use "adamw_torch" or "adamw_torch_fused")'
    )
    assert refused(folder, "denominator=some") == 'ValueError: mask_denominator is \'some\' (use "kept" or "original")'
    assert refused(folder, "loss=luspo", "denominator=kept").startswith("ValueError: loss_type `luspo` divides by a number that masks do not change")
    launch(folder, "other", "save=1", "steps=1", "masks=several")
    other = refused(folder, f"resume={folder / 'other-run/checkpoint-1'}", "save=1")
    assert "(give it the same masks, weights and step controls)" in other


FLOOR = "CapoWarning: a step is measured in half precision"
CONTROLLED = ("masks=", "controls=third", "lr=1e-2")


def test_finds_a_rate_before_a_run(folder):
    run = launch(folder, "search", "controls=auto", "lr=1e-1", "steps=40", "find=1", "masks=", "metrics=main")
    told = [line["capo/governor.kl/found_rate"] for line in run["numbers"] if "capo/governor.kl/found_rate" in line]
    # Six steps tell a rate, which follows the run for 19 more. The one that is told is the median of the last ten.
    assert len(told) == 20 and len(set(told)) > 1
    assert run["found"] == statistics.median(told[-10:]) and 1e-5 < run["found"] <= 1e-1
    assert len([line for line in run["numbers"] if "capo/governor.kl/kl" in line]) == 25
    assert 'step_controls=["governor.kl"]' in refused(folder, "find=1", "masks=")


@pytest.fixture(scope="module")
def controlled(folder):
    return launch(folder, "controlled", *CONTROLLED)


def of_control(saved, name):
    return [line[f"capo/governor.kl/{name}"] for line in saved["numbers"] if f"capo/governor.kl/{name}" in line]


def test_step_controls_only_shorten_steps(folder, controlled):
    stock = launch(folder, "stock", "masks=", "lr=1e-2")
    loose = launch(folder, "loose", "masks=", "controls=loose", "lr=1e-2")
    assert difference(loose, stock) == 0 and loose["losses"] == stock["losses"], "to the bit"
    assert of_control(loose, "scale") == [1.0] * 4 and of_control(loose, "kl")[0] > 1e-3
    assert max(of_control(controlled, "scale")) < 0.1 and of_control(controlled, "applied") == of_control(controlled, "scale")
    assert len(of_control(controlled, "kl")) == 2 and len(of_control(controlled, "predicted_kl")) == 3
    again = launch(folder, "of-target", "masks=", "controls=kl", "lr=1e-2", "steps=1")
    first = launch(folder, "whole-step", "masks=", "lr=1e-2", "steps=1")
    start = launch(folder, "no-step", "masks=", "lr=0", "steps=1")
    (scale,) = of_control(again, "scale")
    for name, before in start["weights"].items():
        assert torch.allclose(again["weights"][name], before + scale * (first["weights"][name] - before), rtol=1e-6, atol=1e-8), name


def test_the_applied_share_does_not_depend_on_the_split(folder, controlled):
    for way, (ranks, options) in WAYS.items():
        saved = launch(folder, f"controlled-{way}", *CONTROLLED, *options, ranks=ranks)
        for rank in saved if ranks > 1 else [saved]:
            assert of_control(rank, "scale") == pytest.approx(of_control(controlled, "scale"), rel=1e-3), way
            assert difference(rank, controlled) < 1e-5, way
            if ranks > 1:
                assert rank["states"] == saved[0]["states"] and difference(rank, saved[0]) == 0, f"{way}: bit for bit on all ranks"


def test_step_controls_work_with_masks_and_adapters(folder):
    both = launch(folder, "both", "controls=kl", "second_moment=kept_and_rejected")
    assert len(rates(both)) == 4 and min(of_control(both, "scale")) < 1
    ahead = launch(folder, "both-ahead", "controls=kl", "second_moment=kept_and_rejected", "mode=ahead")
    assert difference(both, ahead) == 0 and both["states"] == ahead["states"]
    lora = launch(folder, "lora-controlled", "masks=", "controls=kl", "lora=1", "lr=1e-1", "steps=2")
    assert max(of_control(lora, "scale")) < 1
    # Masks judge the next step by the learning rate times the share that was left of this step.
    shortened = launch(folder, "shortened", "masks=none", "controls=kl", "steps=2")
    slow = launch(folder, "slow", "masks=none", f"lr={1e-3 * of_control(shortened, 'scale')[0]}", "steps=2")
    first, second = ([line["capo/capo.curvature/m_f/mean"] for line in run["numbers"][:2]] for run in (shortened, slow))
    assert first[1] == pytest.approx(second[1], rel=0.02) and first[0] > 2 * second[0]
    skipped = launch(folder, "skipped", "masks=all", "controls=kl", "steps=2")
    assert not of_control(skipped, "scale"), "no step is proposed"


def test_measures_steps_in_float32_under_autocast(folder):
    """A step of 1e-6 changes the features by less than the rounding of bf16. The pass of the loss stays TRL's."""
    plain, half = (launch(folder, f"measured-{bf16}", "masks=", "controls=loose", "lr=1e-6", f"bf16={bf16}") for bf16 in (0, 1))
    assert of_control(half, "kl") == pytest.approx(of_control(plain, "kl"), rel=0.1) and FLOOR not in half["said"]
    stock = launch(folder, "stock-half", "masks=", "lr=1e-6", "bf16=1")
    assert difference(half, stock) == 0 and half["losses"] == stock["losses"], "to the bit"
    weights = launch(folder, "half-weights", "masks=", "controls=loose", "dtype=bfloat16")
    assert weights["said"].count(FLOOR) == weights["said"].count("CapoWarning: trained weights are in half precision") == 1


def host_run(host, folder, name, *words, **settings):
    """A run of ``host`` that records its batches, and TRL's training on them by `as_host.py`. Returns the results of both."""
    run, batches, lines = recorded_run(host, folder, name, *words, **settings)
    program = Path(__file__).with_name("as_host.py")
    ended = subprocess.run([sys.executable, program, run, batches, name], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), lines


def test_numbers_equal_those_of_host(folder, host):
    for second_moment, apart in [("kept_and_rejected", 2e-5), ("kept", 2e-4)]:
        found, told = host_run(host, folder, second_moment, "--plugin", PLUGINS / "libcapo.so", second_moment=second_moment)
        told = [line for line in told if "mask/rejection_rate" in line]
        assert found["rejection_rate"] == pytest.approx([line["mask/rejection_rate"] for line in told], abs=1e-9)
        assert found["apart"] < apart and found["moved"] > 4e-3
        if second_moment == "kept_and_rejected":
            assert found["rejected_grad_norm"] == pytest.approx([line["rejected_grad_norm"] for line in told], rel=1e-4)


def test_weights_in_a_warm_up_use_coming_rates_as_host_does(folder, host):
    schedule = {"lr_scheduler_type": "linear", "warmup_ratio": 0.5}
    found, told = host_run(host, folder, "warm", "--plugin", PLUGINS / "libcapo.so", "--set", "recipe=capo-soft", **schedule)
    name = "capo.curvature-weight/weight/mean"
    weights = [line[name] for line in told if name in line]
    assert len(weights) == 6 and weights[0] < 0.9, "the first step has a rate of 0"
    assert found[name] == pytest.approx(weights, rel=1e-4)
    assert found["apart"] < 2e-5 and found["moved"] > 1e-3


def test_measures_and_shortens_steps_as_host_does(folder, host):
    found, told = host_run(host, folder, "governed", *GOVERNED, max_steps=GOVERNED_STEPS)
    for name, apart in GOVERNED_NUMBERS.items():
        name = f"governor.kl/{name}"
        expected = [line[name] for line in told if name in line]
        assert len(expected) > 6 and found[name] == pytest.approx(expected, rel=apart), name
    assert found["apart"] < 1e-6 and found["moved"] > 5e-5


def test_accepts_a_single_component_and_refuses_another_kind():
    from capo_rl import Mask, StepControl, Weight
    from capo_rl.components import listed

    assert [each.id for each in listed(Mask, "capo.curvature")] == ["capo.curvature"] and len(listed(Weight, Weight("masks.tis"))) == 1
    with pytest.raises(ValueError, match="Mask\\('capo.curvature'\\) is no StepControl \\(give it where components of its kind go\\)"):
        listed(StepControl, ["governor.kl", Mask("capo.curvature")])


def test_refuses_a_trl_without_the_hooks(monkeypatch):
    from capo_rl.trl import CapoGRPOTrainer
    from trl import GRPOTrainer

    monkeypatch.delattr(GRPOTrainer, "_get_per_token_logps_and_entropies")
    with pytest.raises(ValueError, match="has no `_get_per_token_logps_and_entropies`, which masks go through \\(install 'trl>=1.0,<1.17'\\)"):
        CapoGRPOTrainer(model="none", reward_funcs=[], masks=["capo.curvature"])
