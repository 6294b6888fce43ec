"""Responses of several turns in verl, whose `response_mask` is 0 on the tools' tokens. Masks see only the model's tokens, and `host` decides the same."""

import subprocess

import numpy as np
import pytest

from conftest import PLUGINS, tensors
from verl_runs import AHEAD, difference, kept, launch, rates, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, few = tmp_path_factory.mktemp("verl"), ("holes=1", "steps=2")
    runs = {"masked": (*few, AHEAD, "batches=seen"), "inflight": (*few, "mode=inflight"), "loose": (*few, AHEAD, "masks=loose"), "none": (*few, "masks=none")}
    launch(folder, *[word for name, words in runs.items() for word in ("--", name, *words)][1:])
    return folder


def in_some_order(rows):
    """Components see the rows of a group next to each other, which the data does not have."""
    return sorted(tuple(row) for row in rows.astype(int).tolist())


def test_masks_see_only_the_models_tokens(folder):
    """The second token of each response is a tool's answer. The first response has only tokens of the tool."""
    for step, rows in enumerate(saved(folder, "masked")["token_weights"]):
        mask = tensors(folder / f"seen.{step}.safetensors")["completion_mask"]
        lengths = (rows >= 0).sum(1).numpy()
        expected = np.arange(mask.shape[1]) < lengths[:, None]
        expected[:, 1] = expected[0] = False
        assert in_some_order(mask) == in_some_order(expected)
        assert not (rows.numpy()[:, : mask.shape[1]] > expected).any(), "and nothing else is kept"
    assert all(0 < rate < 1 for rate in rates(saved(folder, "masked")))


def test_in_flight_and_without_rejections(folder):
    assert kept(saved(folder, "inflight")) == kept(saved(folder, "masked")) and difference(saved(folder, "inflight"), saved(folder, "masked")) < 1e-5
    assert difference(saved(folder, "loose"), saved(folder, "none")) == 0, "verl's own numbers, to the bit"
    assert difference(saved(folder, "masked"), saved(folder, "none")) > 1e-4


def test_host_decides_the_same_on_the_recorded_batch(host, folder, tmp_path):
    config = tmp_path / "mask.toml"
    config.write_text('[[mask]]\nuse = "capo.curvature"\nfisher_threshold = 1.4e-3\nhessian_threshold = 3e-2\nthreads = 1\n')
    files = [folder / f"seen.{step}.safetensors" for step in range(2)]
    command = [host, "replay", "--plugin", PLUGINS / "libcapo.so", "--config", config, "--out", tmp_path / "out", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for file, rows in zip(files, saved(folder, "masked")["token_weights"], strict=True):
        found = tensors(tmp_path / "out" / file.name)["token_mask"]
        assert in_some_order(found) == in_some_order(np.maximum(rows.numpy(), 0)[:, : found.shape[1]])
