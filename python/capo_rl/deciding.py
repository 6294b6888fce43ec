"""The decision of all masks and weights about a batch, and the end of its step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _native
from ._metrics import named, reports
from .batch import Array, Batch
from .components import Collective, Component, Kind, Mask, Records, Weight, listed


class Decision(NamedTuple):
    """What masks and weights decided about a batch.

    Attributes:
        token_mask: uint8 `[B, T]`, 0 for each token to drop.
        weights: float32 `[B, T]`, the product of all weights: 0 where `token_mask` is, and without weights 1 elsewhere.
        records: What was reported, under `ID/name`, or `ID#2/name` for the second component of an id. Each mask has its
            `rejection_rate`, a share of all tokens, and each weight its `mean` over the tokens that reached it.
    """

    token_mask: Array
    weights: Array
    records: Records


def decide(
    batch: Batch,
    masks: Mask | Iterable[Mask] = (),
    weights: Weight | Iterable[Weight] = (),
    collective: Collective | None = None,
) -> Decision:
    """Applies masks in order and then weights in order, as `host` does in a step.

    Each sees the tokens that earlier masks and weights left. Weights multiply, and a weight of 0 drops a token as a
    mask does.

    Args:
        batch: The whole batch of the step; if all are `TOKEN_WISE`, it may be a part of the step.
        masks: One may stand alone, here and below.
        weights: They come after all masks.
        collective: Connects the ranks, for components that ask them.

    Raises:
        TypeError: For an id in place of a component.
        ValueError: Where the batch lacks what a component reads.
        CapoError: With a component's own sentence, or where weights multiply to what is not finite.
    """
    all_masks, all_weights = _made(Mask, masks), _made(Weight, weights)
    token_mask, product, of_masks, of_weights = _deciders(all_masks, all_weights).decide(batch._native, collective)
    records: Records = {}
    for (name, mask), (told, rejected) in zip(named(all_masks), of_masks, strict=True):
        records |= reports(name, mask, told, {"rejection_rate": rejected})
    for (name, weight), (told, mean) in zip(named(all_weights), of_weights, strict=True):
        records |= reports(name, weight, told, {"mean": mean})
    return Decision(token_mask, product, records)


def step_end(
    batch: Batch,
    decision: Decision,
    masks: Mask | Iterable[Mask] = (),
    weights: Weight | Iterable[Weight] = (),
    taken: bool = True,
    collective: Collective | None = None,
) -> Records:
    """Tells masks and weights that the step of `decision` is over, after the optimizer's step.

    Args:
        batch: The whole batch of the step, or with a `collective` this rank's part of it.
        decision: What `decide` gave.
        masks: Those that decided.
        weights: Those that decided.
        taken: False if the optimizer did not step.
        collective: Connects the ranks, for components that ask them.

    Returns:
        What they reported, under the names that `decide` uses.

    Raises:
        ValueError: Where the batch lacks what a component reads.
        CapoError: With a component's own sentence.
    """
    all_masks, all_weights = _made(Mask, masks), _made(Weight, weights)
    told = iter(_deciders(all_masks, all_weights).step_end(batch._native, decision, taken, collective))
    records: Records = {}
    for name, mask in named(all_masks):
        records |= reports(name, mask, next(told), {})
    for name, weight in named(all_weights):
        records |= reports(name, weight, next(told), {})
    return records


def _deciders(masks: list[Mask], weights: list[Weight]) -> _native.Deciders:
    return _native.Deciders([mask._native for mask in masks], [weight._native for weight in weights])


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
