"""Learning rates that a schedule of torch is about to give."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ._native import CapoWarning


@dataclass(frozen=True)
class Schedule:
    """A schedule of learning rates before the coming step.

    Attributes:
        scheduler: The one that sets the optimizer's rates, or a wrapper of accelerate around it.
        steps_left: Steps of the run that are still to come, the coming one included; `None` where it is not known.
    """

    scheduler: Any
    steps_left: int | None

    def acting_rate(self, own: float, beta1: float, group: int = 0) -> float:
        """The largest learning rate at which the coming step's gradient moves the weights.

        The first moment adds a gradient to later steps too, in shares that fall by `beta1` from one to the next: it
        remembers about `1 / (1 - beta1)` steps.

        Args:
            own: The rate of the coming step.
            beta1: Decay of the first moment, or SGD's momentum; without one there is no memory.
            group: Which of the optimizer's groups of parameters.
        """
        # 1 / (1 - 0.9) is a little above 10 in floating point.
        memory = max(1, math.ceil(1 / (1 - beta1) - 1e-9))
        if self.steps_left is not None:
            memory = min(memory, max(1, self.steps_left))
        return max([own, *self._coming(memory - 1, group)])

    def _coming(self, count: int, group: int) -> list[float]:
        """The rates of the `count` steps behind the coming one; fewer where the schedule ends or cannot be foretold."""
        scheduler = getattr(self.scheduler, "scheduler", self.scheduler)
        if count == 0 or isinstance(scheduler, ReduceLROnPlateau):
            return []
        rates: list[float] = []
        try:
            groups = _Groups(scheduler.optimizer.param_groups)
            # Wherever the scheduler, or one inside it, holds the optimizer, its copy holds the groups.
            ahead = copy.deepcopy(scheduler, {id(scheduler.optimizer): groups})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(count):
                    for _ in range(self._strides()):
                        ahead.step()
                    rates.append(float(groups.param_groups[group]["lr"]))
        except ValueError:
            # Some schedulers, such as OneCycleLR, refuse steps behind their end.
            pass
        except Exception as error:
            told = (
                f"the learning rates to come cannot be read from `{type(scheduler).__name__}` ({error}): masks and "
                "weights judge each step by its own rate, which is too low in a warm-up"
            )
            warnings.warn(told, CapoWarning, stacklevel=2)
        return rates

    def _strides(self) -> int:
        """How often accelerate's wrapper moves the scheduler in each step: once for each process."""
        if getattr(self.scheduler, "split_batches", True):
            return 1
        from accelerate.state import AcceleratorState

        return int(AcceleratorState().num_processes)


class _Groups:
    """An optimizer that has groups with rates and no weights."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self.defaults: dict[str, Any] = {}

    def step(self) -> None:
        """Nothing: schedulers ask whether the optimizer has stepped."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Groups:
        return self


def acting_rate(scheduler: Any, steps_left: int | None = None, *, beta1: float = 0.9, group: int = 0) -> float:
    """The learning rate by which masks and weights judge the coming step, for `Optimizer(learning_rate=...)`.

    It is the largest one at which the step's gradient moves the weights: Adam's first moment carries it into about
    `1 / (1 - beta1)` steps, and a warm-up gives them higher rates. A mask that judged by the step's own rate, which
    is 0 in the first step of a warm-up, would let through what acts ten steps long at rates that are not 0.

    Args:
        scheduler: A scheduler of `torch.optim.lr_scheduler` or `transformers`, before the step.
        steps_left: Steps of the run that are still to come, the coming one included; some schedules rise again behind
            their end.
        beta1: Decay of the first moment; of SGD the momentum.
        group: Which of the optimizer's groups of parameters.
    """
    bare = getattr(scheduler, "scheduler", scheduler)
    own = float(bare.optimizer.param_groups[group]["lr"])
    return Schedule(scheduler, steps_left).acting_rate(own, beta1, group)
