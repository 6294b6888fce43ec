"""Functions of the public implementations, read out of the folder that `make.py` is called with."""

import ast
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import torch

SOURCES = Path(sys.argv[1])


class Bare(ast.NodeTransformer):
    """A function without what ties it to its package: decorators and annotations."""

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.decorator_list, node.returns = [], None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        return node

    def visit_AnnAssign(self, node):
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value else None


def functions(path, *names, **world):
    """The functions of a file by their names, in one namespace with `world`."""
    tree = ast.parse((SOURCES / path).read_text())
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names}
    module = ast.Module([Bare().visit(found[name]) for name in names], [])
    world = {"torch": torch, "math": math, "Any": Any, "Optional": Optional, **world}
    exec(compile(ast.fix_missing_locations(module), path, "exec"), world)
    return SimpleNamespace(**{name: world[name] for name in names})


def variables(function, *args, **kwargs):
    """The local variables of a function when it returns."""
    kept = {}

    def watch(frame, event, _):
        if event == "return" and frame.f_code is function.__code__:
            kept.update(frame.f_locals)

    sys.setprofile(watch)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return kept


def importance_sampling():
    """TRL's correction, the part of its method that computes the ratio, as a function."""
    tree = ast.parse((SOURCES / "trl-1.16.0/trl/trainer/grpo_trainer.py").read_text())
    wanted = lambda node: isinstance(node, ast.If) and any(
        isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "per_token_logps_diff" for line in node.body
    )
    block = next(node for node in ast.walk(tree) if wanted(node))
    code = compile(ast.Module(block.body, []), "grpo_trainer.py", "exec")

    def run(batch, mode, low, high):
        names = {"mode": mode, "clip_min": low, "clip_max": high}
        trainer = SimpleNamespace(**{f"vllm_importance_sampling_{name}": value for name, value in names.items()})
        world = {"torch": torch, "math": math, "self": trainer, "tool_mask": None, "completion_mask": batch.mask}
        world |= {"old_per_token_logps": batch.old_logps, "sampling_per_token_logps": batch.sampler_logps}
        exec(code, world)
        return world["vllm_importance_sampling_ratio"].expand_as(batch.mask)

    return run


verl_F = functions("verl-0.9.1/verl/utils/torch_functional.py", "masked_sum", "masked_mean")
correction = functions(
    "verl-0.9.1/verl/trainer/ppo/rollout_corr_helper.py",
    "_parse_rollout_is_threshold",
    "_parse_rollout_rs_thresholds",
    "compute_rollout_rejection_mask",
    "compute_rollout_correction_weights",
    verl_F=verl_F,
    SAFETY_BOUND=20.0,
    compute_rs_metrics=lambda **_: {},
    compute_is_metrics=lambda **_: {},
    SUPPORTED_ROLLOUT_RS_OPTIONS={f"{over}_{k}" for over in ("token", "seq_sum", "seq_mean", "seq_max") for k in ("k1", "k2", "k3")},
    TOKEN_LEVEL_ROLLOUT_RS_OPTIONS={"token_k1", "token_k2", "token_k3"},
)
losses = functions(
    "verl-0.9.1/verl/trainer/ppo/core_algos.py",
    *(f"compute_policy_loss_{name}" for name in ("dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "vanilla")),
    "agg_loss",
    verl_F=verl_F,
    AlgoConfig=type(None),
)
trl = functions(
    "trl-1.16.0/trl/trainer/grpo_trainer.py",
    *("get_off_policy_mask", "get_high_entropy_mask", "_compute_loss"),
    nanmin=lambda values: values,
    nanmax=lambda values: values,
)
trl_ratio = importance_sampling()
prime = functions(
    "prime-rl/src/prime_rl/trainer/rl/loss.py",
    "_safe_mean",
    "compute_importance_ratio_and_mismatch_kl",
    "default_loss_fn",
    "ipo_loss_fn",
    LossOutputs=SimpleNamespace,
)
slime = functions("slime/slime/backends/megatron_utils/loss.py", "icepop_function")
opsm = functions("slime/slime/utils/ppo_utils.py", "compute_opsm_mask")
mis_path = "slime/examples/train_infer_mismatch_helper/mis.py"
mis = functions(
    mis_path,
    *("masked_sum", "masked_mean", "masked_min", "masked_max", "metrics_append", "calculate_veto_mask"),
    *("truncate", "clip", "mask", "add_ppl_metrics", "compute_mis_weights"),
)
stable = functions("Stable-RL/verl/workers/actor/utils.py", "compute_topk_kl")
stable_masks = functions("Stable-RL/verl/trainer/ppo/core_algos.py", "_compute_token_mask_for_policy_loss")
areal = functions("AReaL/areal/trainer/ppo/actor.py", "_get_m2po_loss_mask", "_apply_m2po_masking")
lopti = functions("AR-Lopti/verl/trainer/ppo/ray_trainer.py", "compute_reweight_advantage")
