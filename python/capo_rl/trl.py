"""Masks, weights and step controls of plugins in TRL's `GRPOTrainer`.

    from capo_rl.trl import CapoGRPOTrainer

    trainer = CapoGRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=..., step_controls=["governor.kl"])

Nothing of TRL's loss is repeated here. A decision reaches it as a factor of each token's gradient: 0 for a dropped
token, its weight for another. `_get_per_token_logps_and_entropies` applies the factors, by a hook on the tokens'
log-probabilities. The loss's value and TRL's own metrics are of all tokens. A step control sees the step that the
optimizer has taken, and shortens it in place.

There are two modes of masks and weights, with the same decisions:

* `ahead`: the completions of one optimizer step are scored before its first backward pass, gathered over micro-batches
  and ranks, put into the order in which they were sampled, and shown to the components at once. For all of them; it
  costs one more forward pass.
* `inflight`: they are shown each micro-batch in the forward pass that trains, and the whole step at its end. For those
  that decide token by token; a step may then be of several rollouts.

Every rank makes the same decisions and keeps the same state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import Trainer
from trl import GRPOTrainer

from . import Mask, StepControl, Weight
from ._control import Controls
from ._decision import DecidedBatch, decide, gradient_factor, load_checked, scale_gradient, states, step_end
from ._metrics import check, metrics
from ._step import Arrays, Ranks, joined, over_ranks
from ._trl_batch import Inputs, Seen, Steps, rows_of
from ._trl_rate import find_rate
from ._trl_reward import reward_func
from ._trl_settings import METHODS, check_hooks, settled, take_adamw
from .batch import Array
from .components import Component, Records, listed

__all__ = ["CapoGRPOTrainer", "find_rate", "reward_func"]

STATE = "capo_masks.pt"
#: Metrics that are summed over the micro-batches of a step; others are averaged.
SUMS = ("capo/seconds", "capo/gather_seconds", "capo/bytes_gathered")


@dataclass
class StepState:
    """What the trainer holds of the optimizer step that is under way.

    Attributes:
        is_due: True until masks and weights were asked about the step.
        decided: The decision over the whole step, once there is one.
        ranks: The other ranks, if `decided` is only of this rank's completions.
        parts: In flight, the arrays of each micro-batch with the decision about them.
        micro_batches: Each micro-batch with the factors of its tokens' gradients.
        gradient_norm: The norm of the gradient before it was clipped; `None` while it is not clipped.
        is_kept: True if a token stays and the gradient is finite, so that there is something to step with.
        is_second_pass: True while the gradient of what was rejected is computed.
        make_factors: Makes the factors of the forward pass that comes next, from its log-probabilities and entropies.
        numbers: The values of each metric for TRL's log.
    """

    is_due: bool = False
    decided: DecidedBatch | None = None
    ranks: Ranks | None = None
    parts: list[Arrays] = field(default_factory=list)
    micro_batches: list[tuple[Inputs, Tensor]] = field(default_factory=list)
    gradient_norm: float | None = None
    is_kept: bool = False
    is_second_pass: bool = False
    make_factors: Callable[[Tensor, Any], Tensor] | None = None
    numbers: dict[str, list[float]] = field(default_factory=dict)


class CapoGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with masks, weights and step controls.

    Masks and weights come between sampling and the backward pass, step controls between the optimizer's step and the
    new weights.

    Args:
        *args: As for `GRPOTrainer`.
        masks: Ids, such as `"capo.curvature"`, or `capo_rl.Mask` objects; applied in order. One may stand alone, here
            and below.
        weights: Ids or `capo_rl.Weight` objects; they multiply, after the masks.
        step_controls: Ids, such as `"governor.kl"`, or `capo_rl.StepControl` objects; each shortens what those before
            it left of the step.
        mask_denominator: `"kept"`: tokens that stay weigh more; `"original"`: a dropped token is a zero. By default
            `"kept"` for losses that divide by a completion's or a micro-batch's tokens (`grpo`, `sapo`, `bnpo`), else
            `"original"`.
        mode: `"ahead"`, `"inflight"`, or `"auto"`: in flight where every component decides token by token.
        second_moment: `"kept_and_rejected"`: Adam's second moment takes in the gradient of what was rejected too, see
            `capo_rl.torch.AdamW`; it costs a second forward and backward pass over the completions that have a rejected
            token.
        exchange: What travels between ranks at the end of a step in flight: `"arrays"`, what masks read; `"sums"`, what
            they add up of their own rows; or `"auto"`, whichever is fewer bytes.
        last_layer_top_k: How many of the largest logits masks of the last layer see.
        component_metrics: What the components report, for TRL's log: `"main"`, the few numbers that say how a run goes,
            or `"all"`.
        **kwargs: As for `GRPOTrainer`.

    Raises:
        ValueError: For a combination that cannot be right, in a sentence.
    """

    def __init__(
        self,
        *args: Any,
        masks: str | Mask | Iterable[str | Mask] = (),
        weights: str | Weight | Iterable[str | Weight] = (),
        step_controls: str | StepControl | Iterable[str | StepControl] = (),
        mask_denominator: str | None = None,
        mode: str = "auto",
        second_moment: str = "kept",
        exchange: str = "auto",
        last_layer_top_k: int = 50,
        component_metrics: str = "main",
        **kwargs: Any,
    ) -> None:
        check_hooks(GRPOTrainer, METHODS)
        check(component_metrics)
        super().__init__(*args, **kwargs)
        self.capo_masks, self.capo_weights = listed(Mask, masks), listed(Weight, weights)
        self.capo_step_controls = listed(StepControl, step_controls)
        self.second_moment, self.component_metrics = second_moment, component_metrics
        self._capo_step = StepState()
        if not self._components():
            return
        deciders: list[Mask | Weight] = [*self.capo_masks, *self.capo_weights]
        controls = self.capo_step_controls
        self.capo_settings = settled(self, deciders, controls, mask_denominator, mode, exchange)
        needed = frozenset(name for each in self._components() for name in each.inputs)
        self._seen = Seen(self, needed, last_layer_top_k, self.capo_settings, measures=bool(self.capo_step_controls))
        self._controls = Controls(self.capo_step_controls, self._seen)
        if second_moment != "kept":
            take_adamw(self, second_moment)
        self.add_callback(Steps(self))

    def _components(self) -> list[Component]:
        return [*self.capo_masks, *self.capo_weights, *self.capo_step_controls]

    def _begin_step(self) -> None:
        """Begins a step, and forgets what one that was broken off has left behind."""
        self._capo_step = StepState(is_due=True)
        if self.second_moment != "kept":
            self._adamw().zero_grad()

    # A step's decision ----------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        output: Inputs = super()._generate_and_score_completions(inputs)
        count = output["completion_ids"].shape[0]
        # Rows keep their numbers through TRL's shuffle. A step may be of several rollouts, so no two of these share a
        # number.
        first = (self._step * self.accelerator.num_processes + self.accelerator.process_index) * count
        output["capo_rows"] = torch.arange(first, first + count, device=output["completion_ids"].device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._capo_step.is_second_pass:
            return generation_batch
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._capo_step.is_due:
            self._capo_step.is_due = False
            if self.capo_settings.mode == "ahead":
                at = self._step % self.args.steps_per_generation
                self._decide_ahead(self._buffered_inputs[at : at + self.current_gradient_accumulation_steps])
        return inputs

    def _decide_ahead(self, micro_batches: Sequence[Inputs]) -> None:
        """All components over the step's whole batch; each micro-batch gets its part."""
        started = self._now()
        parts = [self._seen.scored(inputs) for inputs in micro_batches]
        own = [part["rows"] for part in parts]
        arrays = self._gathered(joined(parts))
        rows, mask = arrays["rows"], arrays["completion_mask"]
        batch = self._controls.judged(self._seen.batch(arrays, self._seen.group_size(rows)))
        decision = decide(batch, mask, self.capo_masks, self.capo_weights)
        decision.rows = rows
        self._capo_step.decided = decision
        self._share_out(decision, micro_batches, own)
        self._tell(decision.records, started, decision.batch.completion_mask)

    def _share_out(self, decision: DecidedBatch, micro_batches: Sequence[Inputs], own: Sequence[Tensor]) -> None:
        """Gives each micro-batch, whose rows have the numbers in `own`, the factors of its tokens' gradients."""
        whole = (decision.mask, decision.token_mask, decision.weights)
        factors = self._factor(*whole) if self.capo_settings.together == "step" else None
        for inputs, numbers in zip(micro_batches, own, strict=True):
            place, tokens = torch.searchsorted(decision.rows, numbers), inputs["completion_ids"].shape[1]
            if factors is not None:
                inputs["capo_factor"] = factors[place][:, :tokens]
            else:
                inputs["capo_factor"] = self._factor(*(array[place][:, :tokens] for array in whole))

    def _decide_inflight(self, inputs: Inputs, logps: Tensor, entropies: Any) -> Tensor:
        """All components over the micro-batch of the running forward pass; the factors of its tokens' gradients."""
        started = self._now()
        part = self._seen.arrays(inputs, logps, entropies)
        mask = part["completion_mask"]
        decision = decide(self._controls.judged(self._seen.batch(part)), mask, self.capo_masks, self.capo_weights)
        self._capo_step.parts.append(part | {"token_mask": decision.token_mask, "weights": decision.weights})
        self._tell(decision.records, started, decision.batch.completion_mask)
        return self._factor(mask, decision.token_mask, decision.weights)

    def _factor(self, mask: Tensor, token_mask: Tensor, weights: Tensor) -> Tensor:
        return gradient_factor(mask, token_mask, weights, self.capo_settings.reduction, self.capo_settings.denominator)

    def _gathered(self, arrays: Arrays) -> Arrays:
        """The rows of all ranks, in the order of sampling."""
        started = time.perf_counter()
        arrays, received = over_ranks(arrays)
        order = arrays["rows"].argsort()
        arrays = {name: arrays.pop(name)[order] for name in list(arrays)}
        self._add("capo/bytes_gathered", received)
        self._add("capo/gather_seconds", time.perf_counter() - started)
        return arrays

    # How a decision reaches the gradient ----------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Inputs) -> Any:
        if not self._components() or not self.model.training:
            return super()._compute_loss(model, inputs)
        own = {name: value for name, value in inputs.items() if not name.startswith("capo_")}

        def make_factors(logps: Tensor, entropies: Any) -> Tensor:
            factor: Tensor | None = inputs.get("capo_factor")
            if factor is None:
                factor = self._decide_inflight(inputs, logps, entropies)
            if not self._capo_step.is_second_pass:
                self._capo_step.micro_batches.append((inputs, factor))
            return factor

        self._capo_step.make_factors = make_factors
        if "capo_factor" not in inputs:
            self._seen.look()
        try:
            return super()._compute_loss(model, own)
        finally:
            self._capo_step.make_factors = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's; in the forward pass of a loss, gradients that reach the results are multiplied by the factors."""
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        make_factors, self._capo_step.make_factors = self._capo_step.make_factors, None
        if make_factors is not None:
            logps, entropies, *_ = found
            factor = make_factors(logps, entropies)
            scale_gradient(logps, factor)
            scale_gradient(entropies, factor)
        return found

    # The gradient of what was rejected -------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """TRL's, and at the end of a step the pass over what was rejected."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients and self._components() and self.second_moment != "kept":
            self._second_pass(model, num_items_in_batch)
        return loss

    def _second_pass(self, model: Any, num_items_in_batch: Any) -> None:
        """The gradient of what was rejected or weighted away, over the completions that have something of it."""
        started, rests = time.perf_counter(), []
        for inputs, factor in self._capo_step.micro_batches:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            rests.append((inputs, mask, (1 - factor) * mask))
        # Each rank passes as many completions: the passes average over ranks, and TRL gathers their numbers.
        counts = torch.stack([rest.any(1).sum() for _, _, rest in rests])
        if self.accelerator.num_processes > 1:
            dist.all_reduce(counts, dist.ReduceOp.MAX)
        logged = {name: len(values) for name, values in self._metrics["train"].items()}
        self._capo_step.is_second_pass = True
        try:
            with self._adamw().rejected():
                for (inputs, mask, rest), count in zip(rests, counts.tolist(), strict=True):
                    if count:
                        part = self._with_rest(inputs, mask, rest, count)
                        Trainer.training_step(self, model, part, num_items_in_batch)
        finally:
            self._capo_step.is_second_pass = False
        # TRL logged these completions before.
        for name, values in self._metrics["train"].items():
            del values[logged.get(name, 0) :]
        self._add("capo/second_pass_completions", int(counts.sum()))
        self._add("capo/second_pass_seconds", time.perf_counter() - started)

    def _with_rest(self, inputs: Inputs, mask: Tensor, rest: Tensor, count: int) -> Inputs:
        """`count` rows of a micro-batch, those that have something in `rest` among them.

        Their loss is then reduced as in the micro-batch.
        """
        if getattr(self, "_entropy_bonus_enabled", False) or self.top_entropy_quantile < 1:
            # The bonus is averaged on its own, and the quantile is one of the rows that are there.
            return inputs | {"capo_factor": rest}
        part, rows = rows_of(inputs, rest.any(1), count)
        shares: dict[str, Tensor | float] = {
            "completion": len(rows) / len(rest),
            "micro-batch": mask[rows].sum().clamp(min=1) / mask.sum().clamp(min=1),
            "step": 1.0,
        }
        share = shares[self.capo_settings.together]
        return part | {"capo_factor": rest[rows] * share}

    def _adamw(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _clip_grad_norm(self, model: Any) -> Any:
        if not (self._components() and self.second_moment != "kept" and self._adamw().has_rejected):
            norm = super()._clip_grad_norm(model)
            self._capo_step.gradient_norm = float(norm)
            return norm
        norms = self._adamw().grad_norms()
        self._capo_step.gradient_norm = float(norms["kept"])
        self._add("capo/kept_grad_norm", float(norms["kept"]))
        self._add("capo/rejected_grad_norm", float(norms["rejected"]))
        self._adamw().clip_grads_with_norm_(self.args.max_grad_norm, norms["unmasked"])
        return norms["unmasked"]

    # The step and its end -------------------------------------------------------------------------

    def _before_step(self) -> None:
        """All gradients are there: completes the decision, and leaves out a step that has nothing to step with."""
        step = self._capo_step
        if step.parts:
            step.decided = self._joined_decision()
        micro_batches, step.micro_batches = step.micro_batches, []
        if step.decided is None:
            return
        kept = self._count(step.decided)
        # A scaler of losses itself leaves out steps whose gradient is not finite.
        broken = self.accelerator.scaler is None and self._controls.leaves_out(self._adamw())
        step.is_kept = kept > 0 and not broken
        self._add("capo/skipped", not step.is_kept)
        if not step.is_kept:
            # Gradients of zero would still move Adam's weights.
            self._adamw().zero_grad()
        elif self.capo_step_controls:
            own = [inputs for inputs, _ in micro_batches]
            self._controls.remember(self._adamw(), own, step.decided, step.gradient_norm)

    def _joined_decision(self) -> DecidedBatch:
        """The decision over the whole step in flight, of its micro-batches' decisions."""
        step = self._capo_step
        arrays, step.parts = joined(step.parts), []
        if self._seen.sums_are_less(arrays):
            step.ranks = Ranks(self.accelerator.device)
        else:
            arrays = self._gathered(arrays)
        token_mask, weights = arrays.pop("token_mask"), arrays.pop("weights")
        batch = self._controls.judged(self._seen.batch(arrays))
        return DecidedBatch(batch, arrays["completion_mask"], token_mask, weights, rows=arrays["rows"])

    def _count(self, decided: DecidedBatch) -> int:
        """Logs how many tokens of the step were rejected; the number of those that stay."""
        counts = torch.stack([decided.mask.sum(), decided.token_mask.sum()])
        weighed = decided.weights.sum()
        if self._capo_step.ranks is not None:
            dist.all_reduce(counts)
            dist.all_reduce(weighed)
        tokens, kept = counts.tolist()
        self._add("capo/rejected_tokens", tokens - kept)
        self._add("capo/rejection_rate", (tokens - kept) / max(tokens, 1))
        if self.capo_weights:
            self._add("capo/mean_weight", float(weighed) / max(tokens, 1))
        return int(kept)

    def _after_step(self) -> None:
        """The optimizer has stepped: step controls shorten the step, and masks and weights hear of its end."""
        step = self._capo_step
        decided, step.decided = step.decided, None
        if decided is None:
            return
        started = self._now()
        taken = step.is_kept and not self.accelerator.optimizer_step_was_skipped
        if taken and self.capo_step_controls:
            told, taken = self._controls.apply()
            self._tell(told, started)
            self._add("capo/control_seconds", time.perf_counter() - started)
            started = time.perf_counter()
        step_end(decided, self.capo_masks, self.capo_weights, taken, step.ranks)
        if step.ranks is not None:
            self._add("capo/bytes_gathered", step.ranks.received)
        self._add("capo/seconds", time.perf_counter() - started)
        self._log()

    def _log(self) -> None:
        """Adds the step's numbers to TRL's metrics: one value of each."""
        for name, values in self._capo_step.numbers.items():
            of_step = sum(values) if name in SUMS else sum(values) / len(values)
            self._metrics["train"][name].append(float(of_step))
        self._capo_step.numbers = {}

    def _now(self) -> float:
        """The time, once the device has done all earlier work, whose time is not that of the components."""
        if self.accelerator.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    def _tell(self, records: Records, started: float, mask: Array | None = None) -> None:
        for name, value in metrics(records, mask, self.component_metrics).items():
            self._add(f"capo/{name}", value)
        self._add("capo/seconds", time.perf_counter() - started)

    def _add(self, name: str, value: float) -> None:
        self._capo_step.numbers.setdefault(name, []).append(value)

    # Checkpoints ----------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self._components() and self.args.should_save:
            told = {"second_moment": self.second_moment, "share": self._controls.share}
            torch.save(told | {"components": states(self._components())}, folder / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._components():
            return
        path = Path(checkpoint) / STATE
        saved = torch.load(path, weights_only=True) if path.exists() else None
        load_checked(path, saved, self._components(), self.second_moment)
        if saved is not None:
            self._controls.share = saved.get("share", 1.0)
