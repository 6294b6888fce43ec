"""Masks and weights of plugins in TRL's `GRPOTrainer`.

    from capo_rl.trl import CapoGRPOTrainer

    trainer = CapoGRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=..., masks=["capo.curvature"])

The completions of one optimizer step are scored before its first backward pass, gathered over micro-batches and ranks, put into the order in
which they were sampled, and shown to the masks once, as their contract says. What they drop then gets no gradient. Nothing of TRL's loss
is repeated here: a dropped token leaves TRL's own mask (`mask_denominator="kept"`) or has an advantage of 0 (`"original"`).

Tested with TRL 1.16. Every rank makes the same decisions and keeps the same state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from . import Batch, Mask, Weight

__all__ = ["CapoGRPOTrainer"]

# TRL's losses by what they divide by. `num_items_in_batch`, which the last three take, is counted before there are masks.
REDUCTIONS = {
    "grpo": "completion_mean",
    "sapo": "completion_mean",
    "dr_grpo": "fixed_length",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "vespo": "token_mean",
}
FIXED_DENOMINATOR = ("dr_grpo", "dapo", "cispo", "vespo")
OPTIMIZERS = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
STATE = "capo_masks.pt"
# Rows of the vocabulary's logits are [CHUNK, V] at a time.
CHUNK = 1024


class CapoGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with masks and weights between sampling and the backward pass.

    Args:
        masks: Ids, such as `"capo.curvature"`, or `capo_rl.Mask` objects; applied in order.
        weights: Ids or `capo_rl.Weight` objects; they multiply, after the masks.
        mask_denominator: `"kept"`: tokens that stay weigh more; `"original"`: a dropped token is a zero. By default `"kept"` where TRL's loss allows it
            (`grpo`, `sapo`, `bnpo`), else `"original"`.
        last_layer_top_k: How many of the largest logits masks of the last layer see.

    Raises:
        ValueError: For a combination that cannot be right, in a sentence.
    """

    def __init__(
        self,
        *args,
        masks: Iterable[str | Mask] = (),
        weights: Iterable[str | Weight] = (),
        mask_denominator: str | None = None,
        last_layer_top_k: int = 50,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.capo_masks = [Mask(mask) if isinstance(mask, str) else mask for mask in masks]
        self.capo_weights = [Weight(weight) if isinstance(weight, str) else weight for weight in weights]
        self.mask_denominator = self._denominator(mask_denominator)
        self.last_layer_top_k = last_layer_top_k
        self._capo_inputs = frozenset().union(*(each.inputs for each in (*self.capo_masks, *self.capo_weights)))
        self._capo_due, self._capo_step, self._capo_hidden = False, None, None
        self._check_batches()
        if "LAST_LAYER" in self._capo_inputs:
            self._backbone().register_forward_hook(self._keep_hidden)
        if self._components():
            self.add_callback(_Steps(self))

    # What cannot be right ------------------------------------------------------------------------------------------------

    def _components(self):
        return [*self.capo_masks, *self.capo_weights]

    def _denominator(self, asked):
        if self.loss_type not in REDUCTIONS:
            raise ValueError(f"loss_type `{self.loss_type}` has no per-token loss that a mask could drop (known: {', '.join(REDUCTIONS)})")
        fixed = self.loss_type in FIXED_DENOMINATOR
        if asked not in (None, "kept", "original"):
            raise ValueError(f'mask_denominator is {asked!r} (use "kept" or "original")')
        if asked == "kept" and fixed:
            raise ValueError(f'loss_type `{self.loss_type}` divides by a number that masks do not change (use mask_denominator="original")')
        return asked or ("original" if fixed else "kept")

    def _check_batches(self):
        steps, accumulated = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        if self._components() and steps % accumulated:
            raise ValueError(
                f"an optimizer step of {accumulated} micro-batches would span two rollouts of {steps} "
                "(set steps_per_generation to a multiple of gradient_accumulation_steps)"
            )

    # What masks see -------------------------------------------------------------------------------------------------------

    def _policy(self):
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _backbone(self):
        return self._policy().base_model

    def _keep_hidden(self, module, args, output):
        self._capo_hidden = output.last_hidden_state

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        count = output["completion_ids"].shape[0]
        first = self.accelerator.process_index * count
        # Rows keep their numbers through TRL's shuffle.
        output["capo_rows"] = torch.arange(first, first + count, device=output["completion_ids"].device)
        return output

    @torch.no_grad()
    def _score(self, inputs):
        """One micro-batch as arrays, under the current policy."""
        ids, prompt = inputs["completion_ids"], inputs["prompt_ids"]
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        tokens = ids.shape[1]
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        logps, entropies, *_ = self._get_per_token_logps_and_entropies(
            self.model, torch.cat([prompt, ids], 1), attention, tokens, compute_entropy="ENTROPY" in self._capo_inputs
        )
        logps = logps.float() * mask
        advantages = inputs["advantages"]
        advantages = advantages[:, None].expand_as(mask) if advantages.dim() == 1 else advantages
        ended = ((ids == self._eos()) & inputs["completion_mask"].bool()).any(1)
        old = inputs.get("old_per_token_logps")
        old = logps if old is None else old.float() * mask
        arrays = {
            "rows": inputs["capo_rows"],
            "completion_ids": ids.int(),
            "completion_mask": mask.to(torch.uint8),
            "advantages": advantages.float() * mask,
            "truncated": (~ended).to(torch.uint8),
            "logps": logps,
            "old_logps": old,
        }
        if "ENTROPY" in self._capo_inputs:
            arrays["entropy"] = entropies.float() * mask
        if "REF_LOGPS" in self._capo_inputs:
            if "ref_per_token_logps" not in inputs:
                raise ValueError("a mask compares with the reference model, of which there is none (set beta above 0)")
            arrays["ref_logps"] = inputs["ref_per_token_logps"].float() * mask
        if "ROLLOUT_CONTEXT" in self._capo_inputs:
            sampler = inputs.get("sampling_per_token_logps")
            # Without an engine of its own the sampler is the policy as it was.
            arrays["sampler_logps"] = old if sampler is None else torch.where(sampler.isnan(), old, sampler.float()) * mask
        if "LAST_LAYER" in self._capo_inputs:
            arrays |= self._last_layer(ids)
        return arrays

    def _eos(self):
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        return tokenizer.eos_token_id

    def _last_layer(self, ids):
        """Features and largest logits: TRL's head is fused with its loss and returns none of them."""
        (rows, tokens), hidden = ids.shape, self._capo_hidden
        self._capo_hidden = None
        hidden = hidden[:, -tokens - 1 : -1].reshape(rows * tokens, -1)
        weight = self._policy().get_output_embeddings().weight
        weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        k, parts = min(self.last_layer_top_k, weight.shape[0]), []
        for start in range(0, rows * tokens, CHUNK):
            logits = (hidden[start : start + CHUNK] @ weight.T).float()
            top = logits.topk(k)
            action = logits.gather(1, ids.reshape(-1, 1)[start : start + CHUNK].long())[:, 0]
            parts.append((top.values, top.indices.int(), action, (logits / self.temperature).logsumexp(1)))
        values, indices, action, logsumexp = (torch.cat(part) for part in zip(*parts, strict=True))
        return {
            "hidden": hidden.view(rows, tokens, -1),
            "topk_logits": values.view(rows, tokens, k),
            "topk_ids": indices.view(rows, tokens, k),
            "action_logits": action.view(rows, tokens),
            "logsumexp": logsumexp.view(rows, tokens),
        }

    def _gathered(self, parts):
        """The whole step's arrays, over micro-batches and ranks, in the order of sampling."""
        longest = max(part["completion_ids"].shape[1] for part in parts)

        def padded(array):
            missing = longest - array.shape[1] if array.dim() > 1 else 0
            return torch.nn.functional.pad(array, [0, 0] * (array.dim() - 2) + [0, missing]) if missing else array

        whole = {name: torch.cat([padded(part[name]) for part in parts]) for name in parts[0]}
        if self.accelerator.num_processes > 1:
            across = self.accelerator.pad_across_processes
            whole = {name: self.accelerator.gather(across(array, dim=1) if array.dim() > 1 else array) for name, array in whole.items()}
        order = whole["rows"].argsort()
        return {name: array[order].contiguous() for name, array in whole.items()}

    def _batch(self, arrays):
        arrays = dict(arrays)
        rows = arrays.pop("rows")
        asked = {"old_logps": "OLD_LOGPS"}
        arrays = {name: array for name, array in arrays.items() if asked.get(name) is None or asked[name] in self._capo_inputs}
        scalars = {
            "group_size": self._group_size(rows),
            "step": self.state.global_step,
            "max_steps": self.state.max_steps,
            "seed": self.args.seed,
            "iteration": self._step // self.args.steps_per_generation % self.num_iterations,
            "sampling_temperature": self.temperature,
            "loss_temperature": self.temperature,
            "reduction": REDUCTIONS[self.loss_type],
            "denominator": self.mask_denominator,
            "max_completion_length": self.max_completion_length,
        }
        if optimizer := self._optimizer_info():
            scalars["optimizer"] = optimizer
        if "LAST_LAYER" in self._capo_inputs:
            scalars["vocab_size"] = self._policy().get_output_embeddings().weight.shape[0]
        if "OPTIMIZER_STATE" in self._capo_inputs:
            arrays |= self._optimizer_state()
        return Batch(**arrays, **scalars)

    def _group_size(self, rows):
        """Completions per prompt where the step holds whole groups, else 1: with several steps to a rollout TRL's shuffle splits them."""
        size = self.num_generations
        groups = rows.view(-1, size) // size if rows.numel() % size == 0 else None
        return size if groups is not None and bool((groups == groups[:, :1]).all()) else 1

    def _optimizer_info(self):
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        kind = OPTIMIZERS.get(type(optimizer).__name__)
        if kind is None:
            return None
        group = optimizer.param_groups[0]
        info = {"kind": kind, "learning_rate": group["lr"], "weight_decay": group["weight_decay"]}
        info |= {"max_grad_norm": self.args.max_grad_norm or 0.0, "steps_taken": self.state.global_step}
        if kind != "sgd":
            info |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "eps": group["eps"]}
        return info

    def _optimizer_state(self):
        head = self._policy().get_output_embeddings().weight
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        state = optimizer.state.get(head, {})
        whole = lambda array: array.full_tensor() if hasattr(array, "full_tensor") else array
        moments = {name: whole(state[name]) if name in state else torch.zeros_like(whole(head)) for name in ("exp_avg", "exp_avg_sq")}
        return {"weight": whole(head.detach())} | moments

    # Deciding -------------------------------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._capo_due:
            self._capo_due = False
            at = self._step % self.args.steps_per_generation
            self._decide(self._buffered_inputs[at : at + self.current_gradient_accumulation_steps])
        return inputs

    def _decide(self, micro_batches):
        """Masks and weights over the step's whole batch; each micro-batch gets its part."""
        started = time.perf_counter()
        parts = [self._score(inputs) for inputs in micro_batches]
        whole = self._gathered(parts)
        batch, mask = self._batch(whole), whole["completion_mask"]
        keep, records = mask.cpu(), {}
        for each in self.capo_masks:
            keep, told = each(batch, keep=keep)
            records |= told
        keep = torch.as_tensor(keep).to(mask)
        weights = keep.float()
        for each in self.capo_weights:
            given, told = each(batch, keep.cpu())
            weights = weights * torch.as_tensor(given).to(weights)
            records |= told
        keep = keep * (weights > 0).to(keep.dtype)
        for inputs, part in zip(micro_batches, parts, strict=True):
            place, tokens = torch.searchsorted(whole["rows"], part["rows"]), inputs["completion_ids"].shape[1]
            inputs["capo_keep"], inputs["capo_weights"] = keep[place][:, :tokens], weights[place][:, :tokens]
        self._capo_step = (batch, keep, weights)
        self._tell(mask, keep, records, time.perf_counter() - started)

    def _tell(self, mask, keep, records, seconds):
        tokens, kept = int(mask.sum()), int(keep.sum())
        numbers = {"capo/rejection_rate": 1 - kept / max(tokens, 1), "capo/rejected_tokens": tokens - kept, "capo/seconds": seconds}
        numbers |= {f"capo/{name}": value for name, value in records.items() if isinstance(value, int | float)}
        for name, value in numbers.items():
            self._metrics["train"][name].append(float(value))

    def _compute_loss(self, model, inputs):
        keep, weights = inputs.get("capo_keep"), inputs.get("capo_weights")
        if keep is None:
            return super()._compute_loss(model, inputs)
        inputs = {name: value for name, value in inputs.items() if not name.startswith("capo_")}
        if self.mask_denominator == "kept":
            inputs["tool_mask"] = keep.to(inputs["completion_mask"].dtype) * inputs.get("tool_mask", 1)
        if self.mask_denominator == "original" or self.capo_weights:
            advantages = inputs["advantages"]
            inputs["advantages"] = (advantages[:, None] if advantages.dim() == 1 else advantages) * weights
        return super()._compute_loss(model, inputs)

    # The step and its end ---------------------------------------------------------------------------------------------------

    def _before_step(self):
        """A step of which nothing is left changes nothing: zero gradients would still move Adam's weights."""
        if self._capo_step is not None and not bool(self._capo_step[1].any()):
            for parameter in self.model.parameters():
                parameter.grad = None
            self._metrics["train"]["capo/skipped"].append(1.0)

    def _after_step(self):
        if self._capo_step is None:
            return
        batch, keep, weights = self._capo_step
        self._capo_step = None
        taken = bool(keep.any()) and not self.accelerator.optimizer_step_was_skipped
        for each in self.capo_masks:
            each.step_end(batch, keep.cpu(), taken)
        for each in self.capo_weights:
            each.step_end(batch, weights.cpu(), taken)

    # Checkpoints --------------------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self._components() and self.args.should_save:
            torch.save([(each.id, each.state_dict()) for each in self._components()], folder / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._components():
            return
        path = Path(checkpoint) / STATE
        if not path.exists():
            raise ValueError(f"`{path}` is missing: this checkpoint was made without masks (go on with GRPOTrainer, or start anew)")
        saved, own = torch.load(path, weights_only=False), [each.id for each in self._components()]
        if [name for name, _ in saved] != own:
            raise ValueError(f"`{path}` holds the state of {[name for name, _ in saved]}, and this trainer has {own} (give it the same masks)")
        for each, (_, state) in zip(self._components(), saved, strict=True):
            each.load_state_dict(state)


class _Steps(TrainerCallback):
    """Tells the trainer where an optimizer step begins and ends."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer._capo_due = True

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.trainer._before_step()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.trainer._after_step()
