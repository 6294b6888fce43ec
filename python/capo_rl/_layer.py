"""The last layer of a torch model and its optimizer, as masks see them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ._moments import adam_moments, keeps_moments
from ._schedule import Schedule
from ._step import Arrays, whole
from .batch import Optimizer, OptimizerKind
from .components import Decider

OPTIMIZERS: dict[str, OptimizerKind] = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
# Largest mean difference, nats, between the model's log-probabilities and those of its features times the head. bf16
# stays far below.
SAME_LAYER = 0.1


def check_head(head: torch.nn.Module) -> None:
    """Refuses a last layer that is more than a matrix.

    Raises:
        ValueError: For such a layer; the message says what it is.
    """
    biased = isinstance(head, torch.nn.Linear) and head.bias is not None
    if biased or not isinstance(head, torch.nn.Linear):
        kind = f"{type(head).__name__}{' with a bias' if biased else ''}"
        raise ValueError(
            f"a mask reads the last layer, and the model's is {kind} "
            "(it must be a plain Linear without bias or adapter)"
        )


def check_same(layer: Arrays, logps: Tensor, mask: Tensor, temperature: float) -> None:
    """Refuses features and a head that do not give the model's log-probabilities.

    Args:
        layer: The arrays that `top_rows` returned, `[N]` each.
        logps: Log-probabilities of the model itself, `[N]`, nats.
        mask: True for the tokens that count, `[N]`.
        temperature: Divisor of the logits in `logps`.

    Raises:
        ValueError: If they differ; the message says by how much.
    """
    apart = float((layer["action_logits"] / temperature - layer["logsumexp"] - logps).abs()[mask].mean())
    if not apart <= SAME_LAYER:
        raise ValueError(
            f"the model's log-probabilities differ by {apart:.3g} nats from those of its last features and its head "
            f"(at most {SAME_LAYER} is allowed): between the two the model has an operation, such as a soft cap, that "
            "masks of the last layer do not know"
        )


def bare(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside wrappers, such as accelerate's."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that a step moves; one that was frozen after the backward pass still has a gradient."""
    return [each for each in parameters if each.requires_grad or each.grad is not None]


def optimizer_kind(kind: type) -> OptimizerKind | None:
    """The components' name for an optimizer of this class or of a class derived from it; `None` for other classes."""
    return next((OPTIMIZERS[each.__name__] for each in kind.__mro__ if each.__name__ in OPTIMIZERS), None)


def check_optimizer(kind: type, deciders: Iterable[Decider], remedy: str) -> None:
    """Refuses an optimizer that masks and weights do not know.

    Raises:
        ValueError: For such an optimizer; the message names the component that needs to know it, and the `remedy`.
    """
    needs = [each.id for each in deciders if "NO_OPTIMIZER" not in each.traits]
    if needs and optimizer_kind(kind) is None:
        known = ", ".join(OPTIMIZERS)
        raise ValueError(f"`{needs[0]}` needs to know the optimizer, and {kind.__name__} is none of {known} ({remedy})")


def group_of(optimizer: torch.optim.Optimizer, head: Tensor | None) -> dict[str, Any]:
    """The group that holds the last layer's weight `head`, else the first group."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    return next((group for group in groups if any(each is head for each in group["params"])), groups[0])


def optimizer_info(
    optimizer: torch.optim.Optimizer,
    steps_taken: int,
    max_grad_norm: float,
    head: Tensor | None = None,
    schedule: Schedule | None = None,
) -> Optimizer | None:
    """The optimizer of a `Batch`, as masks see it; `None` for one that components do not know.

    Its numbers are those of the group that holds the last layer's weight `head`. Its learning rate is the largest one
    of `schedule` in the steps for which the first moment remembers the coming gradient; without a schedule, it is the
    step's own.
    """
    optimizer = bare(optimizer)
    kind = optimizer_kind(type(optimizer))
    group = group_of(optimizer, head)
    if kind is None:
        return None
    if getattr(optimizer, "second_moment", None) == "kept_and_rejected":
        kind = "adamw_kept_and_rejected"
    beta1, beta2 = group.get("betas", (group.get("momentum", 0.0), None))
    eps = group.get("eps")
    decay = group["weight_decay"]
    own = float(group["lr"])
    info = Optimizer(kind, own, beta1, beta2, eps, decay, max_grad_norm=max_grad_norm, steps_taken=steps_taken)
    if schedule is None:
        return info
    number = next(number for number, each in enumerate(optimizer.param_groups) if each is group)
    return replace(info, learning_rate=schedule.acting_rate(own, beta1, number), step_learning_rate=own)


def step_info(optimizer: torch.optim.Optimizer, known: Optimizer | None) -> Optimizer:
    """The optimizer after its step, as step controls see it.

    Its learning rate is the root mean square over all weights.

    Args:
        optimizer: The optimizer that took the step.
        known: Its `optimizer_info`. An optimizer that components do not know counts as Adam if it keeps Adam's moments,
            and else as SGD.
    """
    counts = [sum(each.numel() for each in trained(group["params"])) for group in optimizer.param_groups]
    rates = [float(group["lr"] or 0.0) for group in optimizer.param_groups]
    # Rates are divided by the highest one, so that groups with the same rate give exactly that rate.
    top, every = max(rates), sum(counts)
    shares = [count * (rate / top) ** 2 for count, rate in zip(counts, rates, strict=True)] if top and every else []
    rate = top * math.sqrt(sum(shares) / every) if shares else top
    if known is None:
        known = Optimizer("adamw" if keeps_moments(optimizer) else "sgd", rate)
    return replace(known, learning_rate=rate, step_learning_rate=None)


def optimizer_state(optimizer: torch.optim.Optimizer, head: Tensor) -> Arrays:
    """The head's weight and its moments of Adam, `[V, D]` each, gathered if they are sharded over ranks.

    Before the first step the moments are zeros.
    """
    moments = adam_moments(optimizer.state.get(head, {}), group_of(optimizer, head)) or (torch.zeros_like(head),) * 2
    arrays = zip(("weight", "exp_avg", "exp_avg_sq"), (head, *moments), strict=True)
    return {name: whole(array.detach()) for name, array in arrays}
