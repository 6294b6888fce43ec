"""An optimizer step of verl's engine, as components see it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from verl.utils import tensordict_utils as tu

from .. import Batch, Optimizer
from .._decision import DecidedBatch
from .._layer import bare, check_head, check_optimizer, check_same, optimizer_info, optimizer_state
from .._schedule import Schedule
from .._step import Arrays, over_ranks, received, reshard, top_rows, whole
from ..batch import nested
from . import _rows as rows
from .config import Settings

#: The arrays that each optional input stands for; all others are in every batch.
ARRAYS = {
    "OLD_LOGPS": ("old_logps",),
    "REF_LOGPS": ("ref_logps",),
    "ENTROPY": ("entropy",),
    "ROLLOUT_CONTEXT": ("sampler_logps",),
    "LAST_LAYER": ("hidden", "topk_logits", "topk_ids", "action_logits", "logsumexp"),
}
#: Numbers of rows, by which they are put into an order that does not depend on ranks.
NUMBERS = ("prompt", "content", "rows")


@dataclass
class Step:
    """The arrays that the end of a step needs.

    Attributes:
        data: The mini-batch with the numbers of its rows.
        decision: The decision over it.
        arrays: In flight, this rank's arrays that were decided over.
        factors: `[b, T]`: factors of the gradients of this rank's tokens, rows in the mini-batch's order.
        mask: `[b, T]`: 1 for this rank's tokens that were decided over.
        kept: True if a token stays.
    """

    data: TensorDict
    decision: DecidedBatch
    arrays: Arrays
    factors: Tensor
    mask: Tensor
    kept: bool


class Seen:
    """Makes a component's `Batch` of the engine's micro-batches.

    Args:
        engine: The engine.
        settings: The run's, checked.
        needed: The optional inputs that some component reads.
        measures: True where step controls measure steps.
    """

    def __init__(self, engine: Any, settings: Settings, needed: frozenset[str], measures: bool) -> None:
        self.engine, self.settings, self.needed = engine, settings, needed
        #: Optimizer steps of the run, and how many of them changed the weights.
        self.steps, self.taken = 0, 0
        #: The step's temperature, and how often its rows were used before.
        self.temperature, self.iteration = 1.0, 0
        #: Bytes that came from other ranks so far.
        self.received = 0
        #: The rows of the micro-batch whose forward pass comes next; `None` if nobody looks at that pass.
        self._micro: Any = None
        #: True if its last layer is looked at.
        self._looks = False
        #: Features of its response tokens, and the arrays of its last layer, once the pass has run.
        self._hidden: Tensor | None = None
        self._layer: Arrays = {}
        #: The head's weight, which FSDP2 gathers once a step.
        self._whole_head: Tensor | None = None
        #: The optimizer's state of the head, gathered once a step.
        self._state: Arrays = {}
        #: Rows of the head.
        self._vocabulary = 0
        if "OPTIMIZER_STATE" in needed and isinstance(engine.module, FullyShardedDataParallel):
            raise ValueError(
                "a mask reads the optimizer's state, which strategy `fsdp` flattens (set actor.strategy=fsdp2)"
            )
        check_optimizer(type(bare(engine.optimizer)), engine._deciders(), "leave actor.optim at AdamW of torch.optim")
        self._checks = "LAST_LAYER" in needed or measures
        if self._checks:
            check_head(self.head())
            self.policy().base_model.register_forward_hook(self._see_last_layer)

    def model(self) -> torch.nn.Module:
        """The model as the engine calls it."""
        module: torch.nn.Module = self.engine.module
        return module

    def policy(self) -> Any:
        """The model without wrappers and adapters."""
        module = getattr(self.engine.module, "_fsdp_wrapped_module", self.engine.module)
        return module.get_base_model() if hasattr(module, "get_base_model") else module

    def head(self) -> Any:
        """Its last layer."""
        return self.policy().get_output_embeddings()

    def begin_step(self, temperature: float, iteration: int) -> None:
        """To be called before the passes of a step."""
        self.temperature, self.iteration = temperature, iteration
        if "OPTIMIZER_STATE" in self.needed:
            reshard(self.engine.module)
            weight = self.head().weight
            self._state = optimizer_state(self.engine.optimizer, weight)
            self.received += sum(received(weight, array) for array in self._state.values())

    def end_step(self, taken: bool) -> None:
        """To be called after the optimizer's step."""
        self.steps, self.taken, self._state = self.steps + 1, self.taken + taken, {}

    # Forward passes -------------------------------------------------------------------------------

    def look_at(self, micro_batch: TensorDict, layer: bool) -> None:
        """To be called before a forward pass of a micro-batch.

        The first step's last layer is looked at for step controls too, to see that it is one.
        """
        self._micro = rows.Rows(micro_batch)
        self._looks = layer and ("LAST_LAYER" in self.needed or self._checks and self.steps == 0)

    def look_away(self) -> None:
        """To be called after the passes of a step, or of a measurement."""
        self._micro, self._hidden, self._layer, self._whole_head = None, None, {}, None

    @torch.no_grad()
    def _see_last_layer(self, module: Any, args: Any, output: Any) -> None:
        """Features and largest logits, while FSDP holds the head's weight: a fused loss returns neither."""
        if self._micro is None:
            return
        self._hidden = self._micro.of_features(output.last_hidden_state.detach())
        if self._looks:
            weight = self._weight(self._hidden)
            self._vocabulary = weight.shape[0]
            ids = self._micro.responses.to(weight.device)
            top = top_rows(self._hidden, weight, ids, self.settings.last_layer_top_k, self.temperature)
            self._layer = {"hidden": self._hidden} | top

    def _weight(self, hidden: Tensor) -> Tensor:
        weight: Tensor = self.head().weight.detach()
        if hasattr(weight, "full_tensor"):
            # A unit of its own under FSDP2: gathered once a step.
            if self._whole_head is None:
                weight = weight.to(hidden.device, hidden.dtype)
                self._whole_head = whole(weight)
                self.received += received(weight, self._whole_head)
            return self._whole_head
        if weight.dim() != 2:
            raise ValueError(
                "a mask reads the last layer, which FSDP has in a unit of its own (set actor.strategy=fsdp2)"
            )
        return weight.to(hidden.dtype)

    @torch.no_grad()
    def part(self, micro: TensorDict, found: dict[str, Tensor]) -> Arrays:
        """One micro-batch as arrays `[b, T, ...]`; `found` is what its forward pass gave."""
        these = self._micro
        logps = these.of_outputs(found["log_probs"].detach()).float()
        flat = {
            "completion_ids": these.responses.int(),
            "completion_mask": these.of(micro["response_mask"]).to(torch.uint8),
            "logps": logps,
        }
        flat["advantages"] = these.of(micro["advantages"]).float()
        if "rollout_is_weights" in micro.keys():
            # verl multiplies a token's loss by this weight, which is often 0.
            flat["advantages"] = flat["advantages"] * these.of(micro["rollout_is_weights"]).float()
        if "OLD_LOGPS" in self.needed:
            flat["old_logps"] = these.of(micro["old_log_probs"]).float()
        if "ENTROPY" in self.needed:
            flat["entropy"] = these.of_outputs(found["entropy"].detach()).float()
        if "REF_LOGPS" in self.needed:
            flat["ref_logps"] = these.of(
                _given(micro, "ref_log_prob", "the reference model", "actor_rollout_ref.actor.use_kl_loss=true")
            ).float()
        if "ROLLOUT_CONTEXT" in self.needed:
            given = _given(
                micro,
                "rollout_log_probs",
                "the sampler's log-probabilities",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
            )
            flat["sampler_logps"] = these.of(given).float()
        device, mask = logps.device, flat["completion_mask"].bool()
        if self._looks and self.steps == 0 and mask.any():
            check_same(self._layer, logps, mask.to(device), self.temperature)
        flat = {name: array.to(device) for name, array in flat.items()}
        # A tool's answer lies inside of a response, where verl's values mean nothing.
        flat = {
            name: torch.where(mask.to(device), array, 0) if array.is_floating_point() else array
            for name, array in flat.items()
        }
        if "LAST_LAYER" in self.needed:
            flat |= self._layer
        part = {name: these.padded(array) for name, array in flat.items()}
        part |= {name: micro[f"capo_{name}"].to(device) for name in NUMBERS}
        part["truncated"] = these.truncated(self._ends()).to(device)
        for name in ("token_level_scores", "rm_scores"):
            if name in micro.keys():
                part["rewards"] = these.sums(micro[name]).to(device)
                break
        return part

    def _ends(self) -> list[int]:
        """The tokens that end a completion."""
        for config in (self.engine.model_config.generation_config, self.policy().config):
            ends = getattr(config, "eos_token_id", None)
            if ends is not None:
                return [ends] if isinstance(ends, int) else list(ends)
        return []

    # Measurements of step controls ----------------------------------------------------------------

    def rows_with(self, data: TensorDict, wanted: Tensor) -> Tensor:
        """Places of rows, those that are `wanted` among them.

        They are as many on each rank, and whole micro-batches; none where no rank wants any.
        """
        count = int(self.engine.reduced(wanted.sum(), dist.ReduceOp.MAX))
        size = (
            1
            if tu.get_non_tensor_data(data, "use_dynamic_bsz", True)
            else tu.get_non_tensor_data(data, "micro_batch_size_per_gpu", 1)
        )
        return wanted.int().argsort(descending=True, stable=True)[: math.ceil(count / size) * size]

    def holding(self, data: TensorDict, numbers: Tensor) -> TensorDict:
        """The rows of these numbers among the mini-batch's."""
        chosen = torch.isin(data["capo_rows"], numbers.to(data["capo_rows"].device))
        places = self.rows_with(data, chosen)
        held = tu.index_select_tensor_dict(data, places)
        held["capo_chosen"] = chosen[places]
        return held

    def features(self, data: TensorDict) -> list[Tensor]:
        """Features of the chosen rows' completion tokens, of each micro-batch.

        They are those of the current policy without dropout.
        """
        found: list[Tensor] = []
        training = self.engine.module.training

        def look(micro: TensorDict, _: Any) -> None:
            these, hidden = self._micro, self._hidden
            assert hidden is not None
            tokens = these.padded(these.of(micro["response_mask"]).bool()).to(hidden.device)
            found.append(hidden[these.of(tokens & micro["capo_chosen"][:, None].to(hidden.device))])

        self.engine.module.eval()
        try:
            with torch.no_grad():
                self.engine.passed(data.copy(), None, look, layer=False, forward_only=True)
        finally:
            self.engine.module.train(training)
        return found

    # Batches --------------------------------------------------------------------------------------

    def gathered(self, arrays: Arrays, inputs: Iterable[str]) -> Arrays:
        """The arrays that components with these inputs read, of all ranks.

        Completions of a prompt are next to each other, in an order that does not depend on ranks.
        """
        unread = {name for input_, names in ARRAYS.items() if input_ not in inputs for name in names}
        arrays = {name: arrays.pop(name) for name in list(arrays) if name not in unread}
        arrays, bytes_ = over_ranks(arrays, self.engine.get_data_parallel_group())
        self.received += bytes_
        order = rows.order(arrays["prompt"], arrays["content"])
        # Array by array, so that only one is in memory twice.
        return {name: arrays.pop(name)[order].contiguous() for name in list(arrays)}

    def batch(self, arrays: Arrays, of_step: bool) -> Batch:
        """The component's batch: of the whole step, or of a part of it, which holds no whole groups."""
        prompts, size = arrays["prompt"], self.settings.group_size
        fields: dict[str, Any] = {name: array for name, array in arrays.items() if name not in NUMBERS}
        groups = prompts.view(-1, size) if of_step and len(prompts) % size == 0 else None
        longest = arrays["completion_ids"].shape[1]
        fields |= {
            "group_size": size if groups is not None and bool((groups == groups[:, :1]).all()) else 1,
            "step": self.steps,
            "max_steps": max(self.engine.optimizer_config.total_training_steps, self.steps + 1),
            "iteration": self.iteration,
            "seed": self.settings.seed,
            "sampling_temperature": self.temperature,
            "loss_temperature": self.temperature,
            "reduction": self.settings.reduction,
            "denominator": self.settings.denominator,
            "max_completion_length": self.settings.loss_scale_factor or longest,
            "optimizer": self._optimizer_info(),
        }
        if "hidden" in arrays:
            fields["vocab_size"] = self._vocabulary
        fields |= self._state
        if arrays["logps"].is_cuda:
            fields["stream"] = torch.cuda.current_stream().cuda_stream
        return nested(fields)

    def _optimizer_info(self) -> Optimizer | None:
        config, scheduler = self.engine.optimizer_config, self.engine.lr_scheduler
        # verl's schedule moves once a rollout, in which the optimizer may step several times. Here each of these steps
        # counts as one of the schedule, so that no rate at which a gradient acts is left out.
        total = config.total_training_steps
        left = total - scheduler.last_epoch if total > 0 else None
        return optimizer_info(self.engine.optimizer, self.taken, config.clip_grad, schedule=Schedule(scheduler, left))


def _given(micro: TensorDict, name: str, what: str, setting: str) -> Tensor:
    if name not in micro.keys():
        raise ValueError(f"a mask reads {what}, of which verl says nothing here (set {setting})")
    found: Tensor = micro[name]
    return found


def one_temperature(temperature: Any) -> float:
    """The temperature of all completions of a step.

    Raises:
        ValueError: Where there are several.
    """
    values = torch.as_tensor(temperature, dtype=torch.float32).reshape(-1)
    if bool((values != values[0]).any()):
        raise ValueError("masks need one temperature for all completions of a step, and there are several")
    return float(values[0])
