"""Writes corrections.json: TRL's losses under its settings for masks and importance weights, and their gradients by the log-probabilities.

    pip install torch trl && python corrections.py

Made with torch 2.15.0 and trl 1.16.0. The losses are `GRPOTrainer._compute_loss`, called on a trainer without a model: what it would ask a model for
are tensors of random numbers. The ratio of trainer to sampler is made by the lines of `_generate_and_score_completions` that make it, cut out of their
source. All loss types x all corrections x both levels, and a few more with TRL's masks and its penalty. Completions have holes, as where a tool
answered, some have no token at all, and log-ratios of both kinds reach 40; one batch has completions of one token.
"""

import inspect
import json
import math
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import GRPOTrainer

LIMIT = 7
SHAPES = {"holes": (4, 5), "one token": (4, 1)}
LOSSES = {
    "grpo": "grpo", "bnpo": "bnpo", "dr_grpo": "dr_grpo", "dapo": "dapo", "cispo": "cispo", "sapo": "sapo", "luspo": "luspo", "vespo": "vespo",
}
MODES = [None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
SAMPLING = "vllm_importance_sampling_"
KL = {"beta": 0.3, "use_bias_correction_kl": True}
# Settings of TRL's beside the loss type, the level and the correction.
MORE = [
    ("grpo", "token", None, {"top_entropy_quantile": 0.5}),
    ("grpo", "sequence", None, {"top_entropy_quantile": 0.5}),
    ("luspo", "sequence", None, {"top_entropy_quantile": 0.5}),
    ("grpo", "sequence", None, {"top_entropy_quantile": 0.5, "off_policy_mask_threshold": 0.1}),
    ("grpo", "sequence", "token_mask", {"top_entropy_quantile": 0.5, "off_policy_mask_threshold": 0.1}),
    ("sapo", "sequence", "token_truncate", {"top_entropy_quantile": 0.5}),
    ("vespo", "token", "token_truncate", {"top_entropy_quantile": 0.5, "off_policy_mask_threshold": 0.1}),
    ("grpo", "token", "token_mask", {"top_entropy_quantile": 0.5, **KL}),
    ("dapo", "sequence", "token_truncate", {"off_policy_mask_threshold": 0.1, **KL}),
    ("cispo", "sequence", "token_mask", {"top_entropy_quantile": 0.5, "beta": 0.3}),
]


def ratio_of_trainer_to_sampler():
    """TRL's lines, as a function."""
    lines = inspect.getsource(GRPOTrainer._generate_and_score_completions).splitlines()
    start = next(n for n, line in enumerate(lines) if "per_token_logps_diff = (" in line)
    end = next(n for n, line in enumerate(lines) if n > start and "raise ValueError" in line)
    end = next(n for n, line in enumerate(lines) if n > end and line.strip() == ")")
    code = compile(textwrap.dedent("\n".join(lines[start : end + 1])), "grpo_trainer.py", "exec")

    def run(data, mode):
        trainer = SimpleNamespace(**{SAMPLING + "mode": mode, SAMPLING + "clip_max": 3.0, SAMPLING + "clip_min": None})
        world = {"torch": torch, "math": math, "self": trainer, "mask": data["mask"]}
        world |= {"old_per_token_logps": data["old_logps"], "sampling_per_token_logps": data["sampler_logps"]}
        exec(code, world)
        return world["vllm_importance_sampling_ratio"]

    return run


ratio = ratio_of_trainer_to_sampler()


def batch(shape, seed):
    draw = torch.Generator().manual_seed(seed)
    # In steps of 2^-6, so that sums of them are exact and what is compared is no rounding of huge ratios.
    exact = lambda values: (values * 64).round() / 64
    normal = lambda scale: exact(scale * torch.randn(shape, generator=draw))
    logps = exact(-0.1 - 2.0 * torch.rand(shape, generator=draw))
    mask = torch.ones(shape, dtype=torch.long)
    if shape[1] > 1:
        mask[0, 2], mask[1, 3:], mask[3, 0] = 0, 0, 0
    mask[2] = 0
    old, sampler = logps + normal(0.3), None
    sampler = old + normal(0.5)
    # The policy has moved by e^40 to either side, and so far are trainer and sampler apart.
    old[0, -1], old[1, 0] = logps[0, -1] + 40, logps[1, 0] - 40
    sampler[3, -1], sampler[1, 0] = old[3, -1] + 40, old[1, 0] - 40
    arrays = {"logps": logps, "old_logps": old, "sampler_logps": sampler, "ref_logps": logps + normal(0.3), "entropy": exact(2 * torch.rand(shape, generator=draw))}
    return {"mask": mask, "advantages": exact(torch.randn(shape[0], generator=draw)), **{name: values * mask for name, values in arrays.items()}}


def trainer(loss_type, level, mode, logps, entropy, beta=0.0, use_bias_correction_kl=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None):
    self = GRPOTrainer.__new__(GRPOTrainer)
    shape = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    self.args = SimpleNamespace(delta=None, use_bias_correction_kl=use_bias_correction_kl, steps_per_generation=1, **shape)
    one = lambda x, *args, **kwargs: x
    self.accelerator = SimpleNamespace(num_processes=1, sync_gradients=True, gather=one, reduce=one, pad_across_processes=one)
    self._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logps, entropy, None)
    self.model, self._metrics = SimpleNamespace(training=True), {"train": defaultdict(list)}
    self.loss_type, self.importance_sampling_level, self.beta = loss_type, level, beta
    self.epsilon_low, self.epsilon_high = 0.2, {"dapo": 0.28, "cispo": 5.0}.get(loss_type, 0.2)
    self.top_entropy_quantile, self.off_policy_mask_threshold = top_entropy_quantile, off_policy_mask_threshold
    self.use_vllm, self.vllm_importance_sampling_correction = mode is not None, mode is not None
    self.aux_loss_enabled = self._entropy_bonus_enabled = False
    self.max_completion_length, self.current_gradient_accumulation_steps = LIMIT, 1
    return self


def loss(data, loss_type, level, mode, more):
    logps, mask = data["logps"].clone().requires_grad_(), data["mask"]
    ids = torch.zeros_like(mask)
    # Holes are TRL's tool mask: of the completion and yet none of its tokens.
    inputs = {
        "prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": torch.ones_like(mask), "tool_mask": mask,
        "advantages": data["advantages"], "ref_per_token_logps": data["ref_logps"], "num_items_in_batch": mask.sum(),
        "old_per_token_logps": data["old_logps"], "sampling_per_token_logps": data["sampler_logps"],
    }
    if mode is not None:
        inputs["importance_sampling_ratio"] = ratio(data, mode)
    value = trainer(loss_type, level, mode, logps, data["entropy"], **more)._compute_loss(None, inputs)
    value.backward()
    return value.item(), (logps.grad * mask).flatten().tolist()


def main():
    torch.set_num_threads(1)
    data = [batch(shape, seed) for seed, shape in enumerate(SHAPES.values(), 3)]
    # A whole number as such, so that the file is small.
    short = lambda value: int(value) if value == int(value) else float(f"{value:.8g}")
    tidy = lambda array: [short(value) for value in array.flatten().tolist()]
    names = ("mask", "advantages", "logps", "old_logps", "sampler_logps", "ref_logps", "entropy")
    cases = [(kind, level, mode, {}) for kind in LOSSES for level in ("token", "sequence") for mode in MODES]
    lines = []
    for kind, level, mode, more in cases + MORE:
        losses, gradients = zip(*(loss(each, kind, level, mode, more) for each in data))
        settings = {"loss_type": kind, "importance_sampling_level": level, **({SAMPLING + "mode": mode} if mode else {}), **more}
        lines.append({**settings, "losses": list(map(short, losses)), "gradients": [[short(slope) for slope in row] for row in gradients]})
    dump = lambda items: "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in items) + "\n]"
    batches = [{"name": name, "shape": shape, **{array: tidy(each[array]) for array in names}} for (name, shape), each in zip(SHAPES.items(), data)]
    Path(__file__).with_name("corrections.json").write_text(f'{{"limit":{LIMIT},\n"batches":{dump(batches)},\n"cases":{dump(lines)}}}\n')


main()
