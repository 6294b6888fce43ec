"""KL divergences between the policies before and after a step, which hardly differ."""

from __future__ import annotations

import torch
from torch import Tensor

#: Most entries of a tensor `[tokens, V]` that exist at a time.
LOGITS = 1 << 24


def kl_of_change(logits: Tensor, change: Tensor) -> Tensor:
    """KL divergence of the policy with `logits` `[..., V]` to the one with `logits + change`, in nats, `[...]`.

    It is computed in 64 bits, by a formula without cancellation near 0.
    """
    logps, change = logits.double().log_softmax(-1), change.double()
    change = change - (logps.exp() * change).sum(-1, keepdim=True)
    return (logps.exp() * (change.expm1() - change)).sum(-1).log1p()


@torch.no_grad()
def divergence(old: Tensor, new: Tensor, head: Tensor, new_head: Tensor | None, temperature: float) -> Tensor:
    """The sum over N tokens of the KL divergence between two policies, nats.

    Args:
        old: Features of the policy before the step, `[N, D]`.
        new: Features of the policy after the step, `[N, D]`.
        head: Last layer before the step, `[V, D]`.
        new_head: Last layer after the step, `[V, D]`; `None` if it did not change.
        temperature: Divisor of the logits.
    """
    total = torch.zeros((), dtype=torch.float64, device=old.device)
    rows = max(1, LOGITS // head.shape[0])
    after = head if new_head is None else new_head
    by_head = None if new_head is None else new_head - head
    for features, others in zip(old.to(head.dtype).split(rows), new.to(head.dtype).split(rows), strict=True):
        # A product of differences is more precise than a difference of products.
        change = (others - features) @ after.T
        if by_head is not None:
            change = change + features @ by_head.T
        total += kl_of_change((features @ head.T) / temperature, change / temperature).sum()
    return total
