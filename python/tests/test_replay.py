"""Recorded batches give the same bits in the package as in ``host replay``, with the arrays of any library."""

import subprocess

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import flat

from conftest import CASES, PLUGINS, REPLAY, batches, mask_of, metadata, tensors


def through_host(host, case, out):
    """The files that ``host replay`` writes for a case with the library in the package."""
    arguments = ["--plugin", PLUGINS / "libcapo.so", "--config", REPLAY / case / "mask.toml", "--out", out]
    subprocess.run([host, "replay", *arguments, *batches(case)], check=True, stdout=subprocess.DEVNULL)
    return [tensors(out / path.name) for path in batches(case)]


def assert_same(found, expected):
    """Asserts equal bits of every array; ``found`` may also have numbers."""
    arrays = {name for name, value in found.items() if isinstance(value, np.ndarray)}
    assert arrays == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape, name
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("case", CASES)
def test_replays_as_host_does(host, case, tmp_path):
    expected = through_host(host, case, tmp_path / "host")
    config = REPLAY / case / "mask.toml"
    found = capo_rl.replay(batches(case), config=config, plugin="libcapo.so", out=tmp_path / "package")
    for path, one, other in zip(batches(case), found, expected, strict=True):
        assert_same(one, other)
        assert_same(tensors(tmp_path / "package" / path.name), other)
        assert metadata(tmp_path / "package" / path.name) == metadata(tmp_path / "host" / path.name)


@pytest.mark.parametrize("case", CASES)
def test_a_mask_decides_as_host_does(host, case, made_of, tmp_path):
    mask = mask_of(case)
    for path, expected in zip(batches(case), through_host(host, case, tmp_path / "host"), strict=True):
        batch = made_of(capo_rl.load_batch(path))
        token_mask, records = mask(batch)
        assert_same({"token_mask": token_mask, **records}, expected)
        mask.step_end(batch, token_mask, bool(token_mask.any()))


@pytest.mark.parametrize("case", CASES)
def test_decisions_equal_the_reference(case, made_of):
    mask = mask_of(case)
    for path in batches(case):
        batch = made_of(capo_rl.load_batch(path))
        token_mask, records = mask(batch)
        expected = tensors(path.with_name(path.name.replace("batch", "expected")))
        # The reference data use an older name for `token_mask`.
        assert np.array_equal(token_mask, expected["keep"])
        for name in ("m_f", "m_h"):
            found, wanted = records[f"capo.curvature/{name}"], expected[name]
            assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max(), name
        mask.step_end(batch, token_mask, bool(token_mask.any()))


def test_uses_the_plugins_recipe_without_a_config():
    [found] = capo_rl.replay(batches("paper-token-sgd")[0], plugin="libcapo.so")
    assert found["token_mask"].shape == (8, 12) and "capo.curvature/m_f" in found
    with pytest.raises(capo_rl.CapoError, match="the plugins carry . recipes"):
        capo_rl.replay(batches("paper-token-sgd")[0])


def test_writes_a_batch_as_it_was_read(tmp_path):
    for path in batches("paper-token-adam"):
        batch = capo_rl.load_batch(path)
        capo_rl.save_batch(tmp_path / "again.safetensors", batch.replace())
        again = capo_rl.load_batch(tmp_path / "again.safetensors")
        for name, value in flat(batch).items():
            same = np.array_equal if isinstance(value, np.ndarray) else lambda a, b: a == b
            assert same(flat(again)[name], value), name


def test_refuses_files_that_cannot_be_replayed(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot read `.*missing.safetensors`"):
        capo_rl.load_batch(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("no batch")
    with pytest.raises(capo_rl.CapoError, match="`.*text.safetensors` is not a batch file: "):
        capo_rl.load_batch(tmp_path / "text.safetensors")
    (tmp_path / "none.toml").write_text("")
    with pytest.raises(capo_rl.CapoError, match="there is no mask to replay"):
        capo_rl.replay(batches("paper-token-sgd"), config=tmp_path / "none.toml", plugin="libcapo.so")
    with pytest.raises(ValueError, match="`dtype` is `f8` \\(known: `f32`, `bf16`, `f16`\\)"):
        capo_rl.replay(batches("paper-token-sgd"), plugin="libcapo.so", dtype="f8")
