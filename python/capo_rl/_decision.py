"""Decisions of masks and weights over one batch, how they reach a loss in torch, and the states of components in its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from . import Batch, Mask, Weight
from ._metrics import named, reports
from .components import Collective, Component


@dataclass
class Decision:
    """Of the tokens in ``mask``: ``keep`` is uint8 ``[B, T]``, ``weights`` float32 ``[B, T]`` and 0 where ``keep`` is, ``rows`` ``[B]`` the numbers of its completions where there are such; all where the
    trainer's arrays are."""

    batch: Batch
    mask: Tensor
    keep: Tensor
    weights: Tensor
    records: dict = field(default_factory=dict)
    rows: Optional[Tensor] = None


def decide(batch: Batch, mask: Tensor, masks: Sequence[Mask], weights: Sequence[Weight]) -> Decision:
    """Shows ``batch`` to the masks, in their order, and then to the weights, which multiply; ``mask`` ``[B, T]`` are the tokens of completions."""
    # The batch may have it in host memory already, without another wait for the device.
    keep, records = torch.as_tensor(batch.completion_mask).cpu(), {}
    tokens = max(int(keep.sum()), 1)
    for name, each in named(masks):
        before = int(keep.sum())
        keep, told = each(batch, keep=keep)
        records |= reports(name, each, told, {"rejection_rate": (before - int(keep.sum())) / tokens})
    keep = torch.as_tensor(keep)
    given = keep.float()
    for name, each in named(weights):
        one, told = each(batch, keep)
        records |= reports(name, each, told, {"mean": float(one.sum()) / max(int(keep.sum()), 1)})
        given = given * torch.as_tensor(one)
    keep = keep * (given > 0).to(keep.dtype)
    kept = keep.to(mask.device)
    return Decision(batch, mask, kept, given.to(mask.device) if weights else kept.float(), records)


def step_end(decision: Decision, masks: Iterable[Mask], weights: Iterable[Weight], taken: bool, collective: Optional[Collective] = None) -> None:
    """Tells all of them that the optimizer's step is over; with a ``collective``, the decision is of this rank's completions."""
    for each in masks:
        each.step_end(decision.batch, decision.keep.cpu(), taken, collective)
    for each in weights:
        each.step_end(decision.batch, decision.weights.cpu(), taken, collective)


def gradient_factor(mask: Tensor, keep: Tensor, weights: Tensor, reduction: str, denominator: str) -> Tensor:
    """``[B, T]``: what each token's gradient is multiplied with, so that a loss reduced over ``mask`` is as if masked and weighted.

    With the denominator ``kept`` the tokens that stay weigh more, over their completion or, where all tokens share one denominator (``token_mean``), over the
    batch. 1 less this is the factor of what was rejected.
    """
    if denominator == "original" or reduction in ("fixed_length", "completion_sum"):
        return weights
    counts = (mask.sum(1, keepdim=True), keep.sum(1, keepdim=True)) if reduction == "completion_mean" else (mask.sum(), keep.sum())
    return weights * (counts[0] / counts[1].clamp(min=1)).float()


def scale_gradient(value: Optional[Tensor], factor: Tensor) -> None:
    """Multiplies the gradient that reaches ``value`` with ``factor``; where that is 0 it is 0, whatever it was."""
    if value is not None and value.requires_grad:
        value.register_hook(lambda grad: torch.where(factor == 0, 0.0, grad * factor).to(grad.dtype))


def states(components: Iterable[Component]) -> list[tuple[str, Tensor]]:
    """Ids and states, as numbers: `torch.load` takes no bytes without unpickling whatever is there."""
    return [(each.id, torch.from_numpy(np.frombuffer(each.state_dict()["state"], np.uint8).copy())) for each in components]


def load_states(components: Iterable[Component], saved: Iterable[tuple[str, Tensor]]) -> None:
    """Takes up what `states` gave of components with the same ids."""
    for each, (component, state) in zip(components, saved, strict=True):
        each.load_state_dict({"component": component, "state": state.cpu().numpy().tobytes()})


def load_checked(path: Path, saved: Optional[dict[str, Any]], components: Sequence[Component], second_moment: str) -> None:
    """Takes up what a trainer wrote to ``path``: its components' `states` under ``components``, and ``second_moment``.

    Raises:
        ValueError: For a checkpoint without it, and for one of other components or of another second moment.
    """
    if saved is None:
        raise ValueError(f"`{path}` is missing: this checkpoint was made without components (go on without any, or start anew)")
    theirs, own = [component for component, _ in saved["components"]], [each.id for each in components]
    if theirs != own:
        raise ValueError(f"`{path}` holds the state of {theirs}, and this trainer has {own} (give it the same masks, weights and step controls)")
    if saved["second_moment"] != second_moment:
        raise ValueError(f"`{path}` was made with second_moment {saved['second_moment']!r}, and this trainer has {second_moment!r} (give it the same)")
    load_states(components, saved["components"])
