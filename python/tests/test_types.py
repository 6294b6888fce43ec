"""Checks of the package's types with mypy."""

import os
import subprocess
import sys
from pathlib import Path

import capo_rl
import pytest

PROGRAM = """import numpy as np
import capo_rl
ids, logps = np.zeros((1, 2), np.int32), np.zeros((1, 2))
batch = capo_rl.Batch(ids, ids == 0, logps, optimizer=capo_rl.Optimizer("sgd", 0.1), progress=capo_rl.Progress(step=3))
token_mask, records = capo_rl.Mask("masks.probability-floor", min_probability=0.2)(batch.replace(advantages=logps))
step: int = batch.progress.step + int(token_mask.sum())
"""
#: A line, and its error.
WRONG = [
    ("batch.stepp", '"Batch" has no attribute "stepp"'),
    ("batch.progress.step = 4", 'Property "step" defined in "Progress" is read-only'),
    ('capo_rl.Optimizer("lion", 0.1)', 'Argument 1 to "Optimizer" has incompatible type'),
    ('capo_rl.Batch(ids, ids, logps, reduction="token_men")', 'Argument "reduction" to "Batch" has incompatible type'),
    ("capo_rl.Batch([1], ids, logps)", 'Argument 1 to "Batch" has incompatible type "list[int]"; expected "Array"'),
    ("capo_rl.LastLayer(hidden=logps)", 'Missing named argument "topk_ids" for "LastLayer"'),
]


def test_mypy_sees_every_argument_and_attribute(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed here")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "".join(f"{line}\n" for line, _ in WRONG))
    environment = {**os.environ, "MYPYPATH": str(Path(capo_rl.__file__).parents[1])}
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program], capture_output=True, text=True, env=environment
    )
    told = [line.partition("program.py:")[2] for line in checked.stdout.splitlines() if "program.py:" in line]
    first = PROGRAM.count("\n") + 1
    assert {int(line.split(":")[0]) for line in told} == set(range(first, first + len(WRONG))), checked.stdout
    for number, (_, what) in enumerate(WRONG, first):
        assert any(line.startswith(f"{number}: error: {what}") for line in told), (what, checked.stdout)
