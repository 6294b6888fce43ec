"""`CapoGRPOTrainer`: the same decisions however the batch is split, over micro-batches and ranks; states; sentences."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

TINY = Path(__file__).with_name("tiny_trl.py")


def launch(folder, name, *options, ranks=1):
    """Runs the tiny trainer; what each rank saved."""
    python = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    ended = subprocess.run([*python, str(TINY), name, *options, f"folder={name}-run"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    saved = [torch.load(folder / f"{name}.{rank}", weights_only=False) for rank in range(ranks)]
    for each in saved:
        each["numbers"] = json.loads(each["numbers"])
    return saved if ranks > 1 else saved[0]


def refused(folder, *options):
    ended = subprocess.run([sys.executable, str(TINY), "refused", *options], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode != 0
    return ended.stderr.strip().splitlines()[-1]


def difference(one, other):
    return max(float((one["weights"][name] - other["weights"][name]).abs().max()) for name in one["weights"])


def rates(saved):
    return [line["capo/rejection_rate"] for line in saved["numbers"] if "capo/rejection_rate" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trl")


@pytest.fixture(scope="module")
def whole(folder):
    return launch(folder, "whole")


def test_it_rejects_some_tokens_and_records_why(whole):
    assert len(rates(whole)) == 4 and sum(0 < rate < 1 for rate in rates(whole)) >= 2, rates(whole)
    assert "capo/capo.curvature/m_f_p99" in whole["numbers"][0]
    assert len(whole["states"][0]) > 1000, "the mask keeps Adam's moments of its own"


def test_split_micro_batches_and_two_ranks_decide_the_same(folder, whole):
    split = launch(folder, "split", "accumulate=2")
    assert rates(split) == rates(whole) and difference(split, whole) < 1e-5
    first, second = launch(folder, "ranks", ranks=2)
    assert rates(first) == rates(whole) and difference(first, whole) < 1e-5
    assert first["states"] == second["states"], "bit for bit"
    assert difference(first, second) == 0


def test_a_resumed_run_is_the_uninterrupted_one(folder, whole):
    launch(folder, "cut", "save=2", "steps=2")
    resumed = launch(folder, "resumed", f"resume={folder / 'cut-run/checkpoint-2'}", "save=2")
    assert difference(resumed, whole) == 0 and resumed["states"] == whole["states"]


def test_several_steps_to_a_rollout(folder):
    steps = launch(folder, "steps", "per_rollout=2")
    split = launch(folder, "steps-split", "per_rollout=2", "accumulate=2")
    assert len(rates(steps)) == 4 and rates(steps) == rates(split) and difference(steps, split) < 1e-5


def test_several_masks_apply_in_order(folder):
    several = launch(folder, "several", "masks=several")
    assert all(rate > 0.15 for rate in rates(several)), "a fifth goes by entropy alone"
    assert "capo/masks.entropy-quantile/limit_nats" in several["numbers"][0] and len(several["states"]) == 3


def test_a_step_of_which_nothing_is_left_changes_nothing(folder):
    one, four = launch(folder, "all", "masks=all", "steps=1"), launch(folder, "all-four", "masks=all")
    assert difference(one, four) == 0 and rates(four) == [1.0] * 4
    assert all(line["capo/skipped"] == 1.0 for line in four["numbers"] if line)


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo", "bnpo", "cispo", "sapo"])
def test_losses_and_denominators(folder, loss):
    saved = launch(folder, loss, f"loss={loss}", "steps=2")
    assert all(0 < rate < 1 for rate in rates(saved)), rates(saved)


def test_weights_and_adapters(folder, whole):
    soft = launch(folder, "soft", "masks=", "weights=capo", "lr=1e-2")
    plain = launch(folder, "plain", "masks=", "lr=1e-2")
    assert difference(soft, plain) > 0 and not rates(plain)
    lora = launch(folder, "lora", "lora=1", "steps=2")
    assert len(rates(lora)) == 2


def test_what_cannot_be_right_is_refused(folder, whole):
    assert refused(folder, "loss=dapo", "denominator=kept") == (
        'ValueError: loss_type `dapo` divides by a number that masks do not change (use mask_denominator="original")'
    )
    assert refused(folder, "denominator=some") == "ValueError: mask_denominator is 'some' (use \"kept\" or \"original\")"
    assert refused(folder, "loss=luspo").startswith("ValueError: loss_type `luspo` has no per-token loss that a mask could drop")
    launch(folder, "other", "save=1", "steps=1", "masks=several")
    other = refused(folder, f"resume={folder / 'other-run/checkpoint-1'}", "save=1")
    assert "(give it the same masks)" in other
