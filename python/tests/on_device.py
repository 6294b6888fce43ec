"""Replays cases with arrays on a CUDA device, and compares the decisions with those in host memory: python on_device.py CASE ...

If torch sees a device, the arrays are torch's. Else they are made with the driver alone, which is the emulator's if
``LD_LIBRARY_PATH`` names it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import capo_rl
import numpy as np
from capo_rl.batch import flat, nested

try:
    import torch
except ImportError:
    torch = None

CUDA = ctypes.CDLL("libcuda.so.1")


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def call(name: str, *arguments) -> None:
    code = getattr(CUDA, name)(*arguments)
    assert code == 0, f"{name} gave {code}"


def start() -> None:
    """Makes the primary context of the first device current."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


class DeviceArray:
    """A copy of a numpy array on the first CUDA device, which is lent in the same way as torch's tensors."""

    CODES = {"f": 2, "u": 1, "i": 0}

    def __init__(self, values: np.ndarray, code: int | None = None) -> None:
        self.values = np.ascontiguousarray(values)
        self.streams: list[int] = []
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.values.nbytes))
        call("cuMemcpyHtoD_v2", address, self.values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(self.values.nbytes))
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        code = self.CODES[values.dtype.kind] if code is None else code
        self.tensor = DlTensor(address.value, 2, 0, values.ndim, code, 8 * values.itemsize, 1, self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int]):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def cpu(self) -> np.ndarray:
        return self.values


LARGE = ["hidden", "topk_ids", "topk_logits", "logsumexp", "action_logits"]


def on_device(batch: capo_rl.Batch, names=LARGE, stream: int = 0) -> capo_rl.Batch:
    """The batch with these arrays on the device."""
    fields = flat(batch)
    return nested(fields | {name: DeviceArray(fields[name]) for name in names} | {"stream": stream})


def drivers(batch: capo_rl.Batch, number: int) -> capo_rl.Batch:
    """The batch with its large arrays on the device, where they are read in place. Small arrays are copied to the host."""
    # The default stream, or the default stream of each thread.
    lent = on_device(batch, [*LARGE, "logps", "completion_mask"], stream=number % 2 * 2)
    assert lent.copies == {"logps": lent.logps.values.nbytes, "completion_mask": lent.completion_mask.values.nbytes}
    addresses = {name: address for name, address, _ in lent._native.slots()}
    for name in LARGE:
        assert addresses[name] == flat(lent)[name].tensor.data, name
        assert set(flat(lent)[name].streams) == {1}, "the default stream"
    return lent


def torchs(batch: capo_rl.Batch, number: int) -> capo_rl.Batch:
    """The batch with all its arrays as torch tensors on the device."""
    arrays = {name: value for name, value in flat(batch).items() if isinstance(value, np.ndarray)}
    signed = {name: value.view(np.int32) if value.dtype == np.uint32 else value for name, value in arrays.items()}
    moved = {name: torch.from_numpy(value).cuda() for name, value in signed.items()}
    lent = nested(flat(batch) | moved | {"stream": torch.cuda.current_stream().cuda_stream})
    assert "hidden" not in lent.copies
    return lent


def replay(folder: Path, lend) -> capo_rl.Batch:
    """Decides on a case's batches unchanged and as `lend` returns them, and compares the decisions. Returns the last batch."""
    lines = [line.split(" = ") for line in (folder / "mask.toml").read_text().splitlines() if " = " in line]
    keys = {key: json.loads(value) for key, value in lines}
    use = keys.pop("use")
    here, there = capo_rl.Mask(use, **keys), capo_rl.Mask(use, **keys)
    for number, path in enumerate(sorted(folder.glob("batch-*.safetensors"))):
        batch = capo_rl.load_batch(path)
        lent = lend(batch, number)
        token_mask, expected = here(batch)
        found, records = there(lent)
        assert np.array_equal(found, token_mask), path
        for name in ("m_f", "m_h"):
            one, other = records[f"{use}/{name}"], expected[f"{use}/{name}"]
            assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max(), name
        here.step_end(batch, token_mask, bool(token_mask.any()))
        there.step_end(lent, torch.from_numpy(found).cuda() if lend is torchs else found, bool(token_mask.any()))
    return batch


def refusals(batch: capo_rl.Batch) -> None:
    """Checks the errors for arrays that no component can read in place."""

    def refused(**changes) -> str:
        try:
            nested(flat(batch) | changes)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"{changes} were taken")

    hidden, ids = batch.last_layer.hidden, batch.last_layer.topk_ids
    assert refused(hidden=DeviceArray(hidden)).startswith("`hidden` lies on `cuda:0` and `topk_ids` on `cpu` (")
    all_but = {name: DeviceArray(getattr(batch.last_layer, name)) for name in LARGE}
    wide = refused(**{**all_but, "topk_ids": DeviceArray(ids.astype(np.int64))})
    assert wide == "`topk_ids` on `cuda:0` is of type i64 (it must be u32 or i32 there; `.int()` of torch makes it so)"
    doubled = refused(**{**all_but, "hidden": DeviceArray(hidden.astype(np.float64))})
    assert doubled == "`hidden` on `cuda:0` is of type f64 (it must be f32, f16 or bf16)"
    try:
        capo_rl.save_batch("never.safetensors", on_device(batch))
    except ValueError as error:
        assert str(error).startswith("`hidden` lies on `cuda:0`, and a batch file is written from host memory (")


def main(folders: list[Path]) -> None:
    start()
    lend = torchs if torch and torch.cuda.is_available() else drivers
    for folder in folders:
        batch = replay(folder, lend)
    refusals(batch)
    print(f"the same on the device: {len(folders)}, as arrays of {'torch' if lend is torchs else 'the driver'}")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
