"""Files of ``host`` that other programs read: TensorBoard reads event files, pyarrow reads completions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

STEPS = ["--set", "train.max_steps=6", "--set", "train.save_steps=2", "--set", "eval.num_prompts=8"]


def train(host: Path, folder: Path, *settings: str) -> Path:
    """A run that lost its last checkpoint and resumed from the one before."""
    run = folder / "run"
    given = [word for setting in settings for word in ("--set", setting)]
    start = [host, "train", "--output-dir", run, *STEPS, *given]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(run / "checkpoints/step-000006")
    subprocess.run([host, "train", "--resume", run], check=True, stdout=subprocess.DEVNULL)
    return run


def test_tensorboard_reads_the_numbers_of_metrics_jsonl(host, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(host, tmp_path, "logging.report_to=tensorboard")
    assert len(list(run.glob("events.out.tfevents.*"))) == 2
    events = accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    found = {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
    assert sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"]) == len(found), "each step once"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = {(name, line["step"]): value for line in lines for name, value in line.items() if name != "step" and value is not None}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-30)


def test_pyarrow_reads_completions(host, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    keys = ["log_completions=true", "log_tokens=true", "completions_format=parquet", "completions_steps=2"]
    run = train(host, tmp_path, *(f"logging.{key}" for key in keys))
    files = sorted((run / "completions").iterdir())
    assert [file.name for file in files] == [f"step-{step:06}.parquet" for step in (1, 3, 5)]
    for file in files:
        for row in parquet.read_table(file).to_pylist():
            text = "".join(piece or "" for piece in row["tokens/text"])
            assert text == row["completion"]
            assert len(row["tokens/logp"]) == len(row["tokens/id"]) > 0
            assert row["reward"] == row["rewards/exact_match"]
