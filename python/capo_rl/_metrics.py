"""The numbers of components that a trainer logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from .batch import Array
from .components import Component, Records

Each = TypeVar("Each", bound=Component)
#: The metrics of masks, weights and step controls that are logged by default, as `logging.component_metrics` of `host`
#: has it: the share that a mask rejected, a weight's mean, the threshold, the predicted shift, the share of a step that
#: was applied, the learning rate that was found, and the KL divergence, measured or predicted.
MAIN = frozenset({"rejection_rate", "mean", "threshold", "m_f/mean", "applied", "found_rate", "kl", "kl/mean"})
CHOICES = ("main", "all")


def metrics(
    records: Records, completion_mask: Array | None = None, component_metrics: str = "main"
) -> dict[str, float]:
    """The numbers of `records` for a log, as `host` names them in its `metrics.jsonl`.

    Args:
        records: What components reported.
        completion_mask: `[B, T]` in host memory. An array over tokens becomes `NAME/mean` and `NAME/max` over its
            tokens, and is left out without it.
        component_metrics: `"main"` leaves the few metrics of each component that say how a run goes, `"all"` every one.

    Raises:
        ValueError: For another `component_metrics`.
    """
    check(component_metrics)
    found: dict[str, float] = {}
    given: Any = completion_mask
    tokens = None if given is None else np.asarray(given, bool)
    for name, value in records.items():
        if not isinstance(value, np.ndarray):
            found[name] = float(value)
        elif tokens is not None and tokens.any():
            values = value[tokens].astype(np.float64)
            found |= {f"{name}/mean": float(values.mean()), f"{name}/max": float(values.max())}
    if component_metrics == "all":
        return found
    return {name: value for name, value in found.items() if name.partition("/")[2] in MAIN}


def check(component_metrics: str) -> None:
    """Refuses a `component_metrics` that is neither `"main"` nor `"all"`.

    Raises:
        ValueError: Which choices there are.
    """
    if component_metrics not in CHOICES:
        raise ValueError(f'component_metrics is {component_metrics!r} (use "main" or "all")')


def named(components: Sequence[Each]) -> list[tuple[str, Each]]:
    """The components by their names in metrics, as in `host`: `ID`, and `ID#2` for the second of that id."""
    ids = [each.id for each in components]
    counts = [ids[: place + 1].count(id) for place, id in enumerate(ids)]
    return [
        (each.id if count == 1 else f"{each.id}#{count}", each) for each, count in zip(components, counts, strict=True)
    ]


def reports(name: str, component: Component, told: Records, more: Records) -> Records:
    """The records of a component and, in `more`, the trainer's own numbers about it, under the component's name."""
    return {f"{name}/{key.removeprefix(f'{component.id}/')}": value for key, value in (told | more).items()}
