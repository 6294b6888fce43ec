"""Step controls in TRL's trainer: between the optimizer's step and the new weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from . import StepControl
from ._decision import Decision
from ._proposal import Proposal, controlled, divergence, groups_of
from ._step import whole
from ._trl_batch import Seen, rows_of


class Controls:
    """The step controls of a trainer; they are asked about each step that is taken."""

    def __init__(self, controls: Sequence[StepControl], seen: Seen) -> None:
        self.controls, self.seen, self._proposal = controls, seen, None
        self._micro, self._decision = [], None

    def remember(self, optimizer, micro_batches, decision: Decision) -> None:
        """To be called before the optimizer's step, with the micro-batches of this rank and the decision over the whole step."""
        policy, moments = self.seen.policy(), any(control.restores_moments for control in self.controls)
        self._micro, self._decision = micro_batches, decision
        alignment = any("ALIGNMENT" in control.inputs for control in self.controls)
        self._proposal = Proposal(optimizer, groups_of(optimizer, policy), self._kl, self._head_kl, self.seen.trainer.model, moments, alignment)

    def apply(self) -> tuple[dict, bool]:
        """To be called after it: what was reported, and whether there was a step."""
        try:
            return controlled(self.controls, self._proposal, self._decision.batch, self._decision.weights)
        finally:
            self._micro, self._decision, self._proposal = [], None, None

    def _kl(self, fraction):
        return self._divergence(self._drawn(fraction))

    def _head_kl(self):
        return self._divergence(self._decision.rows, of_head=True)

    def _drawn(self, fraction):
        """The numbers of ``fraction`` of the step's completions, at least one, drawn anew in every step from the run's seed: the same on all ranks."""
        rows, trainer = self._decision.rows, self.seen.trainer
        random = torch.Generator().manual_seed(trainer.args.seed << 32 | trainer.state.global_step)
        count = max(1, math.ceil(fraction * len(rows)))
        return rows[torch.randperm(len(rows), generator=random)[:count].to(rows.device)]

    def _divergence(self, rows, of_head=False):
        """The mean KL divergence over the completion tokens of these rows, or that of the head's step alone."""
        chosen = [torch.isin(inputs["capo_rows"], rows) for inputs in self._micro]
        # As many forward passes, of as many completions, on each rank: FSDP2 gathers weights in them.
        counts = torch.stack([each.sum() for each in chosen])
        if self.seen.trainer.accelerator.num_processes > 1:
            dist.all_reduce(counts, dist.ReduceOp.MAX)
        parts = [_part(inputs, each, count) for inputs, each, count in zip(self._micro, chosen, counts.tolist(), strict=True) if count]
        with self._proposal.taken_back():
            # Before a forward pass, in which FSDP2 gathers it for a while.
            head = self.seen.head().weight
            before = whole(head.detach()).clone() if head.requires_grad else whole(head.detach())
            old = [self.seen.features(inputs) for inputs, _ in parts]
        after = whole(head.detach()) if head.requires_grad else None
        sums = torch.zeros(2, dtype=torch.float64, device=before.device)
        for features, (inputs, mask) in zip(old, parts, strict=True):
            new = features if of_head else self.seen.features(inputs)
            mask = mask.reshape(-1).bool()
            sums += torch.stack([divergence(features[mask], new[mask], before, after, self.seen.trainer.temperature), mask.sum().double()])
        if self.seen.trainer.accelerator.num_processes > 1:
            dist.all_reduce(sums)
        total, tokens = sums.tolist()
        return total / max(tokens, 1)


def _part(inputs, chosen, count):
    """``count`` rows of a micro-batch, the chosen ones among them, and the completion tokens of the chosen ones."""
    part, rows = rows_of(inputs, chosen, count)
    return part, part["completion_mask"] * part.get("tool_mask", 1) * chosen[rows, None]
