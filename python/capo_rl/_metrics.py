"""What a trainer logs of its components."""

from __future__ import annotations

from typing import Optional, Sequence, TypeVar

import numpy as np

from .batch import Array
from .components import Component, Records

Each = TypeVar("Each", bound=Component)
#: Metrics of a mask, a weight or a step control that are logged by default: what was rejected (of a weight its mean), the threshold, the predicted shift, the
#: share of a step that was applied, and the KL divergence, measured or predicted. As ``logging.component_metrics`` of ``host`` has it.
MAIN = frozenset({"rejection_rate", "mean", "threshold", "m_f/mean", "applied", "kl", "kl/mean"})
CHOICES = ("main", "all")


def metrics(records: Records, completion_mask: Optional[Array] = None, component_metrics: str = "main") -> dict[str, float]:
    """The numbers of ``records`` for a log, as ``host`` names them in its ``metrics.jsonl``.

    An array over tokens becomes ``NAME/mean`` and ``NAME/max`` over the tokens of ``completion_mask`` ``[B, T]`` in host memory, and is left out without it. ``"main"`` leaves the few metrics of each
    component that say how a run goes, ``"all"`` every one.

    Raises ``ValueError`` for another ``component_metrics``.
    """
    check(component_metrics)
    found: dict[str, float] = {}
    tokens = None if completion_mask is None else np.asarray(completion_mask, bool)
    for name, value in records.items():
        if not isinstance(value, np.ndarray):
            found[name] = float(value)
        elif tokens is not None and tokens.any():
            values = value[tokens].astype(np.float64)
            found |= {f"{name}/mean": float(values.mean()), f"{name}/max": float(values.max())}
    of_component = lambda name: name.partition("/")[2]
    return {name: value for name, value in found.items() if component_metrics == "all" or of_component(name) in MAIN}


def check(component_metrics: str) -> None:
    """Raises ``ValueError`` for what is no choice."""
    if component_metrics not in CHOICES:
        raise ValueError(f'component_metrics is {component_metrics!r} (use "main" or "all")')


def named(components: Sequence[Each]) -> list[tuple[str, Each]]:
    """The components by their names in metrics, as in ``host``: ``ID``, and ``ID#2`` for the second of that id."""
    ids = [each.id for each in components]
    counts = [ids[: place + 1].count(id) for place, id in enumerate(ids)]
    return [(each.id if count == 1 else f"{each.id}#{count}", each) for each, count in zip(components, counts, strict=True)]


def reports(name: str, component: Component, told: Records, more: Records) -> Records:
    """What a component told, and what its trainer says of it in ``more``, under its name."""
    return {f"{name}/{key.removeprefix(f'{component.id}/')}": value for key, value in (told | more).items()}
