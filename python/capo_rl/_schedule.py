"""The coming learning rates of a schedule of torch."""

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
        scheduler: The scheduler that sets the optimizer's rates, or a wrapper of accelerate around it.
        steps_left: Number of steps until the run's end, including the coming one; `None` if it is not known.
    """

    scheduler: Any
    steps_left: int | None

    def acting_rate(self, own: float, beta1: float, group: int = 0) -> float:
        """The largest learning rate at which the coming step's gradient moves the weights.

        The first moment also adds a gradient to later steps, in shares that shrink by the factor `beta1` from each step
        to the next. It remembers about `1 / (1 - beta1)` steps.

        Args:
            own: The rate of the coming step.
            beta1: Decay of the first moment, or SGD's momentum; with 0 only the coming step counts.
            group: Number of the parameter group in the optimizer.
        """
        # 1 / (1 - 0.9) is a little above 10 in floating point.
        memory = max(1, math.ceil(1 / (1 - beta1) - 1e-9))
        if self.steps_left is not None:
            memory = min(memory, max(1, self.steps_left))
        return max([own, *self._coming(memory - 1, group)])

    def _coming(self, count: int, group: int) -> list[float]:
        """The rates of the `count` steps after the coming one; fewer if the schedule ends or cannot be predicted."""
        scheduler = getattr(self.scheduler, "scheduler", self.scheduler)
        if count == 0 or isinstance(scheduler, ReduceLROnPlateau):
            return []
        rates: list[float] = []
        try:
            groups = _Groups(scheduler.optimizer.param_groups)
            # In the copy, the groups take the optimizer's place, also in schedulers inside this one.
            ahead = copy.deepcopy(scheduler, {id(scheduler.optimizer): groups})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(count):
                    for _ in range(self._strides()):
                        ahead.step()
                    rates.append(float(groups.param_groups[group]["lr"]))
        except ValueError:
            # Some schedulers, such as OneCycleLR, refuse steps after their end.
            pass
        except Exception as error:
            message = (
                f"the coming learning rates cannot be read from `{type(scheduler).__name__}` ({error}): masks and "
                "weights judge each step by its own rate, which is too low in a warm-up"
            )
            warnings.warn(message, CapoWarning, stacklevel=2)
        return rates

    def _strides(self) -> int:
        """How often accelerate's wrapper advances the scheduler in each step: once for each process."""
        if getattr(self.scheduler, "split_batches", True):
            return 1
        from accelerate.state import AcceleratorState

        return int(AcceleratorState().num_processes)


class _Groups:
    """A stand-in for an optimizer: it has groups with learning rates, but no weights."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self.defaults: dict[str, Any] = {}

    def step(self) -> None:
        """Does nothing. It is there because schedulers check whether the optimizer has stepped."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Groups:
        return self


def acting_rate(scheduler: Any, steps_left: int | None = None, *, beta1: float = 0.9, group: int = 0) -> float:
    """The learning rate by which masks and weights judge the coming step, for `Optimizer(learning_rate=...)`.

    It is the largest rate at which the step's gradient moves the weights. Adam's first moment carries the gradient into
    about `1 / (1 - beta1)` steps, and in a warm-up the later ones have higher rates. The step's own rate is 0 in the
    first step of a warm-up; a mask that judged by it would keep tokens whose gradients act for ten steps.

    Args:
        scheduler: A scheduler of `torch.optim.lr_scheduler` or `transformers`, before the step.
        steps_left: Number of steps until the run's end, including the coming one. It matters for schedules whose rates
            rise again after their end.
        beta1: Decay of the first moment, or SGD's momentum.
        group: Number of the parameter group in the optimizer.
    """
    bare = getattr(scheduler, "scheduler", scheduler)
    own = float(bare.optimizer.param_groups[group]["lr"])
    return Schedule(scheduler, steps_left).acting_rate(own, beta1, group)
