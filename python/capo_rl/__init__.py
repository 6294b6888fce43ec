"""Plugins of capo inside trainers that are written in Python.

`Mask` and its siblings are components of plugins, `Batch` is what they read: the whole batch of one optimizer step.
`decide` applies masks and weights to it in order.
`replay` runs masks over recorded batches. Arrays come from torch, numpy, cupy or jax, and numpy arrays come back.
"""

from pathlib import Path as _Path

from . import _native
from ._native import CapoError, CapoWarning

_native.carried_in(_Path(__file__).parent / "plugins")

from ._metrics import metrics  # noqa: E402
from .batch import (  # noqa: E402
    Batch,
    LastLayer,
    Losses,
    Optimizer,
    OptimizerState,
    Progress,
    RolloutContext,
    Sampling,
    load_batch,
    save_batch,
)
from .components import Advantage, Collective, Mask, Measurements, Objective, Reward, StepControl, Weight  # noqa: E402
from .deciding import Decision, decide, step_end  # noqa: E402
from .plugins import Plugins  # noqa: E402
from .recorded import replay  # noqa: E402

__all__ = [
    "Advantage",
    "Batch",
    "CapoError",
    "CapoWarning",
    "Collective",
    "Decision",
    "LastLayer",
    "Losses",
    "Mask",
    "Measurements",
    "Objective",
    "Optimizer",
    "OptimizerState",
    "Plugins",
    "Progress",
    "Reward",
    "RolloutContext",
    "Sampling",
    "StepControl",
    "Weight",
    "decide",
    "load_batch",
    "metrics",
    "replay",
    "save_batch",
    "step_end",
]
