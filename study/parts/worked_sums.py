"""The study's second task for the embedded model's architecture: the sum of four numbers of two digits.

Prompt `85+72+79+38=`, solution `24 27=274`: the sum of the units, the sum of the tens with the carry, the answer. The base model learns
from 80,000 solutions that forget half of their carries, by `host sft` with its defaults. The reward is 1 where the answer is exact.
"""

import json
import random
import subprocess

# Held-out accuracy of the base model.
BEGINS = 0.250


def worked(terms, forgets):
    units = sum(term % 10 for term in terms)
    carry = 0 if units >= 10 and forgets() else units // 10
    tens = sum(term // 10 for term in terms) + carry
    return f"{units} {tens}={tens * 10 + units % 10}"


def prepare(folder, host):
    """Rows, the base model and `sums.toml`, the file that all runs begin with, below `folder`; a base model that lies there is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    seen = set()
    while len(seen) < 81024:
        seen.add(tuple(rng.randrange(10, 100) for _ in range(4)))
    sums = sorted(seen)
    rng.shuffle(sums)
    half, never = lambda: rng.random() < 0.5, lambda: False
    for name, part, forgets in (("slips", sums[:80000], half), ("train", sums[:20000], never), ("held_out", sums[80000:], never)):
        rows = [{"prompt": "+".join(map(str, terms)) + "=", "answer": str(sum(terms)), "solution": worked(terms, forgets)} for terms in part]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.toml").write_text(
        f"""[model]
model_name_or_path = "{folder}/base"

[data]
dataset_name = "{folder}/train.jsonl"
eval_dataset_name = "{folder}/held_out.jsonl"
max_prompt_length = 16

[rollout]
max_completion_length = 24
temperature = 0.9

[eval]
num_prompts = 512

[[reward]]
use = "exact_match"
"""
    )
    if not (folder / "base").exists():
        sets = {"data.dataset_name": folder / "slips.jsonl", "data.eval_dataset_name": folder / "held_out.jsonl", "eval.num_prompts": 512}
        learn = [host, "sft", *(word for name, value in sets.items() for word in ("--set", f"{name}={value}"))]
        subprocess.run([*learn, "--output-dir", folder / "base"], check=True)
