"""Arrays on a CUDA device, which the emulator of the driver reads, and a GPU if there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CASES, REPLAY, TARGET

EMULATED = ["paper-token-sgd", "paper-token-adam", "authors-completion-adam"]


def emulator() -> Path:
    """The folder of the newest emulator that the repository's tests compiled with the kernels of the curvature model.

    The emulator's own tests compile other units, and some have the same name.
    """
    units = TARGET.glob("debug/deps/cuda-emulator/*/curvature.kernels.so")
    found = [path.parent for path in units if b"collect_supports" in path.read_bytes()]
    if not found:
        pytest.skip("the emulator of CUDA's driver is not compiled (cargo test --workspace --test suite -- cuda)")
    return max(found, key=lambda folder: folder.stat().st_mtime)


def replayed(folders: list[Path], **settings: str) -> str:
    """The output of `on_device.py` for these cases."""
    program = Path(__file__).with_name("on_device.py")
    run = subprocess.run([sys.executable, program, *folders], env=os.environ | settings, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("case", EMULATED)
def test_reads_arrays_on_an_emulated_device(case):
    # In the emulator, host code that reads the device's memory ends the process, and work is done late. torch must not see a real device.
    settings = {"CUDA_EMULATOR_STRICT": "1", "CUDA_EMULATOR_LATE": "1", "CUDA_VISIBLE_DEVICES": ""}
    said = replayed([REPLAY / case], LD_LIBRARY_PATH=str(emulator()), **settings)
    assert said == "the same on the device: 1, as arrays of the driver\n"


def test_reads_torch_tensors_on_a_gpu():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device for torch here")
    assert replayed([REPLAY / case for case in CASES]).endswith("as arrays of torch\n")
