"""The arrays of a batch are read in place, copied if the ABI has another dtype, or refused."""

import ctypes

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import flat

from conftest import layer, small


def addresses(batch):
    return {name: address for name, address, _ in batch._native.slots()}


def test_reads_numpy_arrays_in_place():
    batch = small(**layer(), old_logps=np.zeros((2, 3), np.float32))
    assert batch.copies == {}
    for name, address in addresses(batch).items():
        if isinstance(flat(batch)[name], np.ndarray):
            assert address == flat(batch)[name].ctypes.data, name
    assert batch.shape == (2, 3) and batch.inputs == {"LAST_LAYER", "OLD_LOGPS"}


def test_copies_arrays_to_host_memory_together():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    from capo_rl._step import on_host

    arrays = {"mask": torch.tensor([[1, 0, 1]], dtype=torch.uint8), "logps": torch.randn(1, 3)}
    arrays |= {"turned": torch.randn(3, 2).T, "rows": torch.arange(5)}
    arrays |= {"none": torch.zeros(0, 3), "half": torch.randn(1, 3).bfloat16()}
    found = on_host(arrays)
    assert {name: array.dtype for name, array in found.items()} == {name: array.dtype for name, array in arrays.items()}
    assert all(torch.equal(found[name], array) for name, array in arrays.items())
    assert on_host({}) == {}


def test_reads_torch_tensors_in_place():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    ids = torch.tensor([[1, 2, 3], [3, 2, 0]], dtype=torch.int32)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    hidden = torch.randn(2, 3, 4)
    topk_ids = torch.tensor([[[1, 2]] * 3] * 2, dtype=torch.int32)
    batch = small(**layer(hidden=hidden, topk_ids=topk_ids), completion_ids=ids, completion_mask=mask)
    assert batch.copies == {}
    for name, tensor in [("completion_ids", ids), ("completion_mask", mask), ("hidden", hidden), ("topk_ids", topk_ids)]:
        assert addresses(batch)[name] == tensor.data_ptr(), name


def test_reads_arrays_when_a_component_is_called(made_of):
    batch = made_of(small())
    mask = capo_rl.Mask("masks.probability-floor", min_probability=0.2)
    assert mask(batch)[0].tolist() == [[1, 1, 0], [0, 0, 0]]
    batch.logps[0, 0] = -3.0
    assert mask(batch)[0].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_warns_about_copies():
    wide = np.zeros((2, 3, 8), np.float32)[:, :, ::2]
    batch = small(
        **layer(hidden=wide),
        completion_ids=np.array([[1, 2, 3], [3, 2, 0]], np.int64),
        completion_mask=np.array([[1, 1, 1], [1, 1, 0]], np.int64),
        logps=np.zeros((2, 3)),
        advantages=np.array([1, -1], np.float32),
    )
    assert batch.copies == {"completion_ids": 24, "completion_mask": 6, "logps": 24, "advantages": 24, "hidden": 96}


def test_converts_bfloat16_in_host_memory_to_float32():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    arrays, mask = layer(), capo_rl.Mask("capo.curvature", optimizer="sgd", fisher_threshold=1e-3, hessian_threshold=1e-2)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = torch.from_numpy(arrays["hidden"]).to(dtype)
        batch = small(**{**arrays, "hidden": rounded})
        assert batch.copies == {"hidden": 96}
        token_mask, records = mask(batch)
        again, expected = mask(small(**{**arrays, "hidden": rounded.float()}))
        assert np.array_equal(token_mask, again)
        assert records["capo.curvature/m_f"].tobytes() == expected["capo.curvature/m_f"].tobytes()


def test_follows_strides():
    arrays = layer()
    turned = np.asfortranarray(arrays["hidden"])
    mask = capo_rl.Mask("capo.curvature", optimizer="sgd", fisher_threshold=1e-3, hessian_threshold=1e-2)
    _, expected = mask(small(**arrays))
    _, found = mask(small(**{**arrays, "hidden": turned, "logsumexp": np.broadcast_to(np.float32(2.5), (2, 3))}))
    assert found["capo.curvature/m_h"].tobytes() == expected["capo.curvature/m_h"].tobytes()


def test_expands_advantages_per_completion_to_tokens(tmp_path):
    batch = small(advantages=np.array([0.5, -2], np.float32))
    capo_rl.save_batch(tmp_path / "batch.safetensors", batch)
    spread = capo_rl.load_batch(tmp_path / "batch.safetensors").advantages
    assert spread.tolist() == [[0.5, 0.5, 0.5], [-2, -2, 0]]


def test_arguments_are_attributes():
    batch = small(step=3)
    assert (batch.progress.step, batch.group_size, batch.entropy, batch.optimizer.kind) == (3, 2, None, "sgd")
    assert repr(batch) == "Batch(2 completions of 3 tokens, step 3)"
    with pytest.raises(AttributeError, match="cannot assign to field 'step'"):
        batch.progress.step = 4
    later = batch.replace(progress=capo_rl.Progress(step=4), advantages=None)
    assert (later.progress.step, later.group_size, later.advantages, batch.progress.step) == (4, 2, None, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepp'"):
        batch.replace(stepp=4)


REFUSED = [
    ({"logps": [[0.0]]}, TypeError, "`logps` is of type `list`, which has no `__dlpack__` (give a torch, numpy, cupy or jax array)"),
    ({"logps": None}, ValueError, "`logps` is missing (it is an array of shape [2, 3])"),
    ({"logps": np.zeros((2, 4), np.float32)}, ValueError, "`logps` has shape [2, 4] (it must be [2, 3])"),
    ({"logps": np.zeros((2, 3), np.int64)}, ValueError, "`logps` is of type i64 (it must be f32, f64, f16 or bf16)"),
    (
        {"completion_ids": np.zeros(3, np.uint32)},
        ValueError,
        "`completion_ids` has shape [3] (it must be [B, T]: completions and tokens, at least one of each)",
    ),
    ({"completion_ids": np.zeros((2, 3), np.float32)}, ValueError, "`completion_ids` is of type f32 (it must be integers or booleans)"),
    ({"completion_ids": np.full((2, 3), -100, np.int64)}, ValueError, "`completion_ids` holds -100, which is no token id"),
    ({"completion_ids": np.full((2, 3), -1, np.int32)}, ValueError, "`completion_ids` holds -1, which is no token id"),
    ({"completion_mask": np.full((2, 3), 2, np.uint8)}, ValueError, "`completion_mask` holds 2 (entries are 0 or 1)"),
    ({"advantages": np.zeros(3, np.float32)}, ValueError, "`advantages` has shape [3] (it must be [2, 3])"),
    ({"rewards": np.zeros(3, np.float32)}, ValueError, "`rewards` has shape [3] (it must be [2])"),
    ({"group_size": 3}, ValueError, "`group_size` 3 does not divide the 2 completions"),
    ({"group_size": "2"}, TypeError, "`group_size` is 2: 'str' object cannot be interpreted as an integer"),
    ({"losses": np.zeros((2, 3), np.float32), "dloss_dlogp": None}, ValueError, "`losses` and `dloss_dlogp` belong together (give both, or neither)"),
    ({"reduction": "token_men"}, ValueError, "`reduction` is `token_men` (did you mean `token_mean`?)"),
    ({"optimizer": 3}, TypeError, "`optimizer` is 3 (it must be a `capo_rl.Optimizer`)"),
    ({"progress": {"step": 1}}, TypeError, "`progress` is {'step': 1} (it must be a `capo_rl.Progress`)"),
    ({"progress": None}, TypeError, "`progress` is None (it must be a `capo_rl.Progress`)"),
    ({"optimizer": {"kind": "lion", "learning_rate": 1.0}}, ValueError, "`kind` is `lion` (known: `sgd`, `adam`, `adamw`, `adamw_kept_and_rejected`)"),
    ({"optimizer": {"kind": "adamw", "learning_rate": float("nan")}}, ValueError, "`learning_rate` of its optimizer is NaN (it must be 0 or more and finite)"),
    ({"loss_temperature": 0.0}, ValueError, "`loss_temperature` is 0 (it must be above 0 and finite)"),
    ({"max_completion_length": 2}, ValueError, "`max_completion_length` is 2, but completions have up to 3 tokens"),
    (layer(hidden=np.zeros((2, 4, 4), np.float32)), ValueError, "`hidden` has shape [2, 4, 4] (it must be [2, 3, any])"),
    (layer(topk_logits=np.zeros((2, 3, 3), np.float32)), ValueError, "`topk_logits` has shape [2, 3, 3] (it must be [2, 3, 2])"),
    (layer(topk_logits=None), TypeError, "`topk_logits` is missing (it is an array)"),
    (layer(topk_ids=np.full((2, 3, 2), 5, np.uint32)), ValueError, "`topk_ids` holds 5, `vocab_size` is 5"),
    (layer(vocab_size=None), TypeError, "`vocab_size` is missing (V: number of vocabulary entries)"),
    (
        {**layer(), "weight": np.zeros((5, 4), np.float32), "exp_avg": np.zeros((5, 4), np.float32), "exp_avg_sq": np.zeros((5, 3), np.float32)},
        ValueError,
        "`exp_avg_sq` has shape [5, 3] (it must be [5, 4])",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "sentence"), REFUSED)
def test_refuses_wrong_arrays(changes, kind, sentence):
    with pytest.raises(kind) as refused:
        small(**changes)
    assert str(refused.value).startswith(sentence)


def test_refuses_tensors_with_a_graph():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    with pytest.raises(ValueError, match="`logps` cannot be lent: Can't export tensors that require gradient, use tensor.detach()"):
        small(logps=torch.zeros(2, 3, requires_grad=True))


class Elsewhere:
    """An array that names one device, and is lent as if it were on another."""

    def __init__(self, said, lent):
        self.said, self.lent = said, lent

    def __dlpack_device__(self):
        return self.said

    def __dlpack__(self, **arguments):
        return self.lent.__dlpack__()


def test_refuses_arrays_that_are_lent_on_another_device():
    hidden = layer()["hidden"]
    with pytest.raises(ValueError, match="`hidden` was asked for on `cuda:0`, and is lent on another device, of DLPack's kind 1 and number 0 "):
        small(**layer(hidden=Elsewhere((2, 0), hidden)))
    # An array that should be copied to the host, but stays on its device.
    with pytest.raises(ValueError, match="`logps` was asked for on `cpu`, and is lent on another device, of DLPack's kind 2 and number 1 "):
        small(logps=Elsewhere((2, 1), Capsules(1 << 20, 2, 1)))


class Capsules:
    """Lends an address on a device, by DLPack's number of the device. The memory must not be read."""

    def __init__(self, data, kind, number):
        self.place = (data, kind, number)

    def __dlpack__(self):
        tensor = Tensor(*self.place, 2, 2, 32, 1, (ctypes.c_int64 * 2)(2, 3), None, 0, None, None)
        self.kept = tensor
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(tensor), b"dltensor", None)


class Tensor(ctypes.Structure):
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


# `logps` is read in host memory, `logsumexp` on its device.
@pytest.mark.parametrize("name", ["logps", "logsumexp"])
@pytest.mark.parametrize("library", ["any", "torch", "a view of torch"])
def test_refuses_arrays_whose_memory_was_freed(name, library):
    if library == "any":
        array = Elsewhere((1, 0), Capsules(None, 1, 0))
    else:
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        rows = torch.zeros(4, 3)
        array = rows[2:] if library == "a view of torch" else rows[:2]
        rows.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=rf"`{name}` has shape \[2, 3\] and no memory on `cpu`: it was freed, .* \(give what is there: "):
        small(**layer(**{name: array}))
    with pytest.raises(ValueError, match="`token_mask` has shape .* and no memory"):
        capo_rl.Mask("masks.probability-floor", min_probability=0.2)(small(), token_mask=array)


@pytest.mark.parametrize("name", ["logps", "old_logps", "advantages", "entropy"])
def test_refuses_nan_at_tokens(name):
    values = np.array([[-0.5, -1.0, -8.0], [-2.0, -9.0, np.nan]], np.float32)
    small(**{name: values})
    values[1, 1] = np.nan
    with pytest.raises(ValueError, match=f"`{name}` is NaN at completion 1, token 1 \\(it must be a number where `completion_mask` is 1\\)"):
        small(**{name: values})
