"""An optimizer step of TRL's trainer, as components see it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from . import Batch, Optimizer
from ._layer import check_head, check_same, optimizer_info, optimizer_state
from ._schedule import Schedule
from ._step import Arrays, on_host, ranks, top_rows, whole
from ._trl_settings import Settings
from .batch import nested

#: A micro-batch of TRL: arrays, and what else a model takes.
Inputs = dict[str, Any]


# Arrays that components read in place.
LAST_LAYER = ("hidden", "topk_ids", "topk_logits", "logsumexp", "action_logits")


class Seen:
    """Makes a component's `Batch` of the trainer's inputs.

    Args:
        trainer: The trainer.
        needed: The optional inputs that some component reads.
        top_k: How many of the largest logits masks of the last layer see.
        settings: The trainer's, settled.
        measures: True where step controls measure steps.
    """

    def __init__(
        self, trainer: GRPOTrainer, needed: frozenset[str], top_k: int, settings: Settings, measures: bool
    ) -> None:
        self.trainer, self.needed, self.top_k, self.settings = trainer, needed, top_k, settings
        #: The features of the newest forward pass that was looked at.
        self._hidden: Tensor | None = None
        #: True if the next forward pass is looked at.
        self._keeps = False
        #: True once the last layer was compared with TRL's log-probabilities.
        self._checked = False
        #: The head's weight, as the optimizer knows it.
        self._weight: Any = None
        #: How often the step's rollout was used before.
        self._iteration = 0
        #: Ids that end a completion.
        self._ends: Tensor | None = None
        #: Names of what the forward pass takes beside the tokens, such as vision inputs. They depend on TRL's version.
        self._forward = frozenset(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
        if "LAST_LAYER" in needed or measures:
            check_head(self.head())
            self.policy().base_model.register_forward_hook(self._keep_hidden)

    def model(self) -> torch.nn.Module:
        """The model as the trainer calls it."""
        model: torch.nn.Module = self.trainer.model
        return model

    def policy(self) -> Any:
        """The model without wrappers and adapters."""
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def head(self) -> Any:
        """Its last layer."""
        return self.policy().get_output_embeddings()

    def begin(self) -> None:
        """To be called before the first forward pass, while the head's weight is the one that the optimizer knows.

        FSDP2 puts another in its place while it gathers the weight.
        """
        self._weight = self.head().weight

    def begin_step(self) -> None:
        """To be called before a step's first micro-batch. At the step's end, TRL already counts the next step."""
        trainer = self.trainer
        self._iteration = trainer._step // trainer.args.steps_per_generation % trainer.num_iterations

    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self.head().weight.shape[0])

    def look(self) -> None:
        """To be called before a forward pass that components see: its features are kept.

        The features of evaluation and generation are not kept.
        """
        self._keeps = "LAST_LAYER" in self.needed

    def _keep_hidden(self, module: Any, args: Any, output: Any) -> None:
        # TRL's head is fused with its loss, so the features are taken from the backbone.
        if self._keeps:
            self._hidden, self._keeps = output.last_hidden_state.detach(), False

    @torch.no_grad()
    def scored(self, inputs: Inputs) -> Arrays:
        """The arrays of one micro-batch under the current policy, from a forward pass of its own."""
        self.look()
        found: Arrays = self.arrays(inputs, *self._forward_pass(inputs))
        return found

    def holding(self, own: Sequence[Inputs], rows: Tensor) -> list[tuple[Inputs, Tensor]]:
        """The completions of each micro-batch that are among `rows`, and a mask of their completion tokens."""
        chosen = [torch.isin(inputs["capo_rows"], rows) for inputs in own]
        counts = torch.stack([each.sum() for each in chosen])
        if ranks() > 1:
            dist.all_reduce(counts, dist.ReduceOp.MAX)
        held = []
        for inputs, each, count in zip(own, chosen, counts.tolist(), strict=True):
            if count:
                part, places = rows_of(inputs, each, count)
                held.append((part, part["completion_mask"] * part.get("tool_mask", 1) * each[places, None]))
        return held

    def features(self, held: Sequence[tuple[Inputs, Tensor]]) -> list[Tensor]:
        """Features of these tokens under the current policy without dropout."""
        return [self._features(inputs)[mask.reshape(-1).bool()] for inputs, mask in held]

    @torch.no_grad()
    def _features(self, inputs: Inputs) -> Tensor:
        model, training = self.trainer.model, self.trainer.model.training
        self._keeps = True
        model.eval()
        try:
            logps, _ = self._forward_pass(inputs)
        finally:
            model.train(training)
        hidden, ids = self._take_hidden(logps.shape[1]), inputs["completion_ids"]
        if not self._checked:
            self._check(hidden, ids, inputs["completion_mask"].bool(), logps)
        self._end_forward(hidden)
        return hidden

    def _end_forward(self, hidden: Tensor) -> None:
        """Has FSDP2 give back the weights of this pass, which would be those of the next one too.

        It gives back those of modules that it holds together, such as the last norm and the head, when all of them were
        called. TRL's fused loss calls no head, and there is no backward pass.
        """
        head = self.head()
        if hasattr(head, "reshard"):
            head.reshard()
            if not hasattr(head.weight, "device_mesh"):
                head(hidden[:0].to(head.weight.dtype))

    def _forward_pass(self, inputs: Inputs) -> tuple[Tensor, Any]:
        trainer, ids = self.trainer, inputs["completion_ids"]
        tokens = torch.cat([inputs["prompt_ids"], ids], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        others = {name: value for name, value in inputs.items() if name in self._forward}
        logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, tokens, attention, ids.shape[1], compute_entropy="ENTROPY" in self.needed, **others
        )
        return logps, entropies

    @torch.no_grad()
    def arrays(self, inputs: Inputs, logps: Tensor, entropies: Any) -> Arrays:
        """The arrays of one micro-batch; `logps` and `entropies`, `[B, T]`, are from its forward pass."""
        ids = inputs["completion_ids"]
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)

        def of_tokens(array: Tensor) -> Tensor:
            # TRL's own values on padding need not be finite.
            return torch.where(mask.bool(), array.detach().float(), 0.0)

        logps = of_tokens(logps)
        advantages = inputs["advantages"]
        advantages = advantages[:, None].expand_as(mask) if advantages.dim() == 1 else advantages
        ratio = inputs.get("importance_sampling_ratio")
        if ratio is not None and self.trainer.loss_type != "vespo":
            # TRL multiplies a token's loss by this ratio, which is often 0. Under VESPO the ratio is a part of a weight
            # that masks do not see.
            advantages = advantages * ratio
        old = inputs.get("old_per_token_logps")
        old = logps if old is None else of_tokens(old)
        arrays = {
            "rows": inputs["capo_rows"],
            "completion_ids": ids.int(),
            "completion_mask": mask.to(torch.uint8),
            "advantages": of_tokens(advantages),
            "truncated": (~self._ended(ids, inputs["completion_mask"])).to(torch.uint8),
            "logps": logps,
        }
        if "OLD_LOGPS" in self.needed:
            arrays["old_logps"] = old
        if "ENTROPY" in self.needed:
            arrays["entropy"] = of_tokens(entropies)
        if "REF_LOGPS" in self.needed:
            if "ref_per_token_logps" not in inputs:
                raise ValueError("a mask compares with the reference model, of which there is none (set beta above 0)")
            arrays["ref_logps"] = of_tokens(inputs["ref_per_token_logps"])
        if "ROLLOUT_CONTEXT" in self.needed:
            sampler = inputs.get("sampling_per_token_logps")
            # Without an engine for sampling, the sampler is the old policy.
            arrays["sampler_logps"] = old if sampler is None else of_tokens(torch.where(sampler.isnan(), old, sampler))
        if "LAST_LAYER" in self.needed:
            arrays |= self._last_layer(ids, mask.bool(), logps)
        return arrays

    def _ended(self, ids: Tensor, mask: Tensor) -> Tensor:
        """True for completions whose last token is an end token, as TRL counts them: `[B]`.

        A completion of several turns has such tokens before its last one too.
        """
        if self._ends is None:
            processing = self.trainer.processing_class
            tokenizer = getattr(processing, "tokenizer", processing)
            ends = {*getattr(self.trainer, "eos_token_ids", [tokenizer.eos_token_id]), tokenizer.pad_token_id} - {None}
            self._ends = torch.tensor(sorted(ends), device=ids.device)
        lengths = mask.sum(1, keepdim=True)
        last = ids.gather(1, (lengths - 1).clamp(min=0))
        return (torch.isin(last, self._ends) & (lengths > 0))[:, 0]

    def _take_hidden(self, tokens: int) -> Tensor:
        hidden, self._hidden = self._hidden, None
        assert hidden is not None
        return hidden[:, -tokens - 1 : -1].flatten(0, 1)

    def _last_layer(self, ids: Tensor, mask: Tensor, logps: Tensor) -> Arrays:
        hidden = self._take_hidden(ids.shape[1])
        top = self._top(hidden, ids)
        if not self._checked:
            self._check(hidden, ids, mask, logps, top)
        return {name: array.view(*ids.shape, *array.shape[1:]) for name, array in ({"hidden": hidden} | top).items()}

    def _top(self, hidden: Tensor, ids: Tensor) -> Arrays:
        weight = whole(self.head().weight).detach()
        top: Arrays = top_rows(hidden, weight.to(hidden.dtype), ids.reshape(-1), self.top_k, self.trainer.temperature)
        return top

    def _check(self, hidden: Tensor, ids: Tensor, mask: Tensor, logps: Tensor, top: Arrays | None = None) -> None:
        if mask.any():
            self._checked = True
            check_same(top or self._top(hidden, ids), logps.reshape(-1), mask.reshape(-1), self.trainer.temperature)

    def batch(self, arrays: Arrays, group_size: int = 1) -> Batch:
        """The component's batch of a step's arrays."""
        trainer = self.trainer
        fields: dict[str, Any] = {name: array for name, array in arrays.items() if name != "rows"}
        fields |= {
            "group_size": group_size,
            "step": trainer.state.global_step,
            "max_steps": trainer.state.max_steps,
            "seed": trainer.args.seed,
            "iteration": self._iteration,
            "sampling_temperature": trainer.temperature,
            # TRL's 0 and vLLM's -1 are off.
            "sampling_top_k": max(trainer.args.top_k or 0, 0),
            "sampling_top_p": trainer.args.top_p,
            "loss_temperature": trainer.temperature,
            "reduction": self.settings.reduction,
            "denominator": self.settings.denominator,
            "max_completion_length": trainer.max_completion_length,
        }
        fields["optimizer"] = self._optimizer_info()
        if "LAST_LAYER" in self.needed:
            fields["vocab_size"] = self.vocab_size()
        # Components read these in host memory.
        fields |= on_host({name: x for name, x in arrays.items() if x.is_cuda and name not in (*LAST_LAYER, "rows")})
        if "OPTIMIZER_STATE" in self.needed:
            fields |= optimizer_state(self._optimizer(), self._weight)
        return nested(fields)

    def group_size(self, rows: Tensor) -> int:
        """Completions per prompt where the step holds whole groups, else 1.

        With several steps to a rollout TRL's shuffle splits them.
        """
        size: int = self.trainer.num_generations
        groups = rows.view(-1, size) // size if rows.numel() % size == 0 else None
        return size if groups is not None and bool((groups == groups[:, :1]).all()) else 1

    def sums_are_less(self, arrays: Arrays) -> bool:
        """Whether sums over this rank's rows are fewer bytes to send than the rows."""
        ranks = self.trainer.accelerator.num_processes
        if ranks == 1 or self.settings.exchange == "arrays":
            return False
        if self.settings.exchange == "sums" or "hidden" not in arrays:
            return True
        # The bytes of other ranks' rows, compared with those of the sums: a ring sends twice the sums, over at most as
        # many rows of the head as all tokens have ids, K + 1 each.
        tokens, rows = arrays["hidden"].shape[:2].numel(), sum(array.nbytes for array in arrays.values()) * (ranks - 1)
        entries = min(self.vocab_size(), tokens * ranks * (arrays["topk_ids"].shape[2] + 1))
        sums = (
            2
            * 8
            * arrays["hidden"].shape[2]
            * entries
            * (2 if self.trainer.second_moment == "kept_and_rejected" else 1)
        )
        largest = torch.tensor([rows, sums], device=self.trainer.accelerator.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        rows, sums = largest.tolist()
        return bool(sums < rows)

    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        return optimizer

    def _optimizer_info(self) -> Optimizer | None:
        # The optimizer did not count steps of which nothing was left.
        taken = self._optimizer().state.get(self._weight, {}).get("step", self.trainer.state.global_step)
        limit, state = self.trainer.args.max_grad_norm or 0.0, self.trainer.state
        schedule = Schedule(self.trainer.lr_scheduler, state.max_steps - state.global_step)
        return optimizer_info(self._optimizer(), int(taken), limit, self._weight, schedule)


def rows_of(inputs: Inputs, wanted: Tensor, count: int) -> tuple[Inputs, Tensor]:
    """`count` rows of a micro-batch, with all that are `wanted` (`[b]`) among them, and their places.

    These are all rows if a value has not one entry for each row, such as images.
    """
    size = len(wanted)
    splits = all(torch.is_tensor(value) and (value.dim() == 0 or len(value) == size) for value in inputs.values())
    if count == size or not splits:
        return inputs, torch.arange(size, device=wanted.device)
    rows = wanted.int().argsort(descending=True, stable=True)[:count]
    return {name: value[rows] if value.dim() else value for name, value in inputs.items()}, rows


class Steps(TrainerCallback):
    """Tells the trainer where training begins, and where an optimizer step begins and ends."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins: the head's weight is remembered."""
        self.trainer._seen.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, about which masks and weights decide."""
        self.trainer._begin_step()
        self.trainer._seen.begin_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All gradients of the step are there."""
        self.trainer._before_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self.trainer._after_step()
