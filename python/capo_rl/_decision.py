"""Decisions of masks and weights over one batch, how they reach a loss in torch, and components in checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import Batch, Mask, Weight, deciding
from .components import Collective, Component, Records


@dataclass
class DecidedBatch:
    """A batch and the decision of masks and weights about it; all arrays lie where the trainer's arrays are.

    Attributes:
        batch: What they saw.
        mask: `[B, T]`: 1 for the tokens that were decided over.
        token_mask: `[B, T]`, uint8: 0 for each token to drop.
        weights: `[B, T]`, float32: 0 where `token_mask` is.
        records: What was reported.
        rows: `[B]`: the numbers of the completions, if the trainer numbers them.
    """

    batch: Batch
    mask: Tensor
    token_mask: Tensor
    weights: Tensor
    records: Records = field(default_factory=dict)
    rows: Tensor | None = None


def decide(batch: Batch, mask: Tensor, masks: Sequence[Mask], weights: Sequence[Weight]) -> DecidedBatch:
    """The decision of `capo_rl.decide` about `batch`, on the device of the trainer's arrays.

    Args:
        batch: What they see.
        mask: `[B, T]`: the tokens of completions, its `completion_mask`.
        masks: As for `capo_rl.decide`.
        weights: As for `capo_rl.decide`.
    """
    token_mask, product, records = deciding.decide(batch, masks, weights)
    there = torch.from_numpy(token_mask).to(mask.device), torch.from_numpy(product).to(mask.device)
    return DecidedBatch(batch, mask, *there, records)


def step_end(
    decision: DecidedBatch,
    masks: Iterable[Mask],
    weights: Iterable[Weight],
    taken: bool,
    collective: Collective | None = None,
) -> None:
    """Tells all of them that the optimizer's step is over.

    With a `collective`, the decision is of this rank's completions.
    """
    decided = deciding.Decision(decision.token_mask.cpu(), decision.weights.cpu(), decision.records)
    deciding.step_end(decision.batch, decided, masks, weights, taken, collective)


def gradient_factor(mask: Tensor, token_mask: Tensor, weights: Tensor, reduction: str, denominator: str) -> Tensor:
    """The factor of each token's gradient, `[B, T]`.

    With it, the gradient of a loss that is reduced over `mask` is that of the masked and weighted loss. With the
    denominator `kept` the tokens that stay weigh more: within their completion or, if all tokens share one denominator
    (`token_mean`), within the batch. What was rejected has 1 minus this factor.
    """
    if denominator == "original" or reduction in ("fixed_length", "completion_sum"):
        return weights
    tokens, kept = mask.sum(), token_mask.sum()
    if reduction == "completion_mean":
        tokens, kept = mask.sum(1, keepdim=True), token_mask.sum(1, keepdim=True)
    return weights * (tokens / kept.clamp(min=1)).float()


def scale_gradient(value: Tensor | None, factor: Tensor) -> None:
    """Multiplies the gradient that reaches `value` by `factor`. Where `factor` is 0, a NaN becomes 0 too."""
    if value is not None and value.requires_grad:

        def scaled(grad: Tensor) -> Tensor:
            return torch.where(factor == 0, 0.0, grad * factor).to(grad.dtype)

        value.register_hook(scaled)


def states(components: Iterable[Component]) -> list[tuple[str, Tensor]]:
    """Ids and states of components. States are tensors, because `torch.load` with `weights_only` takes no bytes."""
    return [
        (each.id, torch.from_numpy(np.frombuffer(each.state_dict()["state"], np.uint8).copy())) for each in components
    ]


def load_states(components: Iterable[Component], saved: Iterable[tuple[str, Tensor]]) -> None:
    """Takes up what `states` gave of components with the same ids."""
    for each, (component, state) in zip(components, saved, strict=True):
        each.load_state_dict({"component": component, "state": state.cpu().numpy().tobytes()})


def load_checked(path: Path, saved: dict[str, Any] | None, components: Sequence[Component], second_moment: str) -> None:
    """Takes up what a trainer wrote to `path`: its components' `states` under `components`, and `second_moment`.

    Raises:
        ValueError: For a checkpoint without it, and for one of other components or of another second moment.
    """
    if saved is None:
        raise ValueError(
            f"`{path}` is missing: this checkpoint was made without components (go on without any, or start anew)"
        )
    theirs, own = [component for component, _ in saved["components"]], [each.id for each in components]
    if theirs != own:
        raise ValueError(
            f"`{path}` holds the state of {theirs}, and this trainer has {own} "
            "(give it the same masks, weights and step controls)"
        )
    if (moment := saved["second_moment"]) != second_moment:
        raise ValueError(
            f"`{path}` was made with second_moment {moment!r}, and this trainer has {second_moment!r} "
            "(give it the same)"
        )
    load_states(components, saved["components"])
