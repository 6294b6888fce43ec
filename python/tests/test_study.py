"""The programs of ``study/`` find the files that they need, and print the tables of the results in their folder."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("rates", "families", "long", "masks", "following", "auto", "sums", "tuning", "regret", "interplay", "map", "pretrained")


def test_prints_tables_of_the_results():
    only = [word for part in PARTS for word in ("--only", part)]
    command = [sys.executable, ROOT / "study/run", "--tables", *only, "--results", ROOT / "study/results.jsonl"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| governed-grpo, target auto |" in printed


def test_finds_scripts_of_the_pretrained_part():
    program = "from parts import pretrained as p; print(all((p.SCRIPTS / name).exists() for name in ('pretrained', 'reasoning_gym_data')))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT / "study", capture_output=True, text=True, check=True).stdout == "True\n"
