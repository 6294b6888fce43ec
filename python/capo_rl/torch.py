"""Optimizers of torch for what components decide.

The second moment of `AdamW` takes in what a mask rejected, and the steps of `Governed` are shortened by a step control.

    optimizer = capo_rl.torch.AdamW(model.parameters(), lr=1e-6, second_moment="kept_and_rejected")

    loss_of_what_was_kept.backward()
    with optimizer.rejected():
        loss_of_what_was_rejected.backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()

With plain Adam a mask hardly shortens a step: the second moment shrinks with the gradient, and Adam divides by its
root. Here the first moment takes in `g_k`, the gradient of what was kept, and the second `g_k² + g_r²`, where `g_r` is
the gradient of what was rejected or weighted away, reduced as the same loss is.

    optimizer = capo_rl.torch.Governed(torch.optim.AdamW(model.parameters(), lr=1e-3), "governor.kl", measure)

measures each step and takes as much of it as this model can. It goes with every optimizer but LBFGS.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from . import Batch, CapoWarning, Progress, StepControl
from ._adamw import AdamW, evaluated
from ._decision import load_states, states
from ._divergence import kl_of_change
from ._layer import optimizer_info, step_info
from ._proposal import Proposal, controlled, finite, groups_of
from ._schedule import acting_rate
from ._step import ranks
from .components import listed

__all__ = ["AdamW", "Governed", "acting_rate", "kl_divergence"]


class Governed(torch.optim.Optimizer):
    """An optimizer of torch whose steps a step control shortens. All else is that optimizer's.

    Each step keeps a copy of the trained weights, steps, measures what the control asks for, and shortens the step in
    place. Parameters may be DTensors of FSDP2.

    Args:
        optimizer: The optimizer that steps, of any kind but LBFGS. Its parameters, groups and state are those of this
            object.
        control: An id, such as `"governor.kl"`, a `StepControl` with its keys, or several of them, applied in order.
        measure: `measure(fraction)` gives the mean KL divergence, the policy before the step to the one after it, on
            about that share of the batch's completions: nats per token. It is called with the new weights, or with
            those of a part of the step, without a graph; `kl_divergence` helps. If torch knows of several processes,
            each measures completions of its own and their mean is used. Without `measure`, `½ Σ Δ² v̂` of Adam's second
            moment takes the place of the KL divergence. It depends on the scale of the loss, so a target is a number of
            that kind, and cannot be `"auto"`.
        last_layer_kl: `last_layer_kl()` gives the KL divergence of the last layer's part of the step, for a control
            that asks.
        model: The model that is trained. A control may then scale its parts on their own. It is needed under FSDP2.

    Attributes:
        records: Numbers of the newest step, such as `governor.kl/kl`, `governor.kl/scale`, `step_control/applied`. If a
            gradient is not finite, the optimizer does not step, and `step_control/skipped` is 1.
        steps: The number of steps so far.
        optimizer: The optimizer that was given. `torch.distributed.checkpoint` saves its state alone: save the
            controls' states and `steps` beside it.
        controls: The step controls.

    Raises:
        ValueError: For LBFGS, for parameters that `model` does not have, for sharded parameters without `model`, and
            for a `governor.kl` that is to find its target without a `measure`.
    """

    # So a `GradScaler` unscales the gradients itself, and leaves out a step that overflowed before it is governed.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        control: str | StepControl | Iterable[str | StepControl],
        measure: Callable[[float], Any] | None = None,
        *,
        last_layer_kl: Callable[[], Any] | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS makes several gradients in a step and counts on having taken all of it, so no control can "
                "shorten one (use another optimizer, such as AdamW)"
            )
        # `Optimizer.__init__` is not called: parameters, state and hooks are those of `optimizer`.
        self.optimizer = optimizer
        self.controls = listed(StepControl, control)
        self.records: dict[str, Any] = {}
        self.steps = 0
        self._measure, self._last_layer_kl, self._model = measure, last_layer_kl, model
        trained = [parameter for parameters in groups_of(optimizer, model).values() for parameter in parameters]
        if model is None and any(hasattr(parameter, "device_mesh") for parameter in trained):
            raise ValueError(
                "the parameters are sharded, and FSDP2 has to gather them anew after a step is shortened (give `model`)"
            )
        for each in self.controls if measure is None else ():
            if each.id == "governor.kl" and each.keys.get("target", "auto") == "auto":
                raise ValueError(
                    "`governor.kl` finds its target in KL divergences that nothing measures here (give `measure`, or a "
                    "`target` in the unit of ½ Σ Δ² v̂, which depends on the scale of the loss)"
                )
        if measure is None:
            told = (
                "nothing measures the KL divergence of a step: ½ Σ Δ² v̂ of Adam's second moment is told in its place "
                "(give `measure`)"
            )
            warnings.warn(told, CapoWarning, stacklevel=2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a governed optimizer is not copied: `measure` would still measure the first model "
            "(load its `state_dict` into a new one)"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @torch.no_grad()
    def step(
        self,
        closure: Any = None,
        *,
        batch: Batch | None = None,
        weights: torch.Tensor | None = None,
        grad_norm: float | torch.Tensor | None = None,
    ) -> Any:
        """One step, which the controls shorten. There is none if a gradient is not finite.

        Args:
            closure: As for `torch.optim.Optimizer.step`; it is called once.
            batch: The batch behind the gradient, on each rank the rows of all, for controls that read one
                (`StepControl.inputs`). `target="auto"` begins with the entropy of its log-probabilities, and learns
                nothing of the rate from steps without an advantage, if others have one.
            weights: `[B, T]`: each token's weight in the gradient. Without it all weigh the same.
            grad_norm: The gradient's norm before clipping, as `torch.nn.utils.clip_grad_norm_` returns it. With it and
                a `batch` whose `reduction` is the loss's own, `target="auto"` follows the run; without it, it keeps the
                rate that the first steps tell. If completions serve several steps, `iteration` of the batch's
                `progress` must say how many came before: from those after the first it learns nothing.

        Raises:
            ValueError: If ranks take different shares of the step, because their batches differ. None of it is taken
                then.
            CapoError: If ranks measure different parts of it, for the same reason, and with a control's own sentence.
        """
        # Before the step, because a control may compare its gradient.
        loss = evaluated(closure)
        if not finite(self.optimizer):
            self.optimizer.zero_grad()
            self.records = {"step_control/applied": 0.0, "step_control/skipped": 1.0}
            self.steps += 1
            return loss
        moments = any(control.restores_moments for control in self.controls)
        measure = self._over_ranks(self._measure) if self._measure is not None else None
        last_layer_kl = self._over_ranks(self._last_layer_kl) if self._last_layer_kl is not None else None
        alignment = any("ALIGNMENT" in control.inputs for control in self.controls)
        groups = groups_of(self.optimizer, self._model)
        norm = None if grad_norm is None else float(grad_norm)
        proposal = Proposal(self.optimizer, groups, measure, last_layer_kl, self._model, moments, alignment, norm)
        with proposal.unbroken():
            self.optimizer.step()
            if batch is None:
                one = torch.zeros(1, 1)
                batch = Batch(one.int(), one == 0, one, progress=Progress(step=self.steps))
            if batch.optimizer is None:
                # Gradients were clipped before, if at all.
                known = optimizer_info(self.optimizer, self.steps, max_grad_norm=0.0)
                batch = batch.replace(optimizer=step_info(self.optimizer, known))
            weighed: Any = batch.completion_mask if weights is None else weights
            self.records, _ = controlled(self.controls, proposal, batch, torch.as_tensor(weighed))
        self.steps += 1
        return loss

    def _over_ranks(self, measure: Callable[..., Any]) -> Callable[..., float]:
        """The mean of a measurement over processes, so that all take the same share of the step."""

        def mean(*fraction: float) -> float:
            value = torch.as_tensor(measure(*fraction), dtype=torch.float64)
            if ranks() > 1:
                value = value.to(self.param_groups[0]["params"][0].device)
                torch.distributed.all_reduce(value)
            return float(value) / ranks()

        return mean

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under `controls` and `steps` that of the step controls.

        `torch.load` takes it with `weights_only`.
        """
        return {**self.optimizer.state_dict(), "controls": states(self.controls), "steps": self.steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave; a resumed run goes on bit for bit.

        Raises:
            ValueError: For the state of an optimizer without controls, or with other controls.
        """
        theirs, own = [id for id, _ in state_dict.get("controls", [])], [control.id for control in self.controls]
        if theirs != own:
            raise ValueError(
                f"this is the state of an optimizer with the step controls {theirs}, and this one has {own} "
                "(give it the same)"
            )
        of_optimizer = {name: value for name, value in state_dict.items() if name not in ("controls", "steps")}
        before = states(self.controls)
        try:
            load_states(self.controls, state_dict["controls"])
            self.optimizer.load_state_dict(of_optimizer)
        except BaseException:
            load_states(self.controls, before)
            raise
        self.steps = state_dict["steps"]


def kl_divergence(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """KL divergence, the policy with logits `old` to the one with logits `new`.

    Exact over the vocabulary, and in 64 bits: that of a step may be 1e-8, a difference of numbers near 1.

    Args:
        old: `[..., V]`.
        new: `[..., V]`, at the same temperature.

    Returns:
        Nats, `[...]`.
    """
    # A token that neither policy can draw has logits of -inf, whose difference is NaN.
    return kl_of_change(old, torch.where(old == new, 0.0, new.double() - old.double()))
