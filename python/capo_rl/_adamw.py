"""torch's AdamW with an option: the gradient of rejected tokens may enter the second moment too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SECOND_MOMENTS = ("kept", "kept_and_rejected")


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, with an option to add the gradient of rejected tokens to the second moment.

    It supports fused, foreach, capturable and DTensors as torch's does. A `GradScaler` does not know the rejected
    gradient, so it works with `second_moment="kept"` only.

    Args:
        params: As in `torch.optim.AdamW`.
        *args: As in `torch.optim.AdamW`.
        **kwargs: As in `torch.optim.AdamW`.
        second_moment: `"kept"` is plain AdamW. With `"kept_and_rejected"`, the squares of both gradients enter the
            second moment; in a step without rejected tokens, the bits equal those of plain AdamW.

    Raises:
        ValueError: For an unknown `second_moment`, and for `"kept_and_rejected"` with `amsgrad`, `maximize` or a
            `beta2` of 0.
    """

    def __init__(self, params: Any, *args: Any, second_moment: str = "kept", **kwargs: Any) -> None:
        if second_moment not in SECOND_MOMENTS:
            raise ValueError(f'second_moment is {second_moment!r} (use "kept" or "kept_and_rejected")')
        self.second_moment = second_moment
        # The rejected gradients of the current step; they are not part of the optimizer's state.
        self._rejected: dict[torch.Tensor, torch.Tensor] = {}
        super().__init__(params, *args, **kwargs)
        if second_moment != "kept":
            # With this flag a `GradScaler` calls `step` itself, which can then refuse it.
            self._step_supports_amp_scaling = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch's AdamW does.

        Raises:
            ValueError: For settings that `second_moment` does not support.
        """
        group = self.defaults | param_group
        for name in ("amsgrad", "maximize") if self.second_moment != "kept" else ():
            if group[name]:
                raise ValueError(f'second_moment "kept_and_rejected" does not go with {name} (leave it out)')
        if self.second_moment != "kept" and not group["betas"][1] > 0:
            raise ValueError(f'second_moment "kept_and_rejected" needs a beta2 above 0 (betas are {group["betas"]})')
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: vars(self)[name] for name in ("second_moment", "_step_supports_amp_scaling") if name in vars(self)}
        state: dict[str, Any] = super().__getstate__()
        return state | own | {"_rejected": {}}

    def _parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        return ((group, parameter) for group in self.param_groups for parameter in group["params"])

    @contextmanager
    def rejected(self) -> Iterator[None]:
        """Collects the gradients of the backward passes inside as rejected ones.

        Gradients from before stay as they are. The context may be entered several times in a step; the rejected
        gradients add up. `step` and `zero_grad` clear them.

        Raises:
            ValueError: With `second_moment="kept"`.
        """
        if self.second_moment == "kept":
            raise ValueError('second_moment is "kept": a rejected gradient has no use (set "kept_and_rejected")')
        # Gradients are copied one at a time, because DDP may keep all of them in one buffer
        # (`gradient_as_bucket_view`), which the next backward pass overwrites.
        kept = {}
        for _, parameter in self._parameters():
            kept[parameter] = _copy(parameter.grad)
            parameter.grad = self._rejected.get(parameter)
        try:
            yield
        finally:
            self._rejected = {}
            for parameter, grad in kept.items():
                rejected, parameter.grad = _copy(parameter.grad), grad
                if rejected is not None:
                    self._rejected[parameter] = rejected

    @torch.no_grad()
    def grad_norms(self) -> dict[str, torch.Tensor]:
        """Norms over all parameters: of the `kept` gradient, of the `rejected` one, and of their sum, `unmasked`."""
        found: dict[str, list[torch.Tensor]] = {"kept": [], "rejected": [], "unmasked": []}
        for _, parameter in self._parameters():
            grad, rejected = parameter.grad, self._rejected.get(parameter)
            sum_of_both = grad if rejected is None else rejected if grad is None else grad + rejected
            for name, value in zip(found, (grad, rejected, sum_of_both), strict=True):
                if value is not None:
                    found[name].append(_whole(torch.linalg.vector_norm(value.float())))
        zero = torch.zeros(())
        return {name: torch.linalg.vector_norm(torch.stack(norms)) if norms else zero for name, norms in found.items()}

    @property
    def has_rejected(self) -> bool:
        """Whether this step has a rejected gradient."""
        return bool(self._rejected)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales both gradients by one factor, from the norm of their sum; returns that norm.

        Without rejected gradients it is `torch.nn.utils.clip_grad_norm_`.
        """
        if not self._rejected:
            return torch.nn.utils.clip_grad_norm_([parameter for _, parameter in self._parameters()], max_norm)
        norm = self.grad_norms()["unmasked"]
        self.clip_grads_with_norm_(max_norm, norm)
        return norm

    @torch.no_grad()
    def clip_grads_with_norm_(self, max_norm: float, total_norm: torch.Tensor) -> None:
        """Scales both gradients by one factor from a known norm, as `torch.nn.utils.clip_grads_with_norm_` does."""
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
        for _, parameter in self._parameters():
            for grad in (parameter.grad, self._rejected.get(parameter)):
                if grad is not None:
                    grad.mul_(factor.to(grad.device))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of AdamW. Parameters with neither a kept nor a rejected gradient stay as they are.

        Raises:
            ValueError: In a `GradScaler`, with `second_moment="kept_and_rejected"`.
        """
        if self.second_moment != "kept" and hasattr(self, "found_inf"):
            del self.grad_scale, self.found_inf
            raise ValueError(
                'second_moment "kept_and_rejected" does not go with a GradScaler, which would leave the rejected '
                "gradient scaled (train in bf16 or float32)"
            )
        loss = evaluated(closure)
        for group, parameter in self._parameters() if self._rejected else ():
            rejected = self._rejected.get(parameter)
            if rejected is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(rejected)
            # Creates the moments of a parameter that has none yet.
            self._init_group({**group, "params": [parameter]}, [], [], [], [], [], [])
            # AdamW's own step multiplies the addition by beta2, so it is divided by beta2 here.
            beta2 = group["betas"][1]
            self.state[parameter]["exp_avg_sq"].addcmul_(rejected, rejected, value=(1 - beta2) / beta2)
        self._rejected = {}
        # torch wraps both this step and its own in hooks. They run once, around this one.
        step = torch.optim.AdamW.step
        (step.__wrapped__ if hasattr(step, "hooked") else step)(self)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, also the rejected ones."""
        self._rejected = {}
        super().zero_grad(set_to_none)


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """The result of the closure that computes the gradients of a step; `None` without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _copy(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad.clone()


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A number that is sharded over ranks, gathered on each rank."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
