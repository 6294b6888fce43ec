"""Sums with worked solutions, three tasks for models that `host sft` makes.

* `sums`: four numbers. Prompt `85+72+79+38=`, solution `24 27=274`: the sum of the units, the sum of the tens with the carry, the answer. The
  model has the embedded one's architecture.
* `totals`: ten numbers, whose solution has 60 to 70 tokens. Prompt `85+72+...+38=`, solution `85+72=157+79=236...+38=519`: every total. The
  model has the embedded one's architecture with 128 positions.
* `large-sums`: as `sums`, for a model of 11 million weights.

The base model learns from 80,000 solutions that forget half of their carries. The reward is 1 if the answer is exact. Held-out answers are
greedy for `sums`. For `totals` they are sampled as in training, because there the base model is undecided at each of four carries, so that
the smallest step can change its greedy accuracy from 5 to 70%.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


def units_and_tens(terms, forgets):
    units = sum(term % 10 for term in terms)
    carry = 0 if units >= 10 and forgets() else units // 10
    tens = sum(term // 10 for term in terms) + carry
    return f"{units} {tens}={tens * 10 + units % 10}"


def all_totals(terms, forgets):
    total, written = terms[0], str(terms[0])
    for term in terms[1:]:
        carries = total % 10 + term % 10 >= 10
        total += term - (10 if carries and forgets() else 0)
        written += f"+{term}={total}"
    return written


EMBEDDED = Path(__file__).resolve().parents[2] / "host/assets/tiny-arithmetic"


class Task(NamedTuple):
    terms: int
    # Maps the terms, and a function that says whether a carry is forgotten, to the solution.
    solution: Callable[[list[int], Callable[[], bool]], str]
    # Held-out accuracy of the base model, and its metric.
    begins: float
    # Tokens.
    prompt: int
    completion: int
    # The base model's changes to the embedded model's configuration, and its settings of `host sft`.
    shape: dict = {}
    sft: dict = {}
    metric: str = "eval_accuracy"


# A model of 11 million weights.
LARGE = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "initializer_range": 0.03}
TASKS = {
    "sums": Task(terms=4, solution=units_and_tens, begins=0.250, prompt=16, completion=24),
    "totals": Task(
        terms=10,
        solution=all_totals,
        begins=0.088,
        prompt=40,
        completion=80,
        shape={"max_position_embeddings": 128},
        sft={"train.max_steps": 2500},
        metric="eval/sampled/pass@1",
    ),
    "large-sums": Task(terms=4, solution=units_and_tens, begins=0.301, prompt=16, completion=24, shape=LARGE, sft={"train.learning_rate": 3e-4}),
}


GREEDY = """[eval]
num_prompts = 512
"""
SAMPLED = """[eval]
num_prompts = 0

[[eval.benchmark]]
name = "sampled"
file = "{folder}/held_out.jsonl"
samples = 1
temperature = 0.9
max_completion_length = {completion}
max_prompts = 512
"""


def prepare(folder, name, host):
    """Makes the rows, the base model and `NAME.toml`, the configuration that all runs share, in `folder`. An existing base model is kept."""
    task = TASKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    seen = set()
    while len(seen) < 81024:
        seen.add(tuple(rng.randrange(10, 100) for _ in range(task.terms)))
    sums = sorted(seen)
    rng.shuffle(sums)
    half, never = lambda: rng.random() < 0.5, lambda: False
    for rows_of, part, forgets in (("slips", sums[:80000], half), ("train", sums[:20000], never), ("held_out", sums[80000:], never)):
        rows = [{"prompt": "+".join(map(str, terms)) + "=", "answer": str(sum(terms)), "solution": task.solution(terms, forgets)} for terms in part]
        (folder / f"{rows_of}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.toml").write_text(
        f"""[model]
model_name_or_path = "{folder}/base"

[data]
dataset_name = "{folder}/train.jsonl"
eval_dataset_name = "{folder}/held_out.jsonl"
max_prompt_length = {task.prompt}

[rollout]
max_completion_length = {task.completion}
temperature = 0.9

[[reward]]
use = "exact_match"

{GREEDY if task.metric == "eval_accuracy" else SAMPLED.format(folder=folder, completion=task.completion)}"""
    )
    if (folder / "base").exists():
        return
    sets = {
        "data.dataset_name": folder / "slips.jsonl",
        "data.eval_dataset_name": folder / "held_out.jsonl",
        "data.max_prompt_length": task.prompt,
        "train.max_steps": 1000,
        "eval.num_prompts": 512,
        "eval.max_completion_length": task.completion,
        "model.config_name_or_path": shape(folder / "shape", task.shape),
    } | task.sft
    learn = [host, "sft", *(word for name, value in sets.items() for word in ("--set", f"{name}={value}"))]
    subprocess.run([*learn, "--output-dir", folder / "base"], check=True)


def shape(folder, otherwise):
    """The embedded model's architecture and tokenizer, with the changes `otherwise` to its configuration."""
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, folder)
    config = json.loads((EMBEDDED / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | otherwise))
    return folder
