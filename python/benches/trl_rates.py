"""Learning rates in TRL with and without what holds a run: the embedded arithmetic task of ``host``, or a model and rows of one's own.

    python python/benches/trl_rates.py [--rates 1e-4 1e-3] [--steps 300] [--arms stock governed] [--seeds 1]
    python python/benches/trl_rates.py --model SMOLLM2 --data DATA --arms stock auto soft --rates 1e-5 1e-4 --steps 40

Each arm is a process of its own, one after another; a line each. The number is the mean accuracy on the held-out
prompts, answered greedily, over the last three measurements. The embedded model starts at 56% of 512 prompts and is
measured every 20 steps. With ``--model``, a Hugging Face directory, and ``--data``, a folder with ``train.jsonl`` and
``held_out.jsonl`` of prompts and answers, a completion has at most 6 tokens, its first whole number is its answer, and
it is measured every 10 steps.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMBEDDED = Path(__file__).parents[2] / "host/assets/tiny-arithmetic"
GENERATIONS = 8


@dataclass
class Task:
    model: Any
    tokenizer: Any
    train: dict  # columns `prompt` and `answer`, in the order of training
    held_out: dict
    answer: Callable  # of a completion's text
    prompts: int  # of a step
    tokens: int  # of a completion, at most
    every: int  # steps between two measurements
    threads: int


def pairs(seed, count):
    """Two numbers of three digits; a tenth of all pairs, by their sum and product, are held out, where ``seed`` is 0."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        a, b = draw.randint(100, 999), draw.randint(100, 999)
        if (random.Random(min(a, b) * 1000 + max(a, b)).randrange(10) == 0) == (seed == 0):
            found.append((a, b))
    return {"prompt": [f"{a}+{b}=" for a, b in found], "answer": [str(a + b) for a, b in found]}


def embedded(steps, seed):
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

    return Task(
        model=Qwen2ForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32),
        tokenizer=PreTrainedTokenizerFast(tokenizer_file=str(EMBEDDED / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>", padding_side="left"),
        train=pairs(seed, 6 * steps), held_out=pairs(0, 512), answer=lambda text: text.rpartition("=")[2], prompts=6, tokens=24, every=20, threads=1,
    )  # fmt: skip


def own(model, data, steps, seed):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def columns(name):
        rows = [json.loads(line) for line in (Path(data) / name).read_text().splitlines()]
        return {key: [row[key] for row in rows] for key in ("prompt", "answer")}

    def first_number(text):
        found = re.search(r"-?\d+", text)
        return found and found.group()

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = columns("train.jsonl")
    drawn = random.Random(seed).choices(range(len(rows["prompt"])), k=4 * steps)
    return Task(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), tokenizer=tokenizer,
        train={key: [values[place] for place in drawn] for key, values in rows.items()}, held_out=columns("held_out.jsonl"),
        answer=first_number, prompts=4, tokens=6, every=10, threads=len(os.sched_getaffinity(0)),
    )  # fmt: skip


def keys(arm):
    """Arguments of ``CapoGRPOTrainer``; empty for TRL alone."""
    import capo_rl

    return {
        "stock": {},
        "governed": {"step_controls": [capo_rl.StepControl("governor.kl", target=3e-5)], "component_metrics": "all"},
        "auto": {"step_controls": ["governor.kl"], "component_metrics": "all"},
        "soft": {"weights": ["capo.curvature-weight"], "second_moment": "kept_and_rejected"},
    }[arm]


def run(arm, rate, seed, options):
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    import torch
    from capo_rl.trl import CapoGRPOTrainer
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    task = own(options.model, options.data, options.steps, seed) if options.model else embedded(options.steps, seed)
    torch.set_num_threads(task.threads)
    measured = []

    def right(completions, answer, **_):
        return [float(task.answer(text) == wanted) for text, wanted in zip(completions, answer, strict=True)]

    class Measure(TrainerCallback):
        @torch.no_grad()
        def on_step_end(self, args, state, control, model=None, **_):
            if state.global_step % task.every == 0:
                model.eval()
                prompts = task.tokenizer(task.held_out["prompt"], return_tensors="pt", padding=True)
                given = model.generate(**prompts, max_new_tokens=task.tokens, do_sample=False)
                texts = task.tokenizer.batch_decode(given[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
                model.train()
                measured.append(sum(right(texts, task.held_out["answer"])) / len(texts))

    given = keys(arm)
    trainer = (CapoGRPOTrainer if given else GRPOTrainer)(
        model=task.model,
        processing_class=task.tokenizer,
        reward_funcs=right,
        train_dataset=Dataset.from_dict(task.train),
        callbacks=[Measure()],
        args=GRPOConfig(
            output_dir="runs/rates", per_device_train_batch_size=task.prompts * GENERATIONS, num_generations=GENERATIONS, max_completion_length=task.tokens, max_steps=options.steps,
            learning_rate=rate, lr_scheduler_type="constant", loss_type="grpo", beta=0.0, seed=seed, logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, bf16=False, disable_tqdm=True, shuffle_dataset=False, gradient_checkpointing=False,
        ),
        **given,
    )  # fmt: skip
    started, stdout = time.perf_counter(), sys.stdout
    sys.stdout = sys.stderr
    trainer.train()
    sys.stdout = stdout
    seconds = time.perf_counter() - started

    def logged(name):
        return [float(f"{line[name]:.4g}") for line in trainer.state.log_history if name in line]

    metrics = {name: logged(key) for name, key in (("rewards", "reward"), ("scales", "capo/governor.kl/scale"))}
    print(
        json.dumps(
            {
                "arm": arm,
                "rate": rate,
                "seed": seed,
                "end": sum(measured[-3:]) / len(measured[-3:]),
                "measured": measured,
                "seconds": seconds,
            }
            | metrics
        )
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3])
    parser.add_argument(
        "--arms", nargs="+", default=["stock", "governed"], choices=("stock", "governed", "auto", "soft")
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", help="a Hugging Face directory, in place of the embedded model")
    parser.add_argument("--data", help="its folder of train.jsonl and held_out.jsonl")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = [(arm, rate, seed) for seed in options.seeds for rate in options.rates for arm in options.arms]
    for arm, rate, seed in every:
        if options.run:
            run(arm, rate, seed, options)
            continue
        words = ["--run", "--arms", arm, "--rates", str(rate), "--seeds", str(seed), "--steps", str(options.steps)]
        words += ["--model", options.model, "--data", options.data] if options.model else []
        ended = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
        print(ended.stdout.splitlines()[-1] if ended.returncode == 0 else ended.stderr[-2000:], flush=True)


if __name__ == "__main__":
    main()
