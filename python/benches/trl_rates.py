"""Learning rates in TRL with and without a step control: the embedded arithmetic task of ``host``, trained by TRL.

    python python/benches/trl_rates.py [--rates 1e-4 1e-3] [--steps 300] [--arms stock governed] [--seeds 1]

Each arm is a process of its own, one after another; a line each. The number is the mean accuracy on 512 held-out prompts, answered greedily, over the last three of its
measurements, one every 20 steps. The model starts at 56%.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

MODEL = Path(__file__).parents[2] / "host/assets/tiny-arithmetic"
PROMPTS, GENERATIONS, EVERY, HELD_OUT = 6, 8, 20, 512


def pairs(seed, count):
    """Two numbers of three digits; a tenth of all pairs, by their sum and product, are held out, where ``seed`` is 0."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        a, b = draw.randint(100, 999), draw.randint(100, 999)
        if (random.Random(min(a, b) * 1000 + max(a, b)).randrange(10) == 0) == (seed == 0):
            found.append((a, b))
    return found


def run(arm, rate, steps, seed):
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from capo_rl.trl import CapoGRPOTrainer

    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>", padding_side="left")
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    def right(completions, answer, **_):
        return [float(text.rpartition("=")[2] == wanted) for text, wanted in zip(completions, answer, strict=True)]

    def rows(found):
        return {"prompt": [f"{a}+{b}=" for a, b in found], "answer": [str(a + b) for a, b in found]}

    held_out, measured = rows(pairs(0, HELD_OUT)), []

    class Measure(TrainerCallback):
        @torch.no_grad()
        def on_step_end(self, args, state, control, model=None, **_):
            if state.global_step % EVERY == 0:
                model.eval()
                given = model.generate(**tokenizer(held_out["prompt"], return_tensors="pt", padding=True), max_new_tokens=24, do_sample=False)
                texts = tokenizer.batch_decode(given[:, 8:], skip_special_tokens=True)
                model.train()
                measured.append(sum(right(texts, held_out["answer"])) / HELD_OUT)

    keys = {"step_controls": ["governor.kl"]} if arm == "governed" else {}
    trainer = (CapoGRPOTrainer if keys else GRPOTrainer)(
        model=model,
        processing_class=tokenizer,
        reward_funcs=right,
        train_dataset=Dataset.from_dict(rows(pairs(seed, PROMPTS * steps))),
        callbacks=[Measure()],
        args=GRPOConfig(
            output_dir="runs/rates", per_device_train_batch_size=PROMPTS * GENERATIONS, num_generations=GENERATIONS, max_completion_length=24, max_steps=steps,
            learning_rate=rate, lr_scheduler_type="constant", loss_type="grpo", beta=0.0, seed=seed, logging_steps=EVERY, save_strategy="no", report_to=[],
            use_cpu=True, bf16=False, disable_tqdm=True, shuffle_dataset=False, gradient_checkpointing=False,
        ),
        **keys,
    )  # fmt: skip
    started, stdout = time.perf_counter(), sys.stdout
    sys.stdout = sys.stderr
    trainer.train()
    sys.stdout = stdout
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    scales = [line["capo/governor.kl/scale"] for line in trainer.state.log_history if "capo/governor.kl/scale" in line]
    seconds = time.perf_counter() - started
    print(json.dumps({"arm": arm, "rate": rate, "seed": seed, "end": sum(measured[-3:]) / 3, "measured": measured, "rewards": rewards, "scales": scales, "seconds": seconds}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3])
    parser.add_argument("--arms", nargs="+", default=["stock", "governed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = [(arm, rate, seed) for seed in options.seeds for rate in options.rates for arm in options.arms]
    for arm, rate, seed in every:
        if options.run:
            run(arm, rate, options.steps, seed)
            continue
        words = ["--run", "--arms", arm, "--rates", str(rate), "--seeds", str(seed), "--steps", str(options.steps)]
        ended = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        print(ended.stdout.splitlines()[-1] if ended.returncode == 0 else ended.stderr[-2000:], flush=True)


if __name__ == "__main__":
    main()
