"""The FSDP engine of verl with masks, weights and step controls.

Masks and weights come between sampling and the backward pass, step controls between the optimizer's step and the new
weights.

verl hands an engine the whole mini-batch of an optimizer step that a rank has, before it is cut into micro-batches.

* *Ahead*, the mini-batch is scored once more without a graph, gathered over the data parallel ranks, put into an order
  that does not depend on them, and shown to the masks once.
* *In flight*, the masks see each micro-batch in the forward pass that trains. What they add up over the step is summed
  over ranks at its end.

Decisions reach verl's loss as factors of the gradient of its log-probabilities, in `prepare_model_outputs`. Nothing of
the loss is repeated.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from .. import Mask, Weight
from .._control import Controls
from .._decision import DecidedBatch, decide, gradient_factor, load_checked, scale_gradient, states, step_end
from .._metrics import metrics
from .._step import Arrays, Ranks, joined, ranks
from ..components import Component, Records
from . import _rows as rows
from ._seen import Seen, Step, one_temperature

STATE = "capo_masks.pt"
logger = logging.getLogger(__name__)

#: Called with each micro-batch of a pass and with what its forward pass found. It returns the factors of the tokens'
#: gradients, `[b, T]`, if it decides any.
Look = Callable[[TensorDict, dict[str, Tensor]], Tensor | None]


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "cpu"], vendor="capo")
class CapoEngine(FSDPEngineWithLMHead):
    """`FSDPEngineWithLMHead` with the components of `CapoActorConfig`.

    Without them, and where it only infers, it is that engine.
    """

    def initialize(self) -> None:
        """As the engine's own, and opens the components."""
        settings: Any = None if self.engine_config.forward_only else getattr(self.engine_config, "capo", None)
        self.capo = settings
        components = settings.components() if settings else ([], [], [])
        self.capo_masks, self.capo_weights, self.capo_step_controls = components
        super().initialize()
        #: What the running pass calls with each of its micro-batches; `None` for verl's own passes.
        self._look: Look | None = None
        #: True if the running pass looks at the last layer too.
        self._layer = False
        #: In flight, the arrays of each micro-batch of the step with the decision about them.
        self._parts: list[Arrays] = []
        #: The step that was decided and is not over.
        self._step: Step | None = None
        #: The values of each metric of the step.
        self._told: dict[str, list[float]] = {}
        #: How often each row of the rollout was used, by a hash of its contents.
        self._used = Counter[int]()
        #: Bytes from other ranks that earlier steps have reported.
        self._received = 0
        if not self._components():
            return
        needed = frozenset(name for each in self._components() for name in each.inputs)
        self._inflight = settings.inflight(self._deciders())
        self._seen = Seen(self, settings, needed, measures=bool(self.capo_step_controls))
        self._controls = Controls(self.capo_step_controls, self._seen)

    def _deciders(self) -> list[Mask | Weight]:
        return [*self.capo_masks, *self.capo_weights]

    def _components(self) -> list[Component]:
        return [*self._deciders(), *self.capo_step_controls]

    def _remembers(self) -> bool:
        return bool(self._deciders()) and self.capo.second_moment != "kept"

    def _build_optimizer(self, module: Any) -> Any:
        if not self._remembers():
            return super()._build_optimizer(module)
        keys = (self.optimizer_config.override_optimizer_config or {}) | {"second_moment": self.capo.second_moment}
        config = replace(self.optimizer_config, optimizer_impl="capo_rl.torch", override_optimizer_config=keys)
        return build_optimizer(module.parameters(), config)

    # Passes over a mini-batch ---------------------------------------------------------------------

    def passed(
        self, data: TensorDict, loss_function: Any, look: Look | None, layer: bool = True, forward_only: bool = False
    ) -> Any:
        """A pass as verl makes it, which calls `look` with each micro-batch; `layer` prepares the last layer too."""
        self._look, self._layer = look, layer
        try:
            return super().forward_backward_batch(data, loss_function, forward_only)
        finally:
            self._look = None
            self._seen.look_away()

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        """As the engine's own; prepares what `look` sees of the forward pass."""
        if self._look is not None:
            self._seen.look_at(micro_batch, self._layer)
        return super().forward_step(micro_batch, loss_function, forward_only)

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """As the engine's own; here a decision is applied, to the gradients of log-probabilities and entropies."""
        given = (output, output_args, micro_batch, logits_processor_func)
        found: dict[str, Tensor] = super().prepare_model_outputs(*given)
        factor = self._look(micro_batch, found) if self._look is not None else micro_batch.get("capo_factor", None)
        if factor is None:
            return found
        factor = rows.Rows(micro_batch).to_outputs(factor)
        for name in ("log_probs", "entropy"):
            if name in found:
                nested: Any = found[name]
                values, offsets = nested.values(), nested.offsets()
                scale_gradient(values, factor)
                found[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        return found

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """As the engine's own, with the decisions over the mini-batch.

        Raises:
            ValueError: For a loss that is none of verl's policy losses.
        """
        if forward_only or not self._components():
            return super().forward_backward_batch(data, loss_function, forward_only)
        if getattr(loss_function, "func", None) is not ppo_loss:
            raise ValueError(
                "masks work on verl's policy losses, and this is another "
                "(leave `capo` out of a run of distillation or of fine-tuning)"
            )
        data = self._begun(data)
        if self._inflight:
            output = self._decide_inflight(data, loss_function)
        else:
            self._decide_ahead(data)
            data["capo_factor"] = self._current.factors.to(data["input_ids"].device)
            output = super().forward_backward_batch(data, loss_function)
        if self._remembers():
            self._second_pass(loss_function)
        return output

    def _begun(self, data: TensorDict) -> TensorDict:
        """Begins a step; its mini-batch with the numbers of its rows."""
        data, first = data.copy(), self.get_data_parallel_rank() << 32
        data["capo_rows"] = torch.arange(first, first + len(data))
        data["capo_prompt"], data["capo_content"] = rows.Rows(data).keys(data)
        contents = data["capo_content"].tolist()
        used = self.reduced(torch.tensor(min(self._used[each] for each in contents)), dist.ReduceOp.MIN)
        self._used.update(contents)
        self._seen.begin_step(one_temperature(data["temperature"]), int(used))
        return data

    def reduced(self, value: Tensor, by: Any = dist.ReduceOp.SUM) -> Tensor:
        """`value` reduced over all data parallel ranks."""
        value = value.to(get_device_id())
        dist.all_reduce(value, by, self.get_data_parallel_group())
        return value

    # Deciding -------------------------------------------------------------------------------------

    def _decide_ahead(self, data: TensorDict) -> None:
        """All components over the step's whole batch, after it is scored and gathered."""
        started, parts = time.perf_counter(), []
        scoring = data.copy()
        tu.assign_non_tensor(scoring, calculate_entropy="ENTROPY" in self._seen.needed, calculate_sum_pi_squared=False)

        def look(micro: TensorDict, found: dict[str, Tensor]) -> None:
            parts.append(self._seen.part(micro, found))

        with torch.no_grad():
            self.passed(scoring, None, look, forward_only=True)
        own = joined(parts)
        self._say_bytes(own)
        arrays = self._seen.gathered(own, self._seen.needed)
        decision = self._decide(arrays, of_step=True)
        decision.rows = arrays["rows"]
        self._tell(decision.records, arrays["completion_mask"].cpu())
        self._decided(data, decision, {}, torch.stack([decision.mask.sum(), decision.token_mask.sum()]))
        self._add("seconds", time.perf_counter() - started)

    def _decide(self, arrays: Arrays, of_step: bool) -> DecidedBatch:
        batch = self._controls.judged(self._seen.batch(arrays, of_step))
        return decide(batch, arrays["completion_mask"], self.capo_masks, self.capo_weights)

    def _decision_of(self, arrays: Arrays, of_step: bool) -> DecidedBatch:
        """The decision over joined micro-batches, which hold it."""
        token_mask, weights = arrays.pop("token_mask"), arrays.pop("weights")
        batch = self._controls.judged(self._seen.batch(arrays, of_step))
        return DecidedBatch(batch, arrays["completion_mask"], token_mask, weights, rows=arrays["rows"])

    def _say_bytes(self, own: Arrays) -> None:
        others = ranks(self.get_data_parallel_group()) - 1
        if self._seen.steps == 0 and self.rank == 0 and others:
            received = sum(array.nbytes for array in own.values()) * others / 1e9
            ids = ", ".join(f"`{each.id}`" for each in self._components())
            told = "every step a rank receives about %.3g GB from %d others, because %s may need the whole of it ahead"
            logger.warning(told, received, others, ids)

    def _decide_inflight(self, data: TensorDict, loss_function: Any) -> Any:
        """All components over one micro-batch after another, in the forward pass that trains."""
        data, seconds = data.copy(), 0.0
        asked = tu.get_non_tensor_data(data, "calculate_entropy", False)
        tu.assign_non_tensor(data, calculate_entropy=asked or "ENTROPY" in self._seen.needed)

        def look(micro: TensorDict, found: dict[str, Tensor]) -> Tensor | None:
            nonlocal seconds
            started = time.perf_counter()
            part = self._seen.part(micro, found)
            if not asked:
                # verl's loss would add an entropy term.
                found.pop("entropy", None)
            decision = self._decide(part, of_step=False)
            self._parts.append(part | {"token_mask": decision.token_mask, "weights": decision.weights})
            self._tell(decision.records, part["completion_mask"].cpu())
            seconds += time.perf_counter() - started
            return self._factor(decision) if self._deciders() else None

        output = self.passed(data, loss_function, look)
        started = time.perf_counter()
        arrays, self._parts = joined(self._parts), []
        decision = self._decision_of(arrays, of_step=False)
        counts = self.reduced(torch.stack([decision.mask.sum(), decision.token_mask.sum()]))
        tokens, kept = self._decided(data, decision, arrays, counts)
        if self._over_step() and kept:
            # No micro-batch knew how many tokens of the step stay. Dividing later gives the same gradients.
            self._current.factors = self._current.factors * (tokens / kept)
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(tokens / kept)
        self._add("seconds", seconds + time.perf_counter() - started)
        return output

    @property
    def _current(self) -> Step:
        assert self._step is not None
        return self._step

    def _over_step(self) -> bool:
        """Whether all tokens of the step share a denominator that masks change."""
        return bool(self._deciders()) and self.capo.reduction == "token_mean" and self.capo.denominator == "kept"

    def _factor(self, decision: DecidedBatch) -> Tensor:
        """The factors of tokens' gradients; in flight without the denominator that all tokens of the step share."""
        denominator = "original" if self._inflight and self._over_step() else self.capo.denominator
        return gradient_factor(decision.mask, decision.token_mask, decision.weights, self.capo.reduction, denominator)

    def _decided(self, data: TensorDict, decision: DecidedBatch, arrays: Arrays, counts: Tensor) -> tuple[int, int]:
        """Keeps what the step's end needs. Returns the numbers of tokens of the step, and of those that stay."""
        assert decision.rows is not None
        own, (tokens, kept) = rows.places(decision.rows, self.get_data_parallel_rank()), counts.tolist()
        self._step = Step(data, decision, arrays, self._factor(decision)[own], decision.mask[own], kept > 0)
        self._add("rejection_rate", (tokens - kept) / max(tokens, 1))
        self._add("rejected_tokens", tokens - kept)
        self._add("skipped", kept == 0)
        return tokens, kept

    def _whole(self, step: Step) -> DecidedBatch:
        """The decision over the whole step, as step controls see it."""
        decision = step.decision
        if not self._inflight:
            return decision
        inputs = {name for each in self.capo_step_controls for name in each.inputs}
        arrays = self._seen.gathered(
            step.arrays | {"token_mask": decision.token_mask, "weights": decision.weights}, inputs
        )
        return self._decision_of(arrays, of_step=True)

    # Rejected gradients ---------------------------------------------------------------------------

    def _second_pass(self, loss_function: Any) -> None:
        """The gradient of what was rejected or weighted away, over the completions that have something of it."""
        started, step, data = time.perf_counter(), self._current, self._current.data
        rest = ((1 - step.factors) * step.mask).to(data["input_ids"].device)
        # A loss that depends on the micro-batch needs the same micro-batches.
        places = torch.arange(len(rest)) if self.capo.by_micro_batch else self._seen.rows_with(data, rest.any(1))
        self._add("second_pass_completions", len(places))
        if not len(places):
            return
        again = tu.index_select_tensor_dict(data, places)
        # verl divides by the tokens of the rows that it gets.
        share: Any = 1.0
        if self.capo.reduction == "token_mean":
            share = self.reduced(again["loss_mask"].sum()) / self.reduced(data["loss_mask"].sum())
        again["capo_factor"] = rest[places] * share
        with self.optimizer.rejected():
            super().forward_backward_batch(again, loss_function)
        self._add("second_pass_seconds", time.perf_counter() - started)

    def _stepped(self) -> float:
        """The step of verl. If something was rejected, both gradients are clipped by the norm of their sum."""
        if not (self._remembers() and self.optimizer.has_rejected):
            return float(super().optimizer_step())
        norms = self.optimizer.grad_norms()
        for name in ("kept", "rejected"):
            self._add(f"{name}_grad_norm", float(norms[name]))
        if math.isfinite(norms["unmasked"]):
            self.optimizer.clip_grads_with_norm_(self.optimizer_config.clip_grad, norms["unmasked"])
            self.optimizer.step()
        else:
            self.optimizer.zero_grad()
        return float(norms["unmasked"])

    # The step and its end -------------------------------------------------------------------------

    def train_batch(self, data: TensorDict, loss_function: Any) -> Any:
        """As the engine's own, with the components' metrics."""
        output = super().train_batch(data, loss_function)
        # Lists, as verl has a number per micro-batch.
        output["metrics"].update({f"capo/{name}": values for name, values in self._told.items()})
        self._told = {}
        return output

    def optimizer_step(self) -> float:
        """As the engine's own; step controls then shorten the step. Returns the gradient's norm."""
        step, self._step = self._step, None
        if step is None:
            return float(super().optimizer_step())
        if not step.kept:
            # Gradients of zero would still move the weights under Adam.
            self.optimizer.zero_grad()
            norm, taken = 0.0, False
        elif self.capo_step_controls:
            norm, taken = self._controlled(step)
        else:
            norm = self._stepped()
            taken = math.isfinite(norm)
        started, group = time.perf_counter(), self.get_data_parallel_group()
        collective = Ranks(get_device_id(), group) if self._inflight and ranks(group) > 1 else None
        step_end(step.decision, self.capo_masks, self.capo_weights, taken, collective)
        self._seen.end_step(taken)
        before, self._received = self._received, self._seen.received + self._controls.received
        self._add("bytes_gathered", self._received - before + (collective.received if collective else 0))
        self._told["seconds"] = [sum(self._told["seconds"]) + time.perf_counter() - started]
        return norm

    def _controlled(self, step: Step) -> tuple[float, bool]:
        """A step that controls may shorten: verl's norm of the gradient, and whether a step was taken."""
        started = time.perf_counter()
        self._controls.remember(self.optimizer, step.data, self._whole(step))
        norm, taken = self._stepped(), False
        if math.isfinite(norm):
            told, taken = self._controls.apply()
            self._tell(told)
        self._add("control_seconds", time.perf_counter() - started)
        return norm, taken

    def _tell(self, records: Records, mask: Tensor | None = None) -> None:
        for name, value in metrics(records, mask, self.capo.component_metrics).items():
            self._add(name, value)

    def _add(self, name: str, value: float) -> None:
        self._told.setdefault(name, []).append(float(value))

    def lr_scheduler_step(self) -> Any:
        """As the engine's own."""
        # The next mini-batches are of a new rollout.
        self._used.clear()
        return super().lr_scheduler_step()

    # Checkpoints ----------------------------------------------------------------------------------

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """As the engine's own, with the components' states."""
        super().save_checkpoint(local_path, *args, **kwargs)
        if self._components() and self.rank == 0:
            counts = {"steps": self._seen.steps, "taken": self._seen.taken, "second_moment": self.capo.second_moment}
            counts["share"] = self._controls.share
            torch.save({"components": states(self._components())} | counts, Path(local_path) / STATE)
        torch.distributed.barrier()

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """As the engine's own, with the components' states."""
        if self._components():
            # Every rank's components are in one state: the first rank reads it, as it wrote it, and tells the others.
            path = Path(local_path) / STATE
            told: list[Any] = [torch.load(path, weights_only=True) if self.rank == 0 and path.exists() else None]
            torch.distributed.broadcast_object_list(told, src=0)
            load_checked(path, told[0], self._components(), self.capo.second_moment)
            self._seen.steps, self._seen.taken = told[0]["steps"], told[0]["taken"]
            self._controls.share = told[0].get("share", 1.0)
        super().load_checkpoint(local_path, *args, **kwargs)
