"""Completions of several turns in TRL. Masks see only the model's tokens, whichever of TRL's loops wrote the others."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

from conftest import PLUGINS, tensors  # noqa: E402

LOOPS = ("tools", "environment", "rollout")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the program's runs."""
    folder, program = tmp_path_factory.mktemp("environments"), Path(__file__).with_name("tiny_trl_environments.py")
    ended = subprocess.run([sys.executable, str(program)], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


def run(folder, loop, way):
    return torch.load(folder / f"{loop}-{way}", weights_only=False)


def of_the_model(row, prompt, turns):
    """1 for each token of the row `[T]` that belongs to a turn of the model, whose beginning is the text before it."""
    found, place = np.zeros(len(row), np.uint8), 0
    while place < len(row):
        before = prompt + row[:place]
        said = [ids[: len(row) - place] for prefix, ids in turns if prefix == before]
        lengths = [len(ids) for ids in said if ids == row[place : place + len(ids)]]
        if lengths:
            found[place : place + max(lengths)] = 1
        place += max(lengths, default=1)
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_masks_see_only_the_models_tokens(folder, loop):
    saved, others = run(folder, loop, "masked"), 0
    assert len(saved["seen"]) == len(saved["rows"]) == 2, "one batch a step"
    for seen, rows in zip(saved["seen"], saved["rows"], strict=True):
        for row, mask in enumerate(seen["mask"].numpy()):
            prompt = rows["prompt_ids"][row][rows["prompt_mask"][row] == 1].tolist()
            whole = rows["completion_ids"][row][rows["completion_mask"][row] == 1].tolist()
            expected = of_the_model(whole, prompt, saved["turns"])
            assert np.array_equal(mask[: len(whole)], expected) and not mask[len(whole) :].any(), row
            assert np.array_equal(expected, rows["tool_mask"][row][: len(whole)]), row
            others += len(whole) - int(expected.sum())
    assert others > 200, "the rows have tokens of others"
    kept = sum(int(seen["token_mask"].sum()) for seen in saved["seen"])
    assert 0 < kept < sum(int(seen["mask"].sum()) for seen in saved["seen"])


@pytest.mark.parametrize("loop", LOOPS)
def test_without_a_mask_numbers_equal_trls(folder, loop):
    stock, ours = run(folder, loop, "stock"), ("capo/", "step_time", "train_")
    told = lambda saved: [{name: value for name, value in line.items() if not name.startswith(ours)} for line in json.loads(saved["log"])]
    assert all(line["grad_norm"] > 0 for line in told(stock)[:2])
    for way in ("unmasked", "ahead", "inflight"):
        found = run(folder, loop, way)
        assert told(found) == told(stock), way
        assert all(torch.equal(value, found["weights"][name]) for name, value in stock["weights"].items()), way


@pytest.mark.parametrize("loop", LOOPS)
def test_host_decides_the_same_on_the_recorded_batch(host, folder, loop, tmp_path):
    config = tmp_path / "mask.toml"
    config.write_text('[[mask]]\nuse = "capo.curvature"\nfisher_threshold = 1.25e-3\nhessian_threshold = false\nthreads = 1\n')
    files = [folder / f"{loop}-masked.{step}.safetensors" for step in range(2)]
    command = [host, "replay", "--plugin", PLUGINS / "libcapo.so", "--config", config, "--out", tmp_path / "out", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for file, seen in zip(files, run(folder, loop, "masked")["seen"], strict=True):
        replayed = tensors(tmp_path / "out" / file.name)
        assert np.array_equal(replayed["token_mask"], seen["token_mask"].numpy())
        for name in ("m_f", "m_h", "kl"):
            assert replayed[f"capo.curvature/{name}"].tobytes() == seen["records"][f"capo.curvature/{name}"].tobytes(), name
