"""Adam's moments, as the optimizers of torch and of bitsandbytes keep them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Numbers of a state in 8 bits that share a factor. bitsandbytes uses this size for all of its optimizers.
BLOCK = 256


def adam_moments(state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The first and second moments in the state of one parameter of `group`; `None` if there are none.

    Moments in 8 bits are converted to float32.
    """
    # Adafactor may keep both moments of a vector, but its decay rate changes in every step.
    if "betas" not in group:
        return None
    if "exp_avg" in state and "exp_avg_sq" in state:
        return state["exp_avg"], state["exp_avg_sq"]
    if "state1" in state and "state2" in state:
        return _widened(state, 1), _widened(state, 2)
    return None


def keeps_moments(optimizer: torch.optim.Optimizer) -> bool:
    """True if the optimizer keeps Adam's moments of some parameter."""
    every = ((optimizer.state.get(each), group) for group in optimizer.param_groups for each in group["params"])
    return any(state and adam_moments(state, group) is not None for state, group in every)


def _widened(state: dict[str, Any], number: int) -> Tensor:
    kept: Tensor = state[f"state{number}"]
    if kept.dtype != torch.uint8:
        return kept
    from bitsandbytes.functional import dequantize_blockwise

    widened: Tensor = dequantize_blockwise(
        kept, absmax=state[f"absmax{number}"], code=state[f"qmap{number}"], blocksize=BLOCK
    )
    return widened
