"""A reward program for `host` that begins silent: `exact_match`, but no completion of the first N training steps gets a reward, and in the
next N steps only every eighth can. It is called as `silent.py N`. Held-out completions are graded as usual."""

import json
import sys

SILENT = int(sys.argv[1])

for line in sys.stdin:
    row = json.loads(line)
    right = not row["truncated"] and row["completion"].split("=")[-1].strip() == row["answer"].strip()
    heard = row["purpose"] == "evaluation" or row["step"] >= 2 * SILENT or row["step"] >= SILENT and row["id"] % 8 == row["step"] % 8
    print(json.dumps({"id": row["id"], "reward": float(right and heard)}), flush=True)
