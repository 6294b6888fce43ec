"""A second worked task for the embedded model's architecture: four numbers of two digits. Writes its rows and settings to FOLDER.

    python3 scripts/study_parts/worked_sums.py FOLDER
    host sft --set data.dataset_name=FOLDER/slips.jsonl --set data.eval_dataset_name=FOLDER/held_out.jsonl --set eval.num_prompts=512 --output-dir FOLDER/base
    host train --config FOLDER/sums.toml --set train.learning_rate=1e-5 --set train.max_steps=300 --set train.seed=31 \\
        --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set eval.eval_steps=20 --output-dir RUN

Prompt `85+72+79+38=`, solution `24 27=274`: the sum of the units, the sum of the tens with the carry, the answer. The solutions that
`host sft` teaches forget half of their carries.
"""

import json
import random
import sys
from pathlib import Path


def worked(terms, forgets):
    units = sum(term % 10 for term in terms)
    carry = 0 if units >= 10 and forgets() else units // 10
    tens = sum(term // 10 for term in terms) + carry
    return f"{units} {tens}={tens * 10 + units % 10}"


def main():
    folder = Path(sys.argv[1]).resolve()
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
    settings = f"""[model]
model_name_or_path = "{folder}/base"

[data]
dataset_name = "{folder}/train.jsonl"
eval_dataset_name = "{folder}/held_out.jsonl"
max_prompt_length = 16

[rollout]
num_generations = 8
max_completion_length = 24
temperature = 0.9

[train]
per_device_train_batch_size = 48

[eval]
num_prompts = 512

[[reward]]
use = "exact_match"
"""
    (folder / "sums.toml").write_text(settings)


if __name__ == "__main__":
    main()
