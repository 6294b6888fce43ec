"""verl's FSDP engine with masks and weights between sampling and the backward pass.

verl hands an engine the whole mini-batch of an optimizer step that a rank has, before it is cut into micro-batches. Here it is scored once more
without a graph, gathered over the data parallel ranks, put into an order that does not depend on them, and shown to the masks once. What they decide reaches
verl's loss as factors of the gradient of its log-probabilities; nothing of the loss is repeated.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from .. import Batch
from .._decision import Decision, decide, gradient_factor, scale_gradient, step_end
from .._layer import check_head, check_same, optimizer_info, optimizer_state
from .._step import Arrays, joined, over_ranks, top_rows, whole
from . import _rows as rows

STATE = "capo_masks.pt"


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "cpu"], vendor="capo")
class CapoEngine(FSDPEngineWithLMHead):
    """``FSDPEngineWithLMHead`` with the masks and weights of ``CapoActorConfig``; without them, and where it only infers, it is that engine."""

    def initialize(self) -> None:
        super().initialize()
        settings = getattr(self.engine_config, "capo", None)
        masks, weights = settings.components() if settings and not self.engine_config.forward_only else ([], [])
        self.capo: Any = settings
        self.capo_masks, self.capo_weights = masks, weights
        self._inputs = frozenset().union(*(each.inputs for each in self._components()))
        # Of a scoring pass: its parts so far, the micro-batch that is next, what its forward pass showed, and the head where FSDP2 had to gather it.
        self._parts: list[Arrays] | None = None
        self._micro: Any = None
        self._layer: Arrays = {}
        self._whole_head: Tensor | None = None
        # Of the step: what was decided. Of the run: optimizer steps, those that were taken, and how often a rollout's rows were used.
        self._decision: Decision | None = None
        self._steps, self._taken, self._used = 0, 0, Counter[int]()
        if "LAST_LAYER" in self._inputs:
            self._check_last_layer()
            self._policy().base_model.register_forward_hook(self._see_last_layer)

    def _components(self) -> list[Any]:
        return [*self.capo_masks, *self.capo_weights]

    def _policy(self) -> Any:
        module = getattr(self.module, "_fsdp_wrapped_module", self.module)
        return module.get_base_model() if hasattr(module, "get_base_model") else module

    def _check_last_layer(self) -> None:
        check_head(self._policy().get_output_embeddings())
        if "OPTIMIZER_STATE" in self._inputs and isinstance(self.module, FullyShardedDataParallel):
            raise ValueError("a mask reads the optimizer's state, which strategy `fsdp` flattens (set actor.strategy=fsdp2)")

    # The masks' view of a batch ---------------------------------------------------------------------------------------------

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        if self._parts is None:
            return super().forward_step(micro_batch, loss_function, forward_only)
        self._micro, self._layer = rows.Rows(micro_batch), {}
        loss, output = super().forward_step(micro_batch, None, True)
        self._parts.append(self._part(micro_batch, output["model_output"]))
        return loss, {"model_output": {}, "loss": 0.0, "metrics": {}}

    def _see_last_layer(self, module: Any, args: Any, output: Any) -> None:
        """Features and largest logits, while FSDP holds the head's weight: a fused loss returns neither."""
        if self._parts is None:
            return
        hidden = self._micro.of_features(output.last_hidden_state)
        weight = self._head(hidden)
        self._vocabulary = weight.shape[0]
        top = top_rows(hidden, weight, self._micro.responses.to(hidden.device), self.capo.last_layer_top_k, self._temperature)
        self._layer = {"hidden": hidden} | top

    def _head(self, hidden: Tensor) -> Tensor:
        weight = self._policy().get_output_embeddings().weight.detach()
        if hasattr(weight, "full_tensor"):
            # A unit of its own under FSDP2: gathered once a step.
            if self._whole_head is None:
                self._whole_head = whole(weight.to(hidden.device, hidden.dtype))
            return self._whole_head
        if weight.dim() != 2:
            raise ValueError("a mask reads the last layer, which FSDP has in a unit of its own (set actor.strategy=fsdp2)")
        return weight.to(hidden.dtype)

    def _part(self, micro: TensorDict, scored: dict[str, Tensor]) -> Arrays:
        """One micro-batch as arrays ``[b, T, ...]``, under the current policy."""
        these = self._micro
        logps = these.of_outputs(scored["log_probs"]).float()
        flat = {"completion_ids": these.responses.int(), "completion_mask": these.of(micro["response_mask"]).to(torch.uint8), "logps": logps}
        flat["advantages"] = these.of(micro["advantages"]).float()
        if "OLD_LOGPS" in self._inputs:
            flat["old_logps"] = these.of(micro["old_log_probs"]).float()
        if "ENTROPY" in self._inputs:
            flat["entropy"] = these.of_outputs(scored["entropy"]).float()
        if "REF_LOGPS" in self._inputs:
            flat["ref_logps"] = these.of(_given(micro, "ref_log_prob", "the reference model", "actor_rollout_ref.actor.use_kl_loss=true")).float()
        if "ROLLOUT_CONTEXT" in self._inputs:
            given = _given(micro, "rollout_log_probs", "the sampler's log-probabilities", "actor_rollout_ref.rollout.calculate_log_probs=true")
            flat["sampler_logps"] = these.of(given).float()
        device, mask = logps.device, flat["completion_mask"].bool()
        if self._layer and self._steps == 0 and mask.any():
            check_same(self._layer, logps, mask.to(device), self._temperature)
        flat = {name: array.to(device) for name, array in flat.items()}
        # A tool's answer lies inside of a response, and verl's values there mean nothing.
        flat = {name: torch.where(mask.to(device), array, 0) if array.is_floating_point() else array for name, array in flat.items()} | self._layer
        part = {name: these.padded(array) for name, array in flat.items()}
        prompts, contents = these.keys(micro)
        part |= {"prompt": prompts.to(device), "content": contents.to(device), "rows": micro["capo_row"].to(device)}
        part["truncated"] = these.truncated(self._ends()).to(device)
        for name in ("token_level_scores", "rm_scores"):
            if name in micro.keys():
                part["rewards"] = these.sums(micro[name]).to(device)
                break
        return part

    def _ends(self) -> list[int]:
        """The tokens that end a completion."""
        for config in (self.model_config.generation_config, self._policy().config):
            ends = getattr(config, "eos_token_id", None)
            if ends is not None:
                return [ends] if isinstance(ends, int) else list(ends)
        return []

    def _score(self, data: TensorDict) -> tuple[Arrays, int]:
        """The step's arrays over micro-batches and ranks, completions of a prompt next to each other, in an order that ranks have no part in; bytes gathered."""
        scoring = data.copy()
        first = self.get_data_parallel_rank() << 32
        scoring["capo_row"] = torch.arange(first, first + len(data))
        tu.assign_non_tensor(scoring, calculate_entropy="ENTROPY" in self._inputs, calculate_sum_pi_squared=False)
        self._parts, self._whole_head = [], None
        try:
            with torch.no_grad():
                super().forward_backward_batch(scoring, None, forward_only=True)
            arrays, received = over_ranks(joined(self._parts), self.get_data_parallel_group())
        finally:
            self._parts, self._whole_head, self._layer = None, None, {}
        order = rows.order(arrays["prompt"], arrays["content"])
        return {name: array[order].contiguous() for name, array in arrays.items()}, received

    def _batch(self, arrays: Arrays) -> Batch:
        prompts, used = arrays["prompt"], self._used[int(arrays["content"][0])]
        arrays = {name: array for name, array in arrays.items() if name not in ("prompt", "content", "rows")}
        size = self.capo.group_size
        groups = prompts.view(-1, size) if len(prompts) % size == 0 else None
        longest = arrays["completion_ids"].shape[1]
        scalars: dict[str, Any] = {
            "group_size": size if groups is not None and bool((groups == groups[:, :1]).all()) else 1,
            "step": self._steps,
            "max_steps": max(self.optimizer_config.total_training_steps, self._steps + 1),
            "iteration": used,
            "seed": self.capo.seed,
            "sampling_temperature": self._temperature,
            "loss_temperature": self._temperature,
            "reduction": self.capo.reduction,
            "denominator": self.capo.denominator,
            "max_completion_length": self.capo.loss_scale_factor or longest,
            "optimizer": optimizer_info(self.optimizer, self._taken, self.optimizer_config.clip_grad),
        }
        if "LAST_LAYER" in self._inputs:
            scalars["vocab_size"] = self._vocabulary
        if "OPTIMIZER_STATE" in self._inputs:
            arrays |= optimizer_state(self.optimizer, self._policy().get_output_embeddings().weight)
        if arrays["logps"].is_cuda:
            scalars["stream"] = torch.cuda.current_stream().cuda_stream
        return Batch(**arrays, **scalars)

    # Deciding ---------------------------------------------------------------------------------------------------------------

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        if forward_only or not self._components():
            return super().forward_backward_batch(data, loss_function, forward_only)
        if getattr(loss_function, "func", None) is not ppo_loss:
            raise ValueError("masks work on verl's policy losses, and this is another (leave `capo` out of a run of distillation or of fine-tuning)")
        started = time.perf_counter()
        self._temperature = _one(data["temperature"])
        own, factors, numbers = self._decide(data)
        numbers["seconds"] = time.perf_counter() - started
        decided = data.copy()
        decided["capo_factor"] = factors[own].to(data["input_ids"].device)
        output = super().forward_backward_batch(decided, loss_function)
        # Lists, as verl has a number per micro-batch.
        output["metrics"].update({f"capo/{name}": [float(value)] for name, value in numbers.items()})
        return output

    def _decide(self, data: TensorDict) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Which rows of the step are this rank's, what each token's gradient is multiplied with in all of them, and what there is to report."""
        arrays, received = self._score(data)
        mask = arrays["completion_mask"]
        decision = decide(self._batch(arrays), mask, self.capo_masks, self.capo_weights)
        self._decision = decision
        self._used[int(arrays["content"][0])] += 1
        tokens, kept = int(mask.sum()), int(decision.keep.sum())
        numbers = {"rejection_rate": 1 - kept / max(tokens, 1), "rejected_tokens": tokens - kept, "skipped": float(kept == 0), "bytes_gathered": received}
        numbers |= {name: value for name, value in decision.records.items() if isinstance(value, (int, float))}
        factors = gradient_factor(mask, decision.keep, decision.weights, self.capo.reduction, self.capo.denominator)
        return rows.places(arrays["rows"], self.get_data_parallel_rank()), factors, numbers

    def prepare_model_outputs(self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any) -> dict[str, Tensor]:
        found = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if "capo_factor" not in micro_batch.keys():
            return found
        factor = rows.Rows(micro_batch).to_outputs(micro_batch["capo_factor"])
        for name in ("log_probs", "entropy"):
            if name in found:
                values = found[name].values()
                scale_gradient(values, factor)
                found[name] = torch.nested.nested_tensor_from_jagged(values, found[name].offsets())
        return found

    # The step and its end ---------------------------------------------------------------------------------------------------

    def optimizer_step(self) -> float:
        if self._decision is None:
            return super().optimizer_step()
        decision, self._decision = self._decision, None
        some = bool(decision.keep.any())
        if some:
            norm = super().optimizer_step()
        else:
            # Gradients of zero would still move the weights under Adam.
            self.optimizer.zero_grad()
            norm = 0.0
        taken = some and math.isfinite(norm)
        step_end(decision, self.capo_masks, self.capo_weights, taken)
        self._steps, self._taken = self._steps + 1, self._taken + taken
        return norm

    def lr_scheduler_step(self) -> Any:
        # verl's rollout is used up.
        self._used.clear()
        return super().lr_scheduler_step()

    # Checkpoints ------------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(local_path, *args, **kwargs)
        if self._components() and self.rank == 0:
            # As numbers: `torch.load` takes no bytes without unpickling whatever is there.
            states = [torch.from_numpy(np.frombuffer(each.state_dict()["state"], np.uint8).copy()) for each in self._components()]
            ids = [each.id for each in self._components()]
            torch.save({"components": ids, "states": states, "steps": self._steps, "taken": self._taken}, Path(local_path) / STATE)
        torch.distributed.barrier()

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        if self._components():
            self._load_states(local_path)
        super().load_checkpoint(local_path, *args, **kwargs)

    def _load_states(self, local_path: str) -> None:
        """Every rank's masks are in the same state: the first rank reads it, as it wrote it, and tells the others."""
        path = Path(local_path) / STATE
        told = [torch.load(path, weights_only=True) if self.rank == 0 and path.exists() else None]
        torch.distributed.broadcast_object_list(told, src=0)
        saved, own = told[0], [each.id for each in self._components()]
        if saved is None:
            raise ValueError(f"`{path}` is missing: this checkpoint was made without masks (go on without `capo`, or start anew)")
        if saved["components"] != own:
            raise ValueError(f"`{path}` holds the state of {saved['components']}, and this run has {own} (give it the same masks)")
        for each, state in zip(self._components(), saved["states"], strict=True):
            each.load_state_dict({"component": each.id, "state": state.numpy().tobytes()})
        self._steps, self._taken = saved["steps"], saved["taken"]


def _given(micro: TensorDict, name: str, what: str, setting: str) -> Tensor:
    if name not in micro.keys():
        raise ValueError(f"a mask reads {what}, of which verl says nothing here (set {setting})")
    return micro[name]


def _one(temperature: Any) -> float:
    values = torch.as_tensor(temperature, dtype=torch.float32).reshape(-1)
    if bool((values != values[0]).any()):
        raise ValueError("masks need one temperature for all completions of a step, and there are several")
    return float(values[0])
