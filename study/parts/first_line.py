"""A reward program for `host`: 1 where the first line of a completion is the row's answer, else 0."""

import json
import sys

for line in sys.stdin:
    row = json.loads(line)
    first, *_ = row["completion"].strip(" ").split("\n")
    print(json.dumps({"id": row["id"], "reward": float(first.strip() == row["answer"])}), flush=True)
