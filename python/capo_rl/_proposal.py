"""The step that an optimizer took in torch: measurements for step controls, and the share of it that is applied."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import Batch, CapoWarning, StepControl
from ._layer import bare, trained
from ._metrics import named, reports
from ._moments import adam_moments, keeps_moments
from ._step import Answer, agree, local, ranks, reshard
from .components import Records

Number = TypeVar("Number", float, list[float])
#: Number of weights that are summed in 64 bits at a time.
WEIGHTS = 1 << 22
BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
EMBEDDING = re.compile(r"(?:^|\.)(?:\w*embed\w*|wte|wpe)\.")


def groups_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[str, list[Tensor]]:
    """The trained weights by parts of the model, in the order of the forward pass.

    The parts are `embedding`, `block.0`, ..., `last_layer`. Without a model there is one part.

    Raises:
        ValueError: If the optimizer has weights that do not belong to the model.
    """
    every = trained(parameter for group in optimizer.param_groups for parameter in group["params"])
    if model is None:
        return {"model": every}
    parts: dict[Tensor, str] = {parameter: _part(name) for name, parameter in model.named_parameters()}
    found: dict[str, list[Tensor]] = {}
    for parameter in every:
        if parameter not in parts:
            raise ValueError(
                "the optimizer has weights that do not belong to `model` "
                "(give the model whose parameters the optimizer has)"
            )
        found.setdefault(parts[parameter], []).append(parameter)
    place = {part: number for number, part in enumerate(dict.fromkeys(parts.values()))}
    return dict(sorted(found.items(), key=lambda item: place[item[0]]))


def _part(name: str) -> str:
    block = BLOCK.search(name)
    return f"block.{block[1]}" if block else "embedding" if EMBEDDING.search(name) else "last_layer"


def finite(optimizer: torch.optim.Optimizer) -> bool:
    """True if all gradients on all ranks are finite. Warns if not, because Adam's moments would never recover."""
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [parameter.grad for parameter in every if parameter.grad is not None]
    grads += getattr(bare(optimizer), "_rejected", {}).values()
    parts = [part._values() if part.is_sparse else part for part in map(local, grads)]
    norms = [torch.linalg.vector_norm(part, math.inf).to(every[0].device) for part in parts if part.numel()]
    broken = torch.zeros((), device=every[0].device)
    if norms:
        broken += ~torch.stack(norms).isfinite().all()
    if ranks() > 1:
        dist.all_reduce(broken, dist.ReduceOp.MAX)
    if broken.item():
        message = (
            "a gradient is not finite, so this step is left out, and weights and moments stay as they are "
            "(if it comes again, look for an overflow or a division by zero in the loss)"
        )
        warnings.warn(message, CapoWarning, stacklevel=3)
    return not broken.item()


class Proposal:
    """An optimizer's step: from the weights when this object is made to the weights now.

    It is the `Measurements` of a step control. Each number is computed when a control first asks for it. Under FSDP2 a
    sum over weights is one all-reduce of a number per group.

    Args:
        optimizer: It steps after this object is made and before it is asked.
        groups: The trained weights by part.
        measure: Measures the KL divergence on a fraction of the completions, with equal results on all ranks. Without
            it, `fisher` takes its place.
        last_layer_kl: Measures the KL divergence of the last layer's part of the step, with equal results on all ranks.
        model: A model that FSDP2 shards: it gathers its weights again when they have changed.
        moments: True to copy the optimizer's state, for `restore_moments`.
        alignment: True to compare the gradients with the step before.
        gradient_norm: The gradient's norm before it was clipped.
        unclipped: True if the gradients are not clipped, so that they have that norm themselves.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        groups: dict[str, list[Tensor]],
        measure: Callable[[float], Any] | None = None,
        last_layer_kl: Callable[[], Any] | None = None,
        model: torch.nn.Module | None = None,
        moments: bool = False,
        alignment: bool = False,
        gradient_norm: float | None = None,
        unclipped: bool = False,
    ) -> None:
        self._optimizer, self._groups, self._model = optimizer, groups, model
        self._settings = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        self._measure, self._last_layer_kl = measure, last_layer_kl
        every = [parameter for parameters in groups.values() for parameter in parameters]
        self._before = {parameter: local(parameter).clone() for parameter in every}
        #: Device on which sums over ranks are computed.
        self.device = next((parameter.device for parameter in every), torch.device("cpu"))
        self._moments = {parameter: _copied(state) for parameter, state in optimizer.state.items()} if moments else None
        self._known: dict[Any, Any] = {}
        meshes: set[Any] = {parameter.device_mesh for parameter in self._before if hasattr(parameter, "device_mesh")}
        if len(meshes) > 1:
            raise ValueError(
                "the weights are sharded over several device meshes, and step controls know one (shard them alike)"
            )
        self._mesh: Any = next(iter(meshes), None)
        self._alignment, norm = self._compare() if alignment else (None, None)
        self._gradient_norm = norm if unclipped else gradient_norm
        #: The number of weights of each group.
        self.sizes = {name: sum(parameter.numel() for parameter in parameters) for name, parameters in groups.items()}

    # Questions of step controls -------------------------------------------------------------------

    def norms(self) -> list[float]:
        """Euclidean norm of each group's part of the step."""
        return self._once("norms", lambda: [math.sqrt(sum_) for sum_ in self._sums(self._square)])

    def fisher(self) -> float:
        """`½ Σ Δ² v̂` over all weights, where v̂ is Adam's bias-corrected second moment after the step.

        Raises:
            ValueError: If the optimizer keeps no second moment.
        """
        # Before the first gradient, Adam keeps no state.
        begins = not self._optimizer.state and any("betas" in group for group in self._optimizer.param_groups)
        if not begins and not keeps_moments(self._optimizer):
            raise ValueError("the optimizer keeps no second moment (measure the KL itself, or train with Adam)")

        def cost(parameter: Tensor) -> Tensor:
            # A weight that has had no gradient yet has no moments, and has not moved.
            state, group = self._optimizer.state.get(parameter, {}), self._settings[parameter]
            moments = adam_moments(state, group)
            if moments is None:
                return torch.zeros((), dtype=torch.float64)
            beta2, steps = group["betas"][1], torch.as_tensor(state["step"], dtype=torch.float64)
            correction: Tensor = 1 - beta2**steps
            return self._square(parameter, moments[1]) / (2 * correction)

        return self._once("fisher", lambda: float(sum(self._sums(cost))))

    def alignment(self) -> float | None:
        """Cosine between the previous step and the direction of descent on this step's batch, over all weights."""
        return self._alignment

    def gradient_norm(self) -> float | None:
        """Euclidean norm of the gradient before it was clipped; `None` where it is not known."""
        return self._gradient_norm

    def last_layer_kl(self) -> float:
        """KL divergence that the last layer's part of the step alone causes, nats per completion token.

        Raises:
            ValueError: If there is no function that measures it.
        """
        measure = self._last_layer_kl
        if measure is None:
            raise ValueError("nothing measures the last layer's KL here (give `last_layer_kl`)")
        return self._once("last_layer_kl", lambda: float(measure()))

    def measure_kl(self, fraction: float, share: float = 1.0) -> float:
        """KL divergence that `share` of the step causes, on `fraction` of the completions, in nats per token."""
        measure = self._measure
        if measure is None:
            return share**2 * self.fisher()
        if share == 1:
            self._gather_anew()
            return self._once(fraction, lambda: float(measure(fraction)))
        agree(Answer.MEASURE, share, self.device)
        with self._shortened(share):
            return float(measure(fraction))

    # The share that is applied --------------------------------------------------------------------

    @torch.no_grad()
    def scale(self, scales: Sequence[float]) -> float:
        """Scales each group's part of the step by its entry of `scales`; the share of the length that is left."""
        left = scales[0]
        if any(scale != left for scale in scales):
            whole_step = math.hypot(*self.norms())
            taken = math.hypot(*(norm * scale for norm, scale in zip(self.norms(), scales, strict=True)))
            left = taken / whole_step if whole_step > 0 else 1.0
        for parameters, scale in zip(self._groups.values(), scales, strict=True):
            for parameter in parameters if scale != 1 else ():
                before, after = self._before[parameter], local(parameter)
                # A scale of 0 gives the weight before, even if the step is not finite.
                if scale:
                    torch.lerp(before, after, scale, out=after)
                else:
                    after.copy_(before)
        if any(scale != 1 for scale in scales):
            self._known = {}
            self._gather_anew()
        return left

    def restore_moments(self) -> None:
        """Gives the optimizer the state that it had before the step."""
        assert self._moments is not None
        self._optimizer.state.clear()
        self._optimizer.state.update(self._moments)

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """A context that takes the step back if an exception leaves it: no control has approved of any of it."""
        try:
            yield
        except BaseException:
            self.scale([0.0] * len(self.sizes))
            raise

    @contextmanager
    def _shortened(self, share: float) -> Iterator[None]:
        """A context in which the weights are those of `share` of the step."""
        whole_step = {parameter: local(parameter).clone() for parameter in self._before}
        known = self._known
        self.scale([share] * len(self.sizes))
        try:
            yield
        finally:
            for parameter, after in whole_step.items():
                local(parameter).copy_(after)
            self._known = known
            self._gather_anew()

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """A context in which the weights are those before the step."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, before in self._before.items():
            after = local(parameter)
            kept = after.clone()
            after.copy_(before)
            before.copy_(kept)
        self._gather_anew()

    def _gather_anew(self) -> None:
        if self._model is not None and self._mesh is not None:
            reshard(self._model)

    def _once(self, name: str | float, compute: Callable[[], Number]) -> Number:
        if name not in self._known:
            self._known[name] = compute()
        found: Number = self._known[name]
        return found

    @torch.no_grad()
    def _sums(self, of: Callable[[Tensor], Tensor]) -> list[Any]:
        """Sums `of` over each group's weights, and over all ranks that hold parts of them."""
        groups = [
            [of(parameter).to(self.device) / self._copies(parameter) for parameter in parameters]
            for parameters in self._groups.values()
        ]
        sums = torch.stack([torch.stack(parts).sum(0) for parts in groups])
        for dim in range(self._mesh.ndim if self._mesh is not None else 0):
            dist.all_reduce(sums, group=self._mesh.get_group(dim))
        found: list[Any] = sums.tolist()
        return found

    def _compare(self) -> tuple[float | None, float | None]:
        """The cosine between the last step, which follows from the optimizer's moments, and the gradient; its norm.

        `None` if the optimizer keeps no such moments.
        """
        rates = [float(group["lr"] or 0.0) for group in self._optimizer.param_groups]
        has_moments = False
        alike = len(set(rates)) == 1

        def products(parameter: Tensor) -> Tensor:
            """Dot products: the last step with itself, the gradient with itself, and the two with each other."""
            nonlocal has_moments
            total = torch.zeros(3, dtype=torch.float64, device=local(parameter).device)
            group = self._settings[parameter]
            last = self._last_step(parameter, group)
            if last is None:
                return total
            has_moments = True
            arrays, direction = last
            length = (1.0 if alike else float(group["lr"])) * (-1 if group.get("maximize") else 1)
            split = [local(array).reshape(-1).split(WEIGHTS) for array in arrays]
            for part, *parts in zip(*split, strict=True):
                step, grad = length * direction(*parts).double(), part.double()
                total += torch.stack([torch.dot(step, step), torch.dot(grad, grad), torch.dot(step, grad)])
            return total

        steps, grads, both = (sum(column) for column in zip(*self._sums(products), strict=True))
        if self._optimizer.state and not has_moments and any(parameter.grad is not None for parameter in self._before):
            message = "the optimizer keeps neither Adam's moments nor a momentum, so that steps are not compared"
            warnings.warn(message, CapoWarning, stacklevel=2)
        norms = math.sqrt(steps * grads)
        return (float(both / norms), math.sqrt(grads)) if 0 < norms < math.inf else (None, None)

    def _last_step(
        self, parameter: Tensor, group: dict[str, Any]
    ) -> tuple[Sequence[Tensor], Callable[..., Tensor]] | None:
        """The gradient with arrays of the optimizer's state, and a function that makes them the last step's direction.

        `None` without a gradient or without such arrays.
        """
        state = self._optimizer.state.get(parameter, {})
        grad = parameter.grad
        if grad is None:
            return None
        moments, momentum = adam_moments(state, group), state.get("momentum_buffer")
        if moments is None:
            return None if momentum is None else ([grad, momentum], lambda momentum: momentum)
        root = math.sqrt(1 - group["betas"][1] ** float(state["step"]))
        return [grad, *moments], lambda first, second: first.float() / (second.float().sqrt() / root + group["eps"])

    def _copies(self, parameter: Any) -> int:
        """Number of ranks that hold each weight of the parameter."""
        if self._mesh is None:
            return 1
        if not hasattr(parameter, "device_mesh"):
            return int(self._mesh.size())
        placements = enumerate(parameter.placements)
        return math.prod(int(self._mesh.size(dim)) for dim, placed in placements if placed.is_replicate())

    def _square(self, parameter: Tensor, factor: Tensor | None = None) -> Tensor:
        """`Σ Δ² factor` over this rank's part of the parameter, in 64 bits. Without `factor`, the factor is 1."""
        arrays = [local(parameter), self._before[parameter], *([] if factor is None else [local(factor)])]
        total = torch.zeros((), dtype=torch.float64, device=arrays[0].device)
        for parts in zip(*(array.reshape(-1).split(WEIGHTS) for array in arrays), strict=True):
            after, before, *factors = (part.double() for part in parts)
            squares = (after - before).square()
            for each in factors:
                squares = squares * each
            total += squares.sum()
        return total


def controlled(
    controls: Sequence[StepControl], proposal: Proposal, batch: Batch, weights: Tensor
) -> tuple[Records, bool]:
    """Asks the controls in order about the step, each as those before it left it, and shortens it accordingly.

    Args:
        controls: They are asked in their order.
        proposal: The step.
        batch: The batch behind the step.
        weights: `[B, T]`: each token's weight in the gradient.

    Returns:
        The controls' reports, and whether a step was taken. None was taken if nothing of it is left and a control
        restores the moments.
    """
    records: Records = {}
    left, restores, whole = 1.0, False, batch.optimizer
    for name, control in named(controls):
        if whole is not None and left != 1.0:
            # A control sees a step that earlier controls shortened as one with a lower rate.
            batch = batch.replace(optimizer=replace(whole, learning_rate=left * whole.learning_rate))
        scales, told = control(batch, weights.detach().float().cpu(), proposal.sizes, proposal)
        applied = proposal.scale(scales)
        agree(Answer.TAKE, applied, proposal.device)
        records |= reports(name, control, told, {"applied": applied})
        left, restores = left * applied, restores or control.restores_moments
    records["step_control/applied"] = left
    if left == 0 and restores:
        proposal.restore_moments()
        return records, False
    return records, True


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in state.items()}
