"""Writes turns.json: TRL's loss of completions of several turns on the embedded model, with the log-probability of each token and the gradients of all weights.

    pip install torch trl && python turns.py

Made with torch 2.15.0 and trl 1.16.0. `GRPOTrainer` trains one step on fixed ids that a `rollout_func` gives with an `env_mask`; the
gradients are those before the optimizer's step, unclipped. Of each weight there are the norm of its gradient and its product with `cos(0.37 i)`.
The model's weights are halved: as they are it is so sure of its tokens that f32 itself moves these numbers by 5e-6; halved, by 5e-7.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = Path(__file__).parent
MODEL = HERE.parents[4] / "host/assets/tiny-arithmetic"
PROMPT = "12+34="
# What the model says, and what the environment answers, by turns; `.` ends a turn.
ROWS = [["45.", "+1=", "46."], ["12+34=46."], ["4.", "12+", "6.", "+34=46", "46"], ["1", "2=3+4.", "50."]]
REWARDS = [1.0, 0.0, 0.5, 0.25]


class Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.found = {name: weight.grad.double() for name, weight in model.named_parameters()}


def run(loss_type):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>")
    ids = lambda text: [each for part in text.replace(".", " .").split() for each in ([tokenizer.eos_token_id] if part == "." else tokenizer(part)["input_ids"])]
    rows = [[ids(text) for text in row] for row in ROWS]
    rollout = {
        "prompt_ids": [ids(PROMPT)] * len(rows),
        "completion_ids": [[each for turn in row for each in turn] for row in rows],
        "env_mask": [[(place + 1) % 2 for place, turn in enumerate(row) for _ in turn] for row in rows],
        "logprobs": None,
    }
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=len(rows), num_generations=len(rows), max_completion_length=24, max_steps=1,
        learning_rate=1e-3, loss_type=loss_type, beta=0.0, max_grad_norm=0.0, gradient_checkpointing=False, report_to=[], use_cpu=True, bf16=False,
        save_strategy="no", logging_steps=1, disable_tqdm=True,
    )
    gradients, seen = Gradients(), {}

    class Seen(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *a, **k):
            found = super()._get_per_token_logps_and_entropies(*a, **k)
            seen["logps"] = found[0].detach()
            return found

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            seen.update({name: inputs[name] for name in ("completion_ids", "completion_mask", "tool_mask", "advantages")}, loss=loss.detach())
            return loss

    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        [weight.mul_(0.5) for weight in model.parameters()]
    Seen(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: REWARDS,
        rollout_func=lambda prompts, trainer: rollout,
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * len(rows)}),
        args=args,
        callbacks=[gradients],
    ).train()
    wave = lambda grad: torch.cos(0.37 * torch.arange(grad.numel(), dtype=torch.float64))
    weights = {name: [float(grad.norm()), float((grad.flatten() * wave(grad)).sum())] for name, grad in gradients.found.items()}
    # TRL has shuffled the rows.
    lengths = seen["completion_mask"].sum(1).tolist()
    of_rows = lambda name: [row[:length].tolist() for row, length in zip(seen[name], lengths)]
    batch = {
        "prompt": rollout["prompt_ids"][0],
        "completions": of_rows("completion_ids"),
        "mask": of_rows("tool_mask"),
        "advantages": seen["advantages"].tolist(),
        "logps": (seen["logps"] * seen["completion_mask"] * seen["tool_mask"] + 0.0).flatten().tolist(),
    }
    return batch, {"loss_type": loss_type, "loss": float(seen["loss"]), "gradients": weights}


def shorten(value):
    """Nine digits hold an f32."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return [shorten(item) for item in value]
    return {key: shorten(item) for key, item in value.items()} if isinstance(value, dict) else value


cases = []
for loss_type in ("grpo", "dr_grpo", "dapo"):
    batch, case = run(loss_type)
    cases.append(case)
(HERE / "turns.json").write_text(json.dumps(shorten(batch | {"limit": 24, "cases": cases})) + "\n")
