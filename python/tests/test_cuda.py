"""Arrays on a CUDA device: read there by the emulator of the driver, and by a GPU where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import flat

from conftest import CASES, REPLAY, TARGET, batches, changed, mask_of

EMULATED = ["paper-token-sgd", "paper-token-adam", "authors-completion-adam"]


def emulator() -> Path:
    """The folder of the newest emulator that the repository's tests have compiled with the curvature's kernels.

    The emulator's own tests compile other units, some of them of the same name.
    """
    units = TARGET.glob("debug/deps/cuda-emulator/*/curvature.kernels.so")
    found = [path.parent for path in units if b"collect_supports" in path.read_bytes()]
    if not found:
        pytest.skip("the emulator of CUDA's driver is not compiled (cargo test --workspace --test suite -- cuda)")
    return max(found, key=lambda folder: folder.stat().st_mtime)


@pytest.mark.parametrize("case", EMULATED)
def test_arrays_on_an_emulated_device(case):
    # Host code that reads the device's memory ends the process, and work is late.
    settings = {"CUDA_EMULATOR_STRICT": "1", "CUDA_EMULATOR_LATE": "1"}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(emulator()), **settings}
    program = Path(__file__).with_name("emulated.py")
    run = subprocess.run([sys.executable, program, REPLAY / case], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and "the same on the device" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("case", CASES)
def test_torch_tensors_on_a_gpu(case):
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device for torch here")
    here, there = mask_of(case), mask_of(case)
    for path in batches(case):
        batch = capo_rl.load_batch(path)
        arrays = {name: value for name, value in flat(batch).items() if isinstance(value, np.ndarray)}
        signed = {name: value.view(np.int32) if value.dtype == np.uint32 else value for name, value in arrays.items()}
        moved = {name: torch.from_numpy(value).cuda() for name, value in signed.items()}
        lent = changed(batch, **moved, stream=torch.cuda.current_stream().cuda_stream)
        assert "hidden" not in lent.copies
        keep, expected = here(batch)
        found, records = there(lent)
        assert np.array_equal(found, keep)
        for name in ("m_f", "m_h"):
            one, other = records[f"capo.curvature/{name}"], expected[f"capo.curvature/{name}"]
            assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max(), name
        here.step_end(batch, keep, bool(keep.any()))
        there.step_end(lent, moved["completion_mask"] * torch.from_numpy(found).cuda(), bool(keep.any()))
