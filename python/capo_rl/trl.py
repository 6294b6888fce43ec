"""Masks, weights and step controls of plugins in TRL's `GRPOTrainer`.

    from capo_rl.trl import CapoGRPOTrainer

    trainer = CapoGRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=..., step_controls=["governor.kl"])

Nothing of TRL's loss is repeated here. What was decided reaches it as a factor of each token's gradient: 0 for a
dropped token, its weight for another. The loss's value and TRL's own metrics are of all tokens. A step control sees the
step that the optimizer has taken, and shortens it in place.

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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import Trainer
from trl import GRPOTrainer

from . import Mask, StepControl, Weight
from ._control import Controls
from ._decision import Decision, decide, gradient_factor, load_checked, scale_gradient, states, step_end
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
SUMS = ("capo/seconds", "capo/gather_seconds", "capo/bytes_gathered")


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
            `capo_rl.torch.AdamW`; it costs a second forward and backward pass over the completions that have something
            rejected.
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
        self._begin_step(due=False)
        # Of the forward pass that is next: makes the factors of it. And whether it is a second one.
        self._capo_factors: Callable[[Tensor, Any], Tensor] | None = None
        self._capo_again = False
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

    def _begin_step(self, due: bool = True) -> None:
        """Forgets what a step that was broken off has left behind."""
        # Of the step: whether it is to be decided; what was decided, of whose rows, and whether anything stays; its
        # parts in flight, the micro-batches with their factors, what was told.
        self._capo_due, self._capo_kept = due, False
        self._capo_decision: Decision | None = None
        self._capo_ranks: Ranks | None = None
        self._capo_parts: list[Arrays] = []
        self._capo_micro: list[tuple[Inputs, Tensor]] = []
        self._capo_told: dict[str, list[float]] = {}
        if due and self.second_moment != "kept":
            self._adamw().zero_grad()

    # Deciding -------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        output: Inputs = super()._generate_and_score_completions(inputs)
        count = output["completion_ids"].shape[0]
        # Rows keep their numbers through TRL's shuffle, and no two rollouts, of which a step may have several, share
        # one.
        first = (self._step * self.accelerator.num_processes + self.accelerator.process_index) * count
        output["capo_rows"] = torch.arange(first, first + count, device=output["completion_ids"].device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._capo_again:
            return generation_batch
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._capo_due:
            self._capo_due = False
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
        whole = (mask, decision.token_mask, decision.weights)
        factors = self._factor(*whole) if self.capo_settings.together == "step" else None
        for inputs, numbers in zip(micro_batches, own, strict=True):
            place, tokens = torch.searchsorted(rows, numbers), inputs["completion_ids"].shape[1]
            if factors is not None:
                inputs["capo_factor"] = factors[place][:, :tokens]
            else:
                inputs["capo_factor"] = self._factor(*(array[place][:, :tokens] for array in whole))
        self._capo_decision = decision
        decision.rows = rows
        self._tell(decision.records, started, decision.batch.completion_mask)

    def _decide_inflight(self, inputs: Inputs, logps: Tensor, entropies: Any) -> Tensor:
        """All components over one micro-batch, of which this forward pass is."""
        started = self._now()
        part = self._seen.arrays(inputs, logps, entropies)
        mask = part["completion_mask"]
        decision = decide(self._controls.judged(self._seen.batch(part)), mask, self.capo_masks, self.capo_weights)
        self._capo_parts.append(part | {"token_mask": decision.token_mask, "weights": decision.weights})
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

    # The loss -------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Inputs) -> Any:
        if not self._components() or not self.model.training:
            return super()._compute_loss(model, inputs)
        own = {name: value for name, value in inputs.items() if not name.startswith("capo_")}

        def factors(logps: Tensor, entropies: Any) -> Tensor:
            factor: Tensor | None = inputs.get("capo_factor")
            if factor is None:
                factor = self._decide_inflight(inputs, logps, entropies)
            if not self._capo_again:
                self._capo_micro.append((inputs, factor))
            return factor

        self._capo_factors = factors
        if "capo_factor" not in inputs:
            self._seen.look()
        try:
            return super()._compute_loss(model, own)
        finally:
            self._capo_factors = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        factors, self._capo_factors = self._capo_factors, None
        if factors is not None:
            logps, entropies, *_ = found
            factor = factors(logps, entropies)
            scale_gradient(logps, factor)
            scale_gradient(entropies, factor)
        return found

    # Rejected gradients ---------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """TRL's, and at the end of a step the pass over what was rejected."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients and self._components() and self.second_moment != "kept":
            self._second_pass(model, num_items_in_batch)
        return loss

    def _second_pass(self, model: Any, num_items_in_batch: Any) -> None:
        """The gradient of what was rejected or weighted away, over the completions that have something of it."""
        started, again = time.perf_counter(), []
        for inputs, factor in self._capo_micro:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            again.append((inputs, mask, (1 - factor) * mask))
        # Completions a pass, as many on each rank: the passes average over ranks, and TRL gathers what it tells of
        # them.
        counts = torch.stack([rest.any(1).sum() for _, _, rest in again])
        if self.accelerator.num_processes > 1:
            dist.all_reduce(counts, dist.ReduceOp.MAX)
        told = {name: len(values) for name, values in self._metrics["train"].items()}
        self._capo_again = True
        try:
            with self._adamw().rejected():
                for (inputs, mask, rest), count in zip(again, counts.tolist(), strict=True):
                    if count:
                        part = self._with_rest(inputs, mask, rest, count)
                        Trainer.training_step(self, model, part, num_items_in_batch)
        finally:
            self._capo_again = False
        # TRL counted these completions before.
        for name, values in self._metrics["train"].items():
            del values[told.get(name, 0) :]
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
            return super()._clip_grad_norm(model)
        norms = self._adamw().grad_norms()
        self._add("capo/kept_grad_norm", float(norms["kept"]))
        self._add("capo/rejected_grad_norm", float(norms["rejected"]))
        self._adamw().clip_grads_with_norm_(self.args.max_grad_norm, norms["unmasked"])
        return norms["unmasked"]

    # The step and its end -------------------------------------------------------------------------

    def _before_step(self) -> None:
        """A step of which nothing is left changes nothing: zero gradients would still move Adam's weights."""
        if self._capo_parts:
            arrays, self._capo_parts = joined(self._capo_parts), []
            if self._seen.sums_are_less(arrays):
                self._capo_ranks = Ranks(self.accelerator.device)
            else:
                arrays = self._gathered(arrays)
            token_mask, weights = arrays.pop("token_mask"), arrays.pop("weights")
            batch, mask = self._controls.judged(self._seen.batch(arrays)), arrays["completion_mask"]
            self._capo_decision = Decision(batch, mask, token_mask, weights, rows=arrays["rows"])
        micro, self._capo_micro = self._capo_micro, []
        if self._capo_decision is None:
            return
        decided = self._capo_decision
        counts, weighed = torch.stack([decided.mask.sum(), decided.token_mask.sum()]), decided.weights.sum()
        if self._capo_ranks is not None:
            dist.all_reduce(counts)
            dist.all_reduce(weighed)
        tokens, kept = counts.tolist()
        # A scaler of losses leaves out steps that are no numbers itself.
        broken = self.accelerator.scaler is None and self._controls.leaves_out(self._adamw())
        self._capo_kept = kept > 0 and not broken
        self._add("capo/rejected_tokens", tokens - kept)
        self._add("capo/rejection_rate", (tokens - kept) / max(tokens, 1))
        self._add("capo/skipped", not self._capo_kept)
        if self.capo_weights:
            self._add("capo/mean_weight", float(weighed) / max(tokens, 1))
        if not self._capo_kept:
            self._adamw().zero_grad()
        elif self.capo_step_controls:
            self._controls.remember(self._adamw(), [inputs for inputs, _ in micro], decided)

    def _after_step(self) -> None:
        if self._capo_decision is None:
            return
        started = self._now()
        decision, ranks = self._capo_decision, self._capo_ranks
        self._capo_decision, self._capo_ranks = None, None
        taken = self._capo_kept and not self.accelerator.optimizer_step_was_skipped
        if taken and self.capo_step_controls:
            told, taken = self._controls.apply()
            self._tell(told, started)
            self._add("capo/control_seconds", time.perf_counter() - started)
            started = time.perf_counter()
        step_end(decision, self.capo_masks, self.capo_weights, taken, ranks)
        if ranks is not None:
            self._add("capo/bytes_gathered", ranks.received)
        self._add("capo/seconds", time.perf_counter() - started)
        for name, values in self._capo_told.items():
            # Of several micro-batches: what was counted or timed is summed, what the components report is averaged.
            of_step = sum(values) if name in SUMS else sum(values) / len(values)
            self._metrics["train"][name].append(float(of_step))
        self._capo_told = {}

    def _now(self) -> float:
        """The time, once the device has done what it was asked for before.

        What follows waits for that, and it is not what components take.
        """
        if self.accelerator.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    def _tell(self, records: Records, started: float, mask: Array | None = None) -> None:
        for name, value in metrics(records, mask, self.component_metrics).items():
            self._add(f"capo/{name}", value)
        self._add("capo/seconds", time.perf_counter() - started)

    def _add(self, name: str, value: float) -> None:
        self._capo_told.setdefault(name, []).append(value)

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
