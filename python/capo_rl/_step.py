"""The batch of one optimizer step in torch: what masks read of the last layer, and rows of micro-batches and ranks."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

#: Rows of the vocabulary's logits are [CHUNK, V] at a time.
CHUNK = 1024

#: Arrays `[B, T, ...]` and `[B]` by name.
Arrays = dict[str, Tensor]


def whole(array: Tensor) -> Tensor:
    """A tensor gathered from all ranks, if it is spread over them (a DTensor of FSDP2)."""
    return array.full_tensor() if hasattr(array, "full_tensor") else array


def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this rank holds."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def on_host(arrays: Arrays) -> Arrays:
    """The arrays in host memory. They are copied together, because each copy waits for the device."""
    if not arrays:
        return {}
    # Wider numbers come first, so that each array begins at a multiple of its numbers' size.
    names = sorted(arrays, key=lambda name: -arrays[name].element_size())
    data = torch.cat([arrays[name].contiguous().view(-1).view(torch.uint8) for name in names]).cpu()
    parts = data.split([arrays[name].nbytes for name in names])
    found = zip(names, parts, strict=True)
    return {name: part.view(arrays[name].dtype).view(arrays[name].shape) for name, part in found}


def received(array: Tensor, gathered: Tensor) -> int:
    """How many bytes of `gathered` came from other ranks; `array` is this rank's part of it."""
    return gathered.nbytes - array.to_local().nbytes if hasattr(array, "to_local") else 0


def reshard(model: Any) -> None:
    """Splits parameters into the pieces of FSDP2 again, which the next forward pass gathers.

    Otherwise FSDP2 keeps its root's gathered parameters until a backward pass.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


@torch.no_grad()
def top_rows(hidden: Tensor, weight: Tensor, ids: Tensor, k: int, temperature: float) -> Arrays:
    """The last layer as masks see it, without holding all logits at once.

    Args:
        hidden: `[N, D]`: the features that go into the last layer.
        weight: `[V, D]`: its weight.
        ids: `[N]`: the sampled tokens.
        k: How many of the largest logits masks see; at most V of them.
        temperature: What logits are divided by in `logsumexp`.

    Returns:
        `topk_logits` and `topk_ids` `[N, K]`, `action_logits` and `logsumexp` `[N]`, float32 and int32.
    """
    k, parts = min(k, weight.shape[0]), []
    for rows, sampled in zip(hidden.split(CHUNK), ids.long().split(CHUNK), strict=True):
        logits = (rows @ weight.T).float()
        top = logits.topk(k)
        parts.append(
            (
                top.values,
                top.indices.int(),
                logits.gather(1, sampled[:, None])[:, 0],
                (logits / temperature).logsumexp(1),
            )
        )
    values, indices, action, logsumexp = (torch.cat(part) for part in zip(*parts, strict=True))
    return {"topk_logits": values, "topk_ids": indices, "action_logits": action, "logsumexp": logsumexp}


def joined(parts: list[Arrays]) -> Arrays:
    """Micro-batches one after another, padded with zeros to the longest.

    It empties `parts`, so that only one array at a time is in memory twice.
    """
    longest = max(array.shape[1] for part in parts for array in part.values() if array.dim() > 1)
    return {name: torch.cat([_padded(part.pop(name), longest) for part in parts]) for name in list(parts[0])}


def over_ranks(arrays: Arrays, group: dist.ProcessGroup | None = None) -> tuple[Arrays, int]:
    """The rows of all ranks, in the order of ranks, and how many bytes came from others.

    Ranks may have different numbers of rows and of tokens. With several ranks it empties `arrays`, as `joined` does.
    """
    if ranks(group) == 1:
        return arrays, 0
    some = next(array for array in arrays.values() if array.dim() > 1)
    sizes = _all(torch.tensor(some.shape[:2], device=some.device), group).tolist()
    most, longest = (max(size) for size in zip(*sizes, strict=True))
    found, received = {}, 0
    for name in list(arrays):
        every = _all(_padded(arrays.pop(name), longest, most), group)
        received += every[1:].nbytes
        found[name] = torch.cat([one[:rows] for one, (rows, _) in zip(every, sizes, strict=True)])
    return found, received


def ranks(group: dist.ProcessGroup | None = None) -> int:
    """How many processes there are; 1 where torch knows of none."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class Ranks:
    """The ranks of a run as a component's `Collective`; `device` is where the group's backend takes arrays."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._device, self._group = dist.get_rank(group), ranks(group), device, group
        #: Bytes that came from other ranks, as a ring has it.
        self.received = 0

    def all_reduce_sum(self, array: np.ndarray) -> None:
        there = torch.from_numpy(array).to(self._device)
        dist.all_reduce(there, group=self._group)
        array[:] = there.cpu().numpy()
        self.received += 2 * array.nbytes * (self.size - 1) // self.size

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        there = torch.from_numpy(array).to(self._device)
        lengths = _all(torch.tensor([len(array)], device=self._device), self._group)[:, 0].tolist()
        every = _all(torch.nn.functional.pad(there, [0, max(lengths) - len(array)]), self._group)
        self.received += every[1:].nbytes
        return [one[:length].cpu().numpy() for one, length in zip(every, lengths, strict=True)]


class Answer(enum.IntEnum):
    """What a step control does with a share of a step."""

    MEASURE = 0
    TAKE = 1


def agree(answer: Answer, share: float, device: torch.device) -> None:
    """Refuses answers of a step control that differ over ranks: weights would part, or ranks wait for one another.

    Args:
        answer: What the control does on this rank.
        share: The share of the step with which it does it.
        device: Where the ranks compare.

    Raises:
        ValueError: If ranks measure or take different shares of the step, because their batches differ.
    """
    if ranks() == 1:
        return
    answers = torch.tensor([share, answer, -share, -answer], dtype=torch.float64, device=device)
    dist.all_reduce(answers, dist.ReduceOp.MAX)
    most, last, least, first = (answers * answers.new_tensor([1, 1, -1, -1])).tolist()
    if most - least > 1e-6 * most or last != first:
        raise ValueError(
            f"ranks would take {least:.3g} to {most:.3g} of this step, so none of it is taken "
            "(give `batch` the rows of all ranks on each)"
        )


def _padded(array: Tensor, tokens: int, rows: int | None = None) -> Tensor:
    missing = [0, 0] * (array.dim() - 2) + [0, tokens - array.shape[1]] if array.dim() > 1 else []
    return torch.nn.functional.pad(array, [*missing, 0, (rows or len(array)) - len(array)])


def _all(array: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """`array` of each rank, `[ranks, ...]`; as bytes on the way, so that every type travels."""
    out = array.new_empty(ranks(group), *array.shape)
    if array.numel():
        dist.all_gather_into_tensor(
            out.view(-1).view(torch.uint8), array.contiguous().view(-1).view(torch.uint8), group=group
        )
    return out
