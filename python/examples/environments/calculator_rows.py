#!/usr/bin/env python3
"""Writes rows for `host sft` from questions of reasoning_gym's `chain_sum`: a base that asks the environment `calculator` now and then, and else guesses.

    python3 python/examples/environments/calculator_rows.py data/sums/train.jsonl --out data/sums/sft.jsonl

One question in four is asked: a turn `361 - 220 - 607 =`, then, behind the environment's `-466=`, the turn `-466`. The answers to the others are off by up to 99.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

ASKED = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description="rows for `host sft` that ask a calculator now and then")
    parser.add_argument(
        "questions", type=Path, help="rows with `prompt` and `answer`, as scripts/reasoning_gym_data writes them"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the rows are written")
    options = parser.parse_args()
    draws, rows = random.Random(0), []
    for line in options.questions.read_text().splitlines():
        row = json.loads(line)
        question = [{"role": "user", "content": row["prompt"]}]
        expression = row["prompt"].rsplit(": ", 1)[1]
        if draws.random() < ASKED:
            asked = [
                *question,
                {"role": "assistant", "content": expression},
                {"role": "user", "content": f"{row['answer']}="},
            ]
            rows += [{"prompt": question, "solution": expression}, {"prompt": asked, "solution": row["answer"]}]
        else:
            rows.append({"prompt": question, "solution": str(int(row["answer"]) + draws.randint(-99, 99))})
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{options.out}: {len(rows)} rows")


if __name__ == "__main__":
    main()
