"""A reward program for `host`: 1 if the first whole number of a completion is the row's answer, else 0."""

import json
import re
import sys

for line in sys.stdin:
    row = json.loads(line)
    found = re.search(r"-?\d+", row["completion"])
    right = found is not None and found.group() == row["answer"].strip()
    print(json.dumps({"id": row["id"], "reward": float(right)}), flush=True)
