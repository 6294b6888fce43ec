"""The batch of one optimizer step in torch: what masks read of the last layer, and its rows over micro-batches and ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

# Rows of logits at a time: [CHUNK, V] is the largest array.
CHUNK = 1024


def whole(array: torch.Tensor) -> torch.Tensor:
    """What is spread over ranks (a DTensor of FSDP2), gathered."""
    return array.full_tensor() if hasattr(array, "full_tensor") else array


@torch.no_grad()
def top_rows(hidden, weight, ids, k, temperature):
    """The last layer's outputs of features ``hidden`` ``[N, D]``, where ``weight`` is ``[V, D]`` and ``ids`` ``[N]`` the sampled tokens.

    The K largest raw logits and their ids ``[N, K]``, the raw logit of each token ``[N]`` and the logsumexp at ``temperature`` ``[N]``.
    """
    k, parts = min(k, weight.shape[0]), []
    for start in range(0, hidden.shape[0], CHUNK):
        logits = (hidden[start : start + CHUNK] @ weight.T).float()
        top = logits.topk(k)
        action = logits.gather(1, ids[start : start + CHUNK, None].long())[:, 0]
        parts.append((top.values, top.indices.int(), action, (logits / temperature).logsumexp(1)))
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def gathered(parts, group=None):
    """The arrays of all micro-batches and of all ranks of ``group``, rows in the order of their numbers; and how many bytes came from other ranks.

    Each part has the same names; ``rows`` ``[B]`` are the numbers, ``completion_ids`` ``[B, T]`` says how long. Shorter parts are padded with zeros. Numbers of
    rows and of tokens may differ between ranks.
    """
    longest = max(part["completion_ids"].shape[1] for part in parts)
    mine = {name: torch.cat([_padded(part[name], longest) for part in parts]) for name in parts[0]}
    received = 0
    if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
        sizes = _all(torch.tensor([len(mine["rows"]), longest], device=mine["rows"].device), group).tolist()
        longest, most = max(tokens for _, tokens in sizes), max(rows for rows, _ in sizes)
        for name, array in mine.items():
            array = _padded(array, longest)
            array = torch.cat([array, array.new_zeros(most - len(array), *array.shape[1:])]) if len(array) < most else array
            all_ranks = _all(array, group)
            received += all_ranks[1:].nbytes
            mine[name] = torch.cat([rank[:rows] for rank, (rows, _) in zip(all_ranks, sizes, strict=True)])
    order = mine["rows"].argsort()
    return {name: array[order].contiguous() for name, array in mine.items()}, received


def _padded(array, longest):
    missing = longest - array.shape[1] if array.dim() > 1 else 0
    return torch.nn.functional.pad(array, [0, 0] * (array.dim() - 2) + [0, missing]) if missing else array


def _all(array, group):
    """``array`` of each rank, ``[ranks, …]``; as bytes on the way, so that every dtype travels."""
    out = array.new_empty(dist.get_world_size(group), *array.shape)
    if array.numel():
        dist.all_gather_into_tensor(out.view(-1).view(torch.uint8), array.contiguous().view(-1).view(torch.uint8), group=group)
    return out
