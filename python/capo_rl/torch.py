"""AdamW for masked and weighted losses: what a mask rejected stays in the second moment.

    optimizer = capo_rl.torch.AdamW(model.parameters(), lr=1e-6, second_moment="kept_and_rejected")

    loss_of_what_was_kept.backward()
    with optimizer.rejected():
        loss_of_what_was_rejected.backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()

With plain Adam a mask hardly shortens a step: the second moment shrinks with the gradient, and Adam divides by its root. Here the first moment takes in
``g_k``, the gradient of what was kept, and the second ``g_k² + g_r²``, where ``g_r`` is the gradient of what was rejected or weighted away, reduced as the
same loss is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

import torch

__all__ = ["AdamW"]

SECOND_MOMENTS = ("kept", "kept_and_rejected")


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, whose second moment may take in a rejected gradient too; fused, foreach, capturable and DTensors as there.

    Args:
        second_moment: ``"kept"``: plain AdamW. ``"kept_and_rejected"``: see above; where nothing was rejected the bits are plain AdamW's.

    Raises:
        ValueError: For another ``second_moment``, and for what it cannot go with: ``amsgrad``, ``maximize``, a ``beta2`` of 0.
    """

    def __init__(self, params: Any, *args: Any, second_moment: str = "kept", **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        if second_moment not in SECOND_MOMENTS:
            raise ValueError(f'second_moment is {second_moment!r} (use "kept" or "kept_and_rejected")')
        self.second_moment = second_moment
        # Not in the state: both are of one step.
        self._rejected: dict[torch.Tensor, torch.Tensor] = {}
        for group in self.param_groups if second_moment != "kept" else ():
            for name in ("amsgrad", "maximize"):
                if group[name]:
                    raise ValueError(f'second_moment "kept_and_rejected" does not go with {name} (leave it out)')
            if not group["betas"][1] > 0:
                raise ValueError(f'second_moment "kept_and_rejected" needs a beta2 above 0 (betas are {group["betas"]})')

    def _parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        return ((group, parameter) for group in self.param_groups for parameter in group["params"])

    @contextmanager
    def rejected(self) -> Iterator[None]:
        """Takes the gradients of the backward passes inside for rejected ones: those that were there before are left as they are.

        May be entered more than once for a step; the rejected gradients add up. They are forgotten by `step` and `zero_grad`.
        """
        if self.second_moment == "kept":
            raise ValueError('second_moment is "kept": nothing takes in a rejected gradient (use "kept_and_rejected")')
        kept = {parameter: parameter.grad for _, parameter in self._parameters()}
        for parameter in kept:
            parameter.grad = self._rejected.get(parameter)
        try:
            yield
        finally:
            self._rejected = {parameter: parameter.grad for parameter in kept if parameter.grad is not None}
            for parameter, grad in kept.items():
                parameter.grad = grad

    @torch.no_grad()
    def grad_norms(self) -> dict[str, torch.Tensor]:
        """Norms over all parameters: of what was ``kept``, of what was ``rejected``, and of their sum, the ``unmasked`` gradient."""
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
        """Scales both gradients by one factor, from the norm of their sum; that norm. As `torch.nn.utils.clip_grad_norm_` where nothing was rejected."""
        if not self._rejected:
            return torch.nn.utils.clip_grad_norm_([parameter for _, parameter in self._parameters()], max_norm)
        norm = self.grad_norms()["unmasked"]
        self.clip_grads_with_norm_(max_norm, norm)
        return norm

    @torch.no_grad()
    def clip_grads_with_norm_(self, max_norm: float, total_norm: torch.Tensor) -> None:
        """The same with a norm that is known, as `torch.nn.utils.clip_grads_with_norm_`."""
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
        for _, parameter in self._parameters():
            for grad in (parameter.grad, self._rejected.get(parameter)):
                if grad is not None:
                    grad.mul_(factor.to(grad.device))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of AdamW; parameters without a gradient, kept or rejected, stay as they are."""
        for group, parameter in self._parameters() if self._rejected else ():
            rejected = self._rejected.get(parameter)
            if rejected is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(rejected)
            # Makes the moments where there are none yet.
            self._init_group({**group, "params": [parameter]}, [], [], [], [], [], [])
            # AdamW's own step multiplies by beta2 what is added here.
            beta2 = group["betas"][1]
            self.state[parameter]["exp_avg_sq"].addcmul_(rejected, rejected, value=(1 - beta2) / beta2)
        self._rejected = {}
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, rejected ones too."""
        self._rejected = {}
        super().zero_grad(set_to_none)


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A number that is spread over ranks, on each of them."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
