"""What masks and weights make of one batch, and how that reaches a loss in torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from . import Batch, Mask, Weight


@dataclass
class Decision:
    """Of the tokens in ``mask``: ``keep`` is uint8 ``[B, T]``, ``weights`` float32 ``[B, T]`` and 0 where ``keep`` is; all where the trainer's arrays are."""

    batch: Batch
    mask: torch.Tensor
    keep: torch.Tensor
    weights: torch.Tensor
    records: dict


def decide(batch: Batch, mask: torch.Tensor, masks: Iterable[Mask], weights: Iterable[Weight]) -> Decision:
    """Shows ``batch`` to the masks, in their order, and then to the weights, which multiply; ``mask`` ``[B, T]`` are the tokens of completions."""
    keep, records = mask.cpu(), {}
    for each in masks:
        keep, told = each(batch, keep=keep)
        records |= told
    keep = torch.as_tensor(keep)
    given = keep.float()
    for each in weights:
        one, told = each(batch, keep)
        given = given * torch.as_tensor(one)
        records |= told
    keep = keep * (given > 0).to(keep.dtype)
    return Decision(batch, mask, keep.to(mask.device), given.to(mask.device), records)


def step_end(decision: Decision, masks: Iterable[Mask], weights: Iterable[Weight], taken: bool) -> None:
    """Tells all of them that the optimizer's step is over."""
    for each in masks:
        each.step_end(decision.batch, decision.keep.cpu(), taken)
    for each in weights:
        each.step_end(decision.batch, decision.weights.cpu(), taken)


def gradient_factor(mask, keep, weights, reduction, denominator):
    """``[B, T]``: what each token's gradient is multiplied with, so that a loss reduced over ``mask`` is as if masked and weighted.

    With the denominator ``kept`` the tokens that stay weigh more, over their completion or, where all tokens share one denominator (``token_mean``), over the
    batch. 1 less this is the factor of what was rejected.
    """
    if denominator == "original" or reduction == "fixed_length":
        return weights
    counts = (mask.sum(1, keepdim=True), keep.sum(1, keepdim=True)) if reduction == "completion_mean" else (mask.sum(), keep.sum())
    return weights * (counts[0] / counts[1].clamp(min=1)).float()


def scale_gradient(value, factor):
    """Multiplies the gradient that reaches ``value`` with ``factor``; where that is 0 it is 0, whatever it was."""
    if value is not None and value.requires_grad:
        value.register_hook(lambda grad: torch.where(factor == 0, 0.0, grad * factor).to(grad.dtype))
