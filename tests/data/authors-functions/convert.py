"""Turns numbers that the authors' functions printed (an npz file) into batch files and what is expected of them.

    python convert.py authors_token_adam.npz .

Run by hand; needs numpy and safetensors. README.md describes the files.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

MASK = """\
[[mask]]
use = "capo.curvature"
semantics = "authors"
feature = "aligned"
granularity = "token"
optimizer = "adam"
fisher_threshold = {tau_F}
hessian_threshold = {tau_H}
"""


def actions(topk_ids, onehot):
    """Sampled ids `[B, T]`; a row of zeros stands for an id outside the token's top ids, of which the smallest is taken."""
    ids = np.take_along_axis(topk_ids, onehot.argmax(-1)[..., None], -1)[..., 0]
    for at in zip(*np.nonzero(onehot.sum(-1) == 0)):
        ids[at] = np.setdiff1d(np.arange(topk_ids.shape[-1] + 1), topk_ids[at])[0]
    return ids


def batch(step, mask):
    """The tensors of a batch file; what the functions were not given is zero."""
    logits = np.log(step["probs"])
    inside = step["action_onehot"].any(-1)
    chosen = np.where(inside, (step["action_onehot"] * logits).sum(-1), logits.min(-1))
    per_token = np.broadcast_to(step["advantages"][:, None], mask.shape)
    zeros = np.zeros(mask.shape)
    floats = {
        "hidden": step["h"],
        "topk_logits": logits,
        "action_logits": chosen,
        "logsumexp": zeros,
        "logps": chosen,
        "advantages": per_token,
        "rewards": zeros[:, 0],
    }
    tensors = {name: np.ascontiguousarray(values, np.float32) for name, values in floats.items()}
    tensors["topk_ids"] = step["topk_ids"].astype(np.uint32)
    tensors["completion_ids"] = actions(step["topk_ids"], step["action_onehot"]).astype(np.uint32)
    tensors["completion_mask"] = mask.astype(np.uint8)
    return tensors


def scalars(data, index, learning_rate):
    """The metadata of a batch file."""
    beta1, beta2 = data["betas"].tolist()
    optimizer = {"kind": "adam", "learning_rate": learning_rate, "beta1": beta1, "beta2": beta2}
    optimizer |= {"eps": data["eps"].item(), "weight_decay": 0.0, "steps_taken": index}
    completions, tokens = data["s0_completion_mask"].shape
    return {
        "group_size": str(completions),
        "step": str(index),
        "seed": "0",
        "vocab_size": str(data["V"].item()),
        "max_completion_length": str(tokens),
        "sampling_temperature": "1.0",
        "loss_temperature": "1.0",
        "optimizer": json.dumps(optimizer),
    }


def expected(step, mask):
    """The numbers that the functions printed: 0 on padding, where they compute as well; moments and gradient are `[V, D]`."""
    accepted = (step["updated_mask"] * mask).astype(np.uint8)
    shifts = {name.lower(): np.where(mask, step[name], 0.0).astype(np.float32) for name in ("m_F", "m_H")}
    moments = {"exp_avg": step["state_p_after"], "exp_avg_sq": step["state_q_after"]}
    return {"keep": accepted, **shifts, **moments, "gradient": step["global_mean_grad"]}


def main(source, target):
    data, target = np.load(source), Path(target)
    steps = sum(name.endswith("_h") for name in data)
    for index in range(steps):
        prefix = f"s{index}_"
        step = {name.removeprefix(prefix): data[name] for name in data if name.startswith(prefix)}
        mask = step["completion_mask"].astype(bool)
        wanted = expected(step, mask)
        with_rate, at_rest = (scalars(data, index, rate) for rate in (data["lr"].item(), 0.0))
        save_file(batch(step, mask), target / f"batch-{index:04}.safetensors", with_rate)
        if index + 1 < steps:
            save_file(batch(step, wanted["keep"]), target / f"accepted-{index:04}.safetensors", at_rest)
        save_file(wanted, target / f"expected-{index:04}.safetensors")
        thresholds = {name: step[name].item() for name in ("tau_F", "tau_H")}
        (target / f"mask-{index:04}.toml").write_text(MASK.format(**thresholds))


if __name__ == "__main__":
    main(*sys.argv[1:])
