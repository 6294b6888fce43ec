"""Step controls in a trainer of torch: between the optimizer's step and the new weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from . import Batch, CapoWarning, Optimizer, StepControl
from ._decision import DecidedBatch
from ._divergence import divergence
from ._layer import step_info
from ._proposal import Proposal, controlled, finite, groups_of
from ._step import ranks, received, whole
from .components import Records


class Passes(Protocol):
    """The parts of a trainer that step controls need."""

    def model(self) -> torch.nn.Module:
        """The model as the trainer calls it: FSDP2 gathers its weights anew when they have changed."""

    def policy(self) -> Any:
        """The model without wrappers and adapters."""

    def head(self) -> Any:
        """Its last layer: a `Linear` without a bias."""

    def holding(self, own: Any, rows: Tensor) -> Any:
        """The share of a rank's part of the step that holds these rows.

        Each rank runs the same number of forward passes, of as many completions, because FSDP2 gathers weights in them.
        """

    def features(self, held: Any) -> list[Tensor]:
        """Features `[N, D]` of the rows' completion tokens, by forward pass; the policy runs without dropout."""


class Unrounded:
    """Runs the forward passes of a module without autocast, if it can compute in float32.

    Autocast rounds each weight to bf16. A tiny step makes some weights round the other way, and this noise does not
    fall with the square of the step.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._forward = module, module.forward
        #: True if the newest forward pass was in float32.
        self.exact = True

    @contextmanager
    def passes(self) -> Iterator[None]:
        """A context in which the module's forward passes are unrounded, whatever a trainer puts around its model."""
        module, before = self._module, self._module.__dict__.get("forward")
        self._forward = module.forward
        module.forward = self._passed
        try:
            yield
        finally:
            del module.forward
            if before is not None:
                module.forward = before

    def _passed(self, *args: Any, **kwargs: Any) -> Any:
        # FSDP2 has gathered the module's weights by now, in the type in which it computes. Flash attention takes no
        # float32.
        exact = all(parameter.dtype in (torch.float32, torch.float64) for parameter in self._module.parameters())
        self.exact = exact and "flash" not in (getattr(self._module.config, "_attn_implementation", None) or "")
        kind = next(self._module.parameters()).device.type
        with torch.autocast(kind, enabled=False) if self.exact else nullcontext():
            return self._forward(*args, **kwargs)


@dataclass(frozen=True)
class _Step:
    """A step that the optimizer takes, until the controls have shortened it.

    Attributes:
        own: This rank's part of it, for `Passes.holding`.
        decision: The decision over it.
        rows: The numbers of its completions.
        proposal: Its measurements.
        optimizer: The optimizer that takes it.
    """

    own: Any
    decision: DecidedBatch
    rows: Tensor
    proposal: Proposal
    optimizer: torch.optim.Optimizer


class Controls:
    """The step controls of a trainer; they are asked about each step that is taken."""

    def __init__(self, controls: Sequence[StepControl], passes: Passes) -> None:
        self.controls, self.passes = controls, passes
        #: What the controls reported about the last step.
        self.records: Records = {}
        #: The share of the last step's length that the controls left.
        self.share = 1.0
        #: Bytes of the head that came from other ranks so far.
        self.received = 0
        trained = {parameter.dtype for parameter in passes.policy().parameters() if parameter.requires_grad}
        if controls and trained & {torch.bfloat16, torch.float16}:
            told = (
                "trained weights are in half precision, whose last place may be larger than a shortened step: "
                "it is rounded away (keep them in float32)"
            )
            warnings.warn(told, CapoWarning, stacklevel=2)
        self._unrounded: Unrounded | None = None
        self._told = False
        self._remembered: _Step | None = None

    def judged(self, batch: Batch) -> Batch:
        """The batch as masks and weights see it: with the learning rate times the share that controls left last time.

        Masks and weights judge the step that is taken, and controls leave about the same share of each step.
        """
        info = batch.optimizer
        if info is None:
            return batch
        acting, own = info.learning_rate, info.step_learning_rate
        own = None if own is None else self.share * own
        return _with(batch, replace(info, learning_rate=self.share * acting, step_learning_rate=own))

    def leaves_out(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if the coming step is left out, because a gradient is not finite."""
        return bool(self.controls) and not finite(optimizer)

    def remember(
        self, optimizer: torch.optim.Optimizer, own: Any, decision: DecidedBatch, gradient_norm: float | None = None
    ) -> None:
        """To be called before the optimizer's step.

        Args:
            optimizer: The one that steps.
            own: This rank's part of the step, for `Passes.holding`.
            decision: The decision over the whole step, with the numbers of its rows.
            gradient_norm: The gradient's norm before it was clipped; `None` if it is not clipped yet.
        """
        moments = any(control.restores_moments for control in self.controls)
        alignment = any("ALIGNMENT" in control.inputs for control in self.controls)
        groups = groups_of(optimizer, self.passes.policy())
        proposal = Proposal(
            optimizer,
            groups,
            self._kl,
            self._head_kl,
            self.passes.model(),
            moments,
            alignment,
            gradient_norm,
            unclipped=gradient_norm is None,
        )
        assert decision.rows is not None
        self._remembered = _Step(own, decision, decision.rows, proposal, optimizer)

    def apply(self) -> tuple[Records, bool]:
        """To be called after the optimizer's step: what the controls reported, and whether a step was taken."""
        step = self._step
        try:
            with step.proposal.unbroken():
                info = step_info(step.optimizer, step.decision.batch.optimizer)
                batch = _with(step.decision.batch, info)
                self.records, taken = controlled(self.controls, step.proposal, batch, step.decision.weights)
        finally:
            self._remembered = None
        # A step of which nothing is left says nothing about the next one.
        self.share = float(self.records["step_control/applied"]) or self.share
        return self.records, taken

    @property
    def _step(self) -> _Step:
        assert self._remembered is not None
        return self._remembered

    def _kl(self, fraction: float) -> float:
        return self._divergence(self._drawn(fraction))

    def _head_kl(self) -> float:
        return self._divergence(self._step.rows, of_head=True)

    def _drawn(self, fraction: float) -> Tensor:
        """The numbers of `fraction` of the step's completions, at least one, drawn anew in every step.

        The run's seed and the step decide the draw, so it is the same on all ranks.
        """
        # Some trainers mask whole completions. On these a step of any length would measure 0.
        decision, progress = self._step.decision, self._step.decision.batch.progress
        rows = self._step.rows[decision.mask.bool().any(1)]
        random = torch.Generator().manual_seed(progress.seed << 32 | progress.step)
        count = max(1, math.ceil(fraction * len(rows)))
        return rows[torch.randperm(len(rows), generator=random)[:count].to(rows.device)]

    def _divergence(self, rows: Tensor, of_head: bool = False) -> float:
        """The mean KL divergence over the completion tokens of these rows; `of_head`: of the head's step alone."""
        step = self._step
        held = self.passes.holding(step.own, rows)
        with step.proposal.taken_back():
            # Before the forward pass, because FSDP2 gathers the head in it for a while.
            head = self.passes.head().weight
            before = self._whole(head).clone() if head.requires_grad else self._whole(head)
            old = self._features(held)
        after = self._whole(head) if head.requires_grad else None
        new = old if of_head else self._features(held)
        temperature = step.decision.batch.sampling.loss_temperature
        sums = torch.zeros(2, dtype=torch.float64, device=before.device)
        for one, other in zip(old, new, strict=True):
            sums[0] += divergence(one, other, before, after, temperature)
            sums[1] += len(one)
        if ranks() > 1:
            dist.all_reduce(sums)
        total, tokens = sums.tolist()
        # NaN, so that nothing is taken of a step that cannot be measured.
        return float(total / tokens) if tokens else math.nan

    def _features(self, held: Any) -> list[Tensor]:
        """The features of the passes, in float32 if the model can compute in it."""
        self._unrounded = self._unrounded or Unrounded(self.passes.policy().base_model)
        with self._unrounded.passes():
            found = self.passes.features(held)
        if not self._unrounded.exact and not self._told:
            self._told = True
            told = (
                "a step is measured in half precision, whose rounding is a floor of its KL divergence: targets below "
                "that shorten steps for nothing (keep weights in float32, and attention in `sdpa`)"
            )
            warnings.warn(told, CapoWarning, stacklevel=2)
        return found

    def _whole(self, head: Tensor) -> Tensor:
        found = whole(head.detach())
        self.received += received(head, found)
        return found


def _with(batch: Batch, info: Optimizer) -> Batch:
    """The batch with other facts of the optimizer; the batch itself, whose arrays are checked, if they are the same."""
    return batch if batch.optimizer == info else batch.replace(optimizer=info)
