"""verl's FSDP engine with masks and weights between sampling and the backward pass.

verl hands an engine the whole mini-batch of an optimizer step that a rank has, before it is cut into micro-batches. Here it is scored once more
without a graph, gathered over the data parallel ranks, put into an order that does not depend on them, and shown to the masks once.
What they drop then gets no gradient; nothing of verl's losses is repeated.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from .. import Batch
from . import _rows as rows
from .._decision import Decision, decide, step_end
from .._step import Arrays, joined, over_ranks, top_rows, whole

OPTIMIZERS = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
STATE = "capo_masks.pt"


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "cpu"], vendor="capo")
class CapoEngine(FSDPEngineWithLMHead):
    """``FSDPEngineWithLMHead`` with the masks and weights of ``CapoActorConfig``; without them, and where it only infers, it is that engine."""

    def initialize(self) -> None:
        super().initialize()
        settings = getattr(self.engine_config, "capo", None)
        masks, weights = settings.components() if settings and not self.engine_config.forward_only else ([], [])
        self.capo, self.capo_masks, self.capo_weights = settings, masks, weights
        self._inputs = frozenset().union(*(each.inputs for each in self._components()))
        self._parts: list[Arrays] | None = None
        self._decided: Decision | None = None
        self._steps, self._taken, self._used = 0, 0, Counter()
        if "LAST_LAYER" in self._inputs:
            self._check_last_layer()
            self._policy().base_model.register_forward_hook(self._see_last_layer)

    def _components(self) -> list[Any]:
        return [*self.capo_masks, *self.capo_weights]

    def _policy(self) -> Any:
        module = getattr(self.module, "_fsdp_wrapped_module", self.module)
        return module.get_base_model() if hasattr(module, "get_base_model") else module

    def _check_last_layer(self) -> None:
        config, head = self._policy().config, self._policy().get_output_embeddings()
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(config, name, None) not in (None, 1.0):
                raise ValueError(f"a mask reads the last layer, and this model's logits are not its product alone (`{name}` is {getattr(config, name)})")
        if not isinstance(getattr(head, "weight", None), Tensor) or hasattr(head, "base_layer"):
            raise ValueError("a mask reads the last layer, which this model has an adapter on (leave `lm_head` out of target_modules)")
        if "OPTIMIZER_STATE" in self._inputs and isinstance(self.module, FullyShardedDataParallel):
            raise ValueError("a mask reads the optimizer's state, which strategy `fsdp` flattens (set actor.strategy=fsdp2)")

    # What masks see ---------------------------------------------------------------------------------------------------------

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
        self._layer = {"hidden": hidden, **top_rows(hidden, weight, self._micro.responses.to(hidden.device), self.capo.last_layer_top_k, self._temperature)}

    def _head(self, hidden: Tensor) -> Tensor:
        weight = self._policy().get_output_embeddings().weight.detach()
        if hasattr(weight, "full_tensor"):
            # A unit of its own under FSDP2: gathered once a step.
            if self._whole_head is None:
                self._whole_head = weight.to(hidden.device, hidden.dtype).full_tensor()
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
        mask = flat["completion_mask"].bool()
        device = logps.device
        flat = {name: array.to(device) for name, array in flat.items()}
        # Tokens of tools are no padding to verl; what stands there means nothing.
        flat = {name: array * mask.to(device) if array.is_floating_point() else array for name, array in flat.items()} | self._layer
        part = {name: these.padded(array) for name, array in flat.items()}
        part |= {"keys": these.keys(micro).to(device), "place": micro["capo_place"].to(device), "truncated": these.truncated(self._ends()).to(device)}
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
        """The step's arrays over micro-batches and ranks, completions of a prompt next to each other, in an order that ranks have no part in; and how many bytes
        came from other ranks."""
        scoring = data.copy()
        first = self.get_data_parallel_rank() << 32
        scoring["capo_place"] = torch.arange(first, first + len(data))
        tu.assign_non_tensor(scoring, calculate_entropy="ENTROPY" in self._inputs, calculate_sum_pi_squared=False)
        self._parts, self._whole_head = [], None
        try:
            with torch.no_grad():
                super().forward_backward_batch(scoring, None, forward_only=True)
            arrays, received = over_ranks(joined(self._parts), self.get_data_parallel_group())
        finally:
            self._parts, self._whole_head, self._layer = None, None, {}
        order = rows.order(arrays["keys"])
        return {name: array[order].contiguous() for name, array in arrays.items()}, received

    def _batch(self, arrays: Arrays) -> Batch:
        keys = arrays["keys"]
        arrays = {name: array for name, array in arrays.items() if name not in ("keys", "place")}
        size = self.capo.group_size
        prompts = keys[:, 0].view(-1, size) if len(keys) % size == 0 else None
        longest = arrays["completion_ids"].shape[1]
        scalars: dict[str, Any] = {
            "group_size": size if prompts is not None and bool((prompts == prompts[:, :1]).all()) else 1,
            "step": self._steps,
            "max_steps": max(self.optimizer_config.total_training_steps, self._steps + 1),
            "iteration": self._used[tuple(keys[0].tolist())],
            "seed": self.capo.seed,
            "sampling_temperature": self._temperature,
            "loss_temperature": self._temperature,
            "reduction": self.capo.reduction,
            "denominator": self.capo.denominator,
            "max_completion_length": self.capo.loss_scale_factor or longest,
            "optimizer": self._optimizer(),
        }
        if "LAST_LAYER" in self._inputs:
            scalars["vocab_size"] = self._vocabulary
        if "OPTIMIZER_STATE" in self._inputs:
            arrays |= self._optimizer_state()
        if arrays["logps"].is_cuda:
            scalars["stream"] = torch.cuda.current_stream().cuda_stream
        return Batch(**arrays, **scalars)

    def _optimizer(self) -> dict[str, Any] | None:
        kind, group = OPTIMIZERS.get(type(self.optimizer).__name__), self.optimizer.param_groups[0]
        if kind is None:
            return None
        told = {"kind": kind, "learning_rate": float(group["lr"]), "weight_decay": group["weight_decay"], "steps_taken": self._taken}
        told["max_grad_norm"] = self.optimizer_config.clip_grad
        if kind != "sgd":
            told |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "eps": group["eps"]}
        return told

    def _optimizer_state(self) -> Arrays:
        head = self._policy().get_output_embeddings().weight
        state = self.optimizer.state.get(head, {})
        arrays = {"weight": head.detach()} | {name: state.get(name, torch.zeros_like(head)) for name in ("exp_avg", "exp_avg_sq")}
        return {name: whole(array) for name, array in arrays.items()}

    # Deciding ---------------------------------------------------------------------------------------------------------------

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        if forward_only or not self._components():
            return super().forward_backward_batch(data, loss_function, forward_only)
        if getattr(loss_function, "func", None) is not ppo_loss:
            raise ValueError("masks work on verl's policy losses, and this is another (leave `capo` out of a run of distillation or of fine-tuning)")
        started = time.perf_counter()
        self._temperature = _one(data["temperature"])
        decided, numbers = self._decide(data)
        numbers["capo/seconds"] = time.perf_counter() - started
        output = super().forward_backward_batch(decided, loss_function)
        # A list, as verl has a number per micro-batch.
        output["metrics"].update({name: [float(value)] for name, value in numbers.items()})
        return output

    def _decide(self, data: TensorDict) -> tuple[TensorDict, dict[str, float]]:
        """The mini-batch with what masks and weights say of it, and what they report."""
        arrays, received = self._score(data)
        batch, mask = self._batch(arrays), arrays["completion_mask"]
        decided = self._decided = decide(batch, mask, self.capo_masks, self.capo_weights)
        self._used[tuple(arrays["keys"][0].tolist())] += 1
        tokens, kept = int(mask.sum()), int(decided.keep.sum())
        numbers = {"capo/rejection_rate": 1 - kept / max(tokens, 1), "capo/rejected_tokens": tokens - kept, "capo/skipped": kept == 0, "capo/bytes_gathered": received}
        numbers |= {f"capo/{name}": value for name, value in decided.records.items() if isinstance(value, (int, float))}
        own = rows.places(arrays["place"].cpu(), self.get_data_parallel_rank())
        return self._applied(data, decided.keep.cpu()[own], decided.weights.cpu()[own], kept), numbers

    def _applied(self, data: TensorDict, keep: Tensor, weights: Tensor, kept: int) -> TensorDict:
        """The mini-batch without the tokens that were dropped."""
        these, decided = rows.Rows(data), data.copy()
        if self.capo.by_advantage or self.capo_weights:
            decided["advantages"] = these.times(data["advantages"], weights)
        if not self.capo.by_advantage:
            decided["response_mask"] = these.times(data["response_mask"], keep)
            # verl counts the tokens of a step in `loss_mask`; of none there is no mean.
            if self.capo.denominator == "kept" and kept:
                decided["loss_mask"] = these.times(data["loss_mask"], keep)
        return decided

    # The step and its end ---------------------------------------------------------------------------------------------------

    def optimizer_step(self) -> float:
        if self._decided is None:
            return super().optimizer_step()
        decided, self._decided = self._decided, None
        some = bool(decided.keep.any())
        if some:
            norm = super().optimizer_step()
        else:
            # Gradients of zero would still move the weights under Adam.
            self.optimizer.zero_grad()
            norm = 0.0
        taken = some and math.isfinite(norm)
        step_end(decided, self.capo_masks, self.capo_weights, taken)
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
            states = [(each.id, each.state_dict()) for each in self._components()]
            torch.save({"states": states, "steps": self._steps, "taken": self._taken}, Path(local_path) / STATE)
        torch.distributed.barrier()

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        if self._components():
            self._load_states(local_path)
        super().load_checkpoint(local_path, *args, **kwargs)

    def _load_states(self, local_path: str) -> None:
        """Every rank's masks are in the same state: the first rank reads it, as it wrote it, and tells the others."""
        told: list[Any] = [None]
        path = Path(local_path) / STATE
        if self.rank == 0 and path.exists():
            told = [torch.load(path, weights_only=False)]
        torch.distributed.broadcast_object_list(told, src=0)
        saved, own = told[0], [each.id for each in self._components()]
        if saved is None:
            raise ValueError(f"`{path}` is missing: this checkpoint was made without masks (go on without `capo`, or start anew)")
        if [name for name, _ in saved["states"]] != own:
            raise ValueError(f"`{path}` holds the state of {[name for name, _ in saved['states']]}, and this run has {own} (give it the same masks)")
        for each, (_, state) in zip(self._components(), saved["states"], strict=True):
            each.load_state_dict(state)
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
