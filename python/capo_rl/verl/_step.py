"""The batch of an optimizer step out of micro-batches and ranks."""

from __future__ import annotations

import torch
from torch import Tensor

#: Rows of the vocabulary's logits are [CHUNK, V] at a time.
CHUNK = 1024

Arrays = dict[str, Tensor]


def top_rows(hidden: Tensor, weight: Tensor, ids: Tensor, k: int, temperature: float) -> Arrays:
    """What masks see of the last layer, of features ``[N, D]``, its weight ``[V, D]`` and the sampled tokens ``[N]``, without holding all logits at once."""
    k, parts = min(k, weight.shape[0]), []
    for rows, sampled in zip(hidden.split(CHUNK), ids.long().split(CHUNK), strict=True):
        logits = (rows @ weight.T).float()
        top = logits.topk(k)
        parts.append((top.values, top.indices.int(), logits.gather(1, sampled[:, None])[:, 0], (logits / temperature).logsumexp(1)))
    values, indices, action, logsumexp = (torch.cat(part) for part in zip(*parts, strict=True))
    return {"topk_logits": values, "topk_ids": indices, "action_logits": action, "logsumexp": logsumexp}


def gathered(parts: list[Arrays], group: "torch.distributed.ProcessGroup | None") -> Arrays:
    """Arrays ``[B, T, ...]`` and ``[B]`` over micro-batches and ranks, padded with zeros to the longest; ranks may have different numbers of rows."""
    longest = max(array.shape[1] for part in parts for array in part.values() if array.dim() > 1)
    whole = {name: torch.cat([_padded(part[name], longest) for part in parts]) for name in parts[0]}
    ranks = torch.distributed.get_world_size(group) if torch.distributed.is_initialized() else 1
    if ranks == 1:
        return whole
    some = next(iter(whole.values()))
    shape, shapes = some.new_tensor([len(some), longest], dtype=torch.int64), [some.new_empty(2, dtype=torch.int64) for _ in range(ranks)]
    torch.distributed.all_gather(shapes, shape, group=group)
    counts, lengths = zip(*(one.tolist() for one in shapes), strict=True)
    return {name: _across(_padded(array, max(lengths), max(counts)), counts, group) for name, array in whole.items()}


def _padded(array: Tensor, tokens: int, rows: int | None = None) -> Tensor:
    missing = [0, 0] * (array.dim() - 2) + [0, tokens - array.shape[1]] if array.dim() > 1 else []
    return torch.nn.functional.pad(array, [*missing, 0, (rows or len(array)) - len(array)])


def _across(array: Tensor, counts: tuple[int, ...], group: "torch.distributed.ProcessGroup | None") -> Tensor:
    every = [torch.empty_like(array) for _ in counts]
    torch.distributed.all_gather(every, array.contiguous(), group=group)
    return torch.cat([one[:count] for one, count in zip(every, counts, strict=True)])
