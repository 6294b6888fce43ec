"""The last layer of a torch model and its optimizer, as masks see them."""

from __future__ import annotations

import torch
from torch import Tensor

from ._moments import adam_moments
from ._step import Arrays, whole
from .batch import Optimizer, OptimizerKind

OPTIMIZERS: dict[str, OptimizerKind] = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
# Mean difference of log-probabilities, nats, beyond which the features times the head are not what the model computes;
# bf16 stays far below.
SAME_LAYER = 0.1


def check_head(head: torch.nn.Module) -> None:
    """Refuses a last layer that is more than a matrix.

    Raises:
        ValueError: What it is.
    """
    biased = isinstance(head, torch.nn.Linear) and head.bias is not None
    if biased or not isinstance(head, torch.nn.Linear):
        kind = f"{type(head).__name__}{' with a bias' if biased else ''}"
        told = f"a mask reads the last layer, and the model's is {kind}"
        raise ValueError(f"{told} (it must be a plain Linear without bias or adapter)")


def check_same(layer: Arrays, logps: Tensor, mask: Tensor, temperature: float) -> None:
    """Refuses features and a head that do not give the model's log-probabilities.

    Args:
        layer: What `top_rows` gave, `[N]` each.
        logps: `[N]`, nats: the model's own.
        mask: `[N]`: true for the tokens that count.
        temperature: What logits are divided by in `logps`.

    Raises:
        ValueError: By how much they differ.
    """
    apart = float((layer["action_logits"] / temperature - layer["logsumexp"] - logps).abs()[mask].mean())
    if not apart <= SAME_LAYER:
        raise ValueError(
            f"the model's log-probabilities differ by {apart:.3g} nats from those of its last features and its head "
            f"(at most {SAME_LAYER}): it does something between them, such as a soft cap, that masks of the last layer "
            "do not know"
        )


def optimizer_info(optimizer: torch.optim.Optimizer, steps_taken: int, max_grad_norm: float) -> Optimizer | None:
    """The optimizer of a `Batch`; `None` for one that components do not know."""
    kind, group = OPTIMIZERS.get(type(optimizer).__name__), optimizer.param_groups[0]
    if kind is None:
        return None
    if getattr(optimizer, "second_moment", None) == "kept_and_rejected":
        kind = "adamw_kept_and_rejected"
    (beta1, beta2), eps = group.get("betas", (group.get("momentum", 0.0), None)), group.get("eps")
    decay, rate = group["weight_decay"], float(group["lr"])
    return Optimizer(kind, rate, beta1, beta2, eps, decay, max_grad_norm=max_grad_norm, steps_taken=steps_taken)


def optimizer_state(optimizer: torch.optim.Optimizer, head: Tensor) -> Arrays:
    """The head's weight and Adam's moments of it, `[V, D]`, gathered where they are spread over ranks.

    The moments are zeros before the first step.
    """
    moments = adam_moments(optimizer.state.get(head, {})) or (torch.zeros_like(head),) * 2
    arrays = zip(("weight", "exp_avg", "exp_avg_sq"), (head, *moments), strict=True)
    return {name: whole(array.detach()) for name, array in arrays}
