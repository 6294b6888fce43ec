"""Runs of verl's own workers on CPUs for the tests: how to start them, the files that they save, and the arguments of runs that several tests need."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if getattr(find_spec("verl"), "origin", None) is None:
    pytest.skip("verl is not installed", allow_module_level=True)

TINY = Path(__file__).with_name("tiny_verl.py")
BENCHES = Path(__file__).parents[1] / "benches"
ACTOR, MODEL = "set=actor_rollout_ref.actor", "set=actor_rollout_ref.model"
AHEAD, REMEMBERS = "mode=ahead", "second_moment=kept_and_rejected"
PACKED = (f"{MODEL}.use_remove_padding=true", f"{ACTOR}.fsdp_config.pad_to_length=true", f"{ACTOR}.fsdp_config.pad_to_length_bucket=16")
ORIGINAL = "set=+actor_rollout_ref.actor.capo.mask_denominator=original"
DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=true", "set=actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=48")
CASES = {
    "token-mean-kept": ("response_mask,loss_mask", f"{ACTOR}.loss_agg_mode=token-mean"),
    "token-mean-original": ("response_mask", f"{ACTOR}.loss_agg_mode=token-mean", ORIGINAL),
    "seq-mean-kept": ("response_mask", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    "seq-mean-original": ("advantages", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", ORIGINAL),
    "fixed-length": ("response_mask", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=16"),
    "gspo": ("advantages", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", f"{ACTOR}.policy_loss.loss_mode=gspo", ORIGINAL),
    "kl-and-entropy": ("response_mask,loss_mask", f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.5", f"{ACTOR}.entropy_coeff=0.1", "entropy=1"),
    "weights": ("advantages", "masks=none", "weights=capo.curvature-weight"),
    "objective": ("advantages", f"{ACTOR}.loss_agg_mode=token-mean", "external=my_losses", f"{ACTOR}.policy_loss.loss_mode=capo.objective", ORIGINAL),
}


def launch(folder, name, *words, ranks=1):
    """Runs the tiny worker, and returns what each rank saved."""
    python = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run([*python, str(TINY), name, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (folder / f"{name}.log").write_text(ended.stderr)
    return [saved(folder, name, rank) for rank in range(ranks)] if ranks > 1 else saved(folder, name)


def saved(folder, name, rank=0):
    found = torch.load(folder / f"{name}.{rank}", weights_only=False)
    found["numbers"] = json.loads(found["numbers"])
    return found


def in_one(runs):
    """The arguments of several runs in one process."""
    return [word for name, words in runs.items() for word in ("--", name, *words)][1:]


def difference(one, other):
    return max(float((one["weights"][name] - other["weights"][name]).abs().max()) for name in one["weights"])


def rates(saved):
    """One value per step. verl lists the values of every rank and mini-batch, and all values of a step are equal."""
    return [line["capo/rejection_rate"][0] for line in saved["numbers"]]


def kept(*ranks):
    """The decisions on every row, step by step, whichever rank had the row."""
    rows = [[tuple(row[row >= 0].tolist()) for rank in ranks for row in rank["token_weights"][step]] for step in range(len(ranks[0]["token_weights"]))]
    return [sorted(step) for step in rows]


def scales(saved):
    return [line["capo/governor.kl/scale"][0] for line in saved["numbers"] if "capo/governor.kl/scale" in line]


def received(folder, name):
    return [line["capo/bytes_gathered"][0] for line in saved(folder, name, 0)["numbers"]]
