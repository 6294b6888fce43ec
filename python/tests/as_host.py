"""Trains the embedded model of ``host`` in TRL on the completions and rewards that a run of ``host`` recorded.

    python as_host.py RUN BATCHES HOW

HOW is a `second_moment`, which trains with a mask; `governed`, with a step control; or `warm`, with a weight under a linear schedule whose first
half is a warm-up. Prints as JSON the largest difference between its weights and those of RUN's last checkpoint, the largest change of a weight in
training, and for each step the share of rejected tokens, the norm of their gradient, and the reports of the step control.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import capo_rl
import numpy as np
import torch
from capo_rl.trl import CapoGRPOTrainer
from datasets import Dataset
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
from trl import GRPOConfig

from conftest import GOVERNED_NUMBERS, ROOT

MODEL = ROOT / "host/assets/tiny-arithmetic"
GENERATIONS = 8
NUMBERS = ("rejection_rate", "rejected_grad_norm", "capo.curvature-weight/weight/mean", *(f"governor.kl/{name}" for name in GOVERNED_NUMBERS))


def components(how):
    """The trainer's components."""
    if how == "governed":
        return {"step_controls": [capo_rl.StepControl("governor.kl", fraction=1.0)]}
    if how == "warm":
        return {"weights": ["capo.curvature-weight"], "second_moment": "kept_and_rejected"}
    return {"masks": ["capo.curvature"], "second_moment": how}


def rollout(path):
    """Prompts, completions and rewards of a batch file."""
    arrays = load_file(path)
    ends = [0, *arrays["context/prompt_ends"].tolist()]
    prompts = [arrays["context/prompt_ids"][start:end].tolist() for start, end in zip(ends, ends[1:], strict=False)]
    rows = zip(arrays["completion_ids"], arrays["completion_mask"], strict=True)
    completions = [ids[mask == 1].tolist() for ids, mask in rows]
    return {"prompt_ids": [prompt for prompt in prompts for _ in range(GENERATIONS)], "completion_ids": completions, "logprobs": None}, arrays["rewards"]


def main():
    run, batches, how = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir()), sys.argv[3]
    torch.set_num_threads(1)
    recorded = [rollout(path) for path in batches]
    rewards = iter([rewards for _, rewards in recorded])
    # Later batches have the learning rate times the share of the step that the governor left. In a warm-up the first batch has the rate of its end.
    optimizer = capo_rl.load_batch(batches[0]).optimizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>")
    before = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    trainer = CapoGRPOTrainer(
        model=Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: next(rewards).tolist(),
        rollout_func=lambda prompts, trainer: recorded[trainer.state.global_step][0],
        train_dataset=Dataset.from_dict({"prompt": ["1+1="] * 48}),
        args=GRPOConfig(
            output_dir=str(run / "trl"),
            per_device_train_batch_size=len(recorded[0][1]),
            num_generations=GENERATIONS,
            max_completion_length=24,
            learning_rate=optimizer.learning_rate,
            lr_scheduler_type="linear" if how == "warm" else "constant",
            warmup_steps=len(recorded) // 2 if how == "warm" else 0,
            adam_beta2=optimizer.beta2,
            adam_epsilon=optimizer.eps,
            weight_decay=0.0,
            max_steps=len(recorded),
            loss_type="grpo",
            beta=0.0,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        **components(how),
        component_metrics="all",
        last_layer_top_k=before.config.vocab_size,
    )
    trainer.train()
    theirs = load_file(max(run.glob("checkpoints/step-*")) / "model.safetensors")
    ours = {name: value.detach().numpy() for name, value in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}
    first = {name: value.detach().numpy() for name, value in before.named_parameters()}
    away = lambda one, other: max(float(np.abs(one[name] - other[name]).max()) for name in theirs)
    told = {name: [line[f"capo/{name}"] for line in trainer.state.log_history if f"capo/{name}" in line] for name in NUMBERS}
    print(json.dumps({"apart": away(ours, theirs), "moved": away(first, theirs)} | told))


main()
