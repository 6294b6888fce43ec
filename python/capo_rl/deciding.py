"""The decision of all masks and weights about a batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._metrics import named, reports
from .batch import Batch
from .components import Collective, Component, Kind, Mask, Records, Weight, listed


def decide(
    batch: Batch,
    masks: Mask | Iterable[Mask] = (),
    weights: Weight | Iterable[Weight] = (),
    collective: Collective | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], Records]:
    """Applies masks in order and then weights in order, as `host` does in a step.

    Each sees the tokens that earlier masks and weights left. Weights multiply, and a weight of 0 drops a token as a
    mask does.

    Args:
        batch: The whole batch of the step; if all are `TOKEN_WISE`, it may be a part of the step.
        masks: One may stand alone, here and below.
        weights: They come after all masks.
        collective: Connects the ranks, for components that ask them.

    Returns:
        `token_mask`, uint8 `[B, T]`, 0 for each token to drop; the product of all weights, float32 `[B, T]`, 0 where `token_mask`
        is, and without weights 1 elsewhere; and what was reported, under `ID/name`, or `ID#2/name` for the second
        component of an id. Each mask has its `rejection_rate`, a share of all tokens, and each weight its `mean` over
        the tokens that reached it.

    Raises:
        TypeError: For an id in place of a component.
        ValueError: Where the batch lacks what a component reads.
        CapoError: With a component's own sentence, or where weights multiply to what is not finite.
    """
    all_masks, all_weights = _made(Mask, masks), _made(Weight, weights)
    natives = [mask._native for mask in all_masks], [weight._native for weight in all_weights]
    token_mask, product, of_masks, of_weights = _native.decide(batch._native, *natives, collective)
    records: Records = {}
    for (name, mask), (told, rejected) in zip(named(all_masks), of_masks, strict=True):
        records |= reports(name, mask, told, {"rejection_rate": rejected})
    for (name, weight), (told, mean) in zip(named(all_weights), of_weights, strict=True):
        records |= reports(name, weight, told, {"mean": mean})
    return token_mask, product, records


def _made(kind: type[Kind], given: Kind | Iterable[Kind]) -> list[Kind]:
    """The components of one kind; a new one for each call would forget what `step_end` told the one before.

    Raises:
        TypeError: For an id.
    """
    each_of = [given] if isinstance(given, (str, Component)) else list(given)
    for each in each_of:
        if isinstance(each, str):
            raise TypeError(f"`{each}` is an id (make `{kind.__name__}({each!r})` once, and give it at each step)")
    return listed(kind, each_of)
