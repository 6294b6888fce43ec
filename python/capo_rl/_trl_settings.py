"""The arguments of `CapoGRPOTrainer`, checked against TRL's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import trl
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from . import Mask, StepControl, Weight
from ._adamw import SECOND_MOMENTS, AdamW
from ._layer import bare, check_optimizer
from .batch import Denominator, Reduction

# How each of TRL's losses reduces, and which tokens share a denominator.
LOSSES: dict[str, tuple[Reduction, str]] = {
    "grpo": ("completion_mean", "completion"),
    "sapo": ("completion_mean", "completion"),
    "dr_grpo": ("fixed_length", "completion"),
    "luspo": ("completion_sum", "completion"),
    "bnpo": ("token_mean", "micro-batch"),
    "dapo": ("token_mean", "step"),
    "cispo": ("token_mean", "step"),
    "vespo": ("token_mean", "step"),
}
# The methods and fields of TRL's and transformers' trainers that `CapoGRPOTrainer` uses. Neither library promises to
# keep their names.
METHODS = (
    "_generate_and_score_completions",
    "_prepare_inputs",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
    "training_step",
    "_save_checkpoint",
    "_load_optimizer_and_scheduler",
)
FIELDS = (
    "_step",
    "_buffered_inputs",
    "_metrics",
    "num_iterations",
    "loss_type",
    "temperature",
    "num_generations",
    "max_completion_length",
)
MODES = ("auto", "ahead", "inflight")
EXCHANGES = ("auto", "arrays", "sums")


@dataclass(frozen=True)
class Settings:
    """`mask_denominator`, `mode` and `exchange` with their defaults resolved, and how the loss reduces."""

    denominator: Denominator
    mode: str
    exchange: str
    reduction: Reduction
    together: str


def settled(
    trainer: GRPOTrainer,
    components: Sequence[Mask | Weight],
    controls: Sequence[StepControl],
    denominator: str | None,
    mode: str,
    exchange: str,
) -> Settings:
    """The settings of a trainer with these masks and weights, and these step controls.

    Raises:
        ValueError: For settings that contradict each other.
    """
    _check(trainer)
    kind = type(bare(trainer.optimizer)) if trainer.optimizer is not None else _optimizer_of(trainer)[0]
    check_optimizer(kind, components, 'use optim="adamw_torch"')
    if any(each.id == "governor.last-layer" for each in controls):
        raise ValueError(
            "`governor.last-layer` reads losses, which TRL does not show: it is for `host` and `Governed` "
            "(use `governor.kl`)"
        )
    loss = trainer.loss_type
    if loss not in LOSSES:
        raise ValueError(
            f"loss_type `{loss}` has no per-token loss that a mask could drop (known: {', '.join(LOSSES)})"
        )
    reduction, together = LOSSES[loss]
    settled = _denominator(denominator, loss)
    mode = _mode(mode, components, loss if settled == "kept" and together == "step" else None, trainer.args)
    return Settings(settled, mode, _exchange(exchange, components, controls, mode), reduction, together)


def _denominator(asked: str | None, loss: str) -> Denominator:
    reduction, together = LOSSES[loss]
    fixed = reduction in ("fixed_length", "completion_sum")
    if asked not in (None, "kept", "original"):
        raise ValueError(f'mask_denominator is {asked!r} (use "kept" or "original")')
    if asked == "kept" and fixed:
        raise ValueError(
            f'loss_type `{loss}` divides by a number that masks do not change (use mask_denominator="original")'
        )
    if asked is None:
        return "original" if fixed or together == "step" else "kept"
    return "kept" if asked == "kept" else "original"


def _mode(asked: str, components: Sequence[Mask | Weight], over_the_step: str | None, args: GRPOConfig) -> str:
    if asked not in MODES:
        raise ValueError(f'mode is {asked!r} (use "auto", "ahead" or "inflight")')
    others = [each.id for each in components if "TOKEN_WISE" not in each.traits]
    steps, accumulated = args.steps_per_generation, args.gradient_accumulation_steps
    if steps % accumulated and (asked == "ahead" or others or over_the_step):
        why = 'mode="ahead" scores'
        if over_the_step:
            why = f"loss_type `{over_the_step}` divides by the kept tokens of"
        if others:
            why = f"`{others[0]}` may decide by"
        raise ValueError(
            f"{why} the whole step, and its {accumulated} micro-batches are of more than one rollout, of {steps} each: "
            "the later ones are not sampled when the first is decided "
            "(set steps_per_generation to a multiple of gradient_accumulation_steps)"
        )
    if asked == "inflight" and others:
        raise ValueError(f'`{others[0]}` may decide by the whole step, which no micro-batch shows (use mode="ahead")')
    if asked == "inflight" and over_the_step:
        raise ValueError(
            f'loss_type `{over_the_step}` with mask_denominator="kept" divides by the step\'s kept tokens, '
            'which no micro-batch shows (use mode="ahead")'
        )
    return asked if asked != "auto" else "ahead" if others or over_the_step else "inflight"


def _exchange(asked: str, components: Sequence[Mask | Weight], controls: Sequence[StepControl], mode: str) -> str:
    if asked not in EXCHANGES:
        raise ValueError(f'exchange is {asked!r} (use "auto", "arrays" or "sums")')
    others = [each.id for each in components if "SUMS_RANKS" not in each.traits] + [each.id for each in controls]
    if asked == "sums" and (others or mode == "ahead"):
        why = f"`{others[0]}` needs the whole step" if others else "masks ahead of a step see all of it"
        raise ValueError(f'{why}, so sums do not do (use exchange="arrays")')
    return "arrays" if others or mode == "ahead" else asked


def check_hooks(trainer: GRPOTrainer | type[GRPOTrainer], names: Sequence[str]) -> None:
    """Makes sure that this TRL has the methods and fields that `CapoGRPOTrainer` uses.

    Raises:
        ValueError: If one is missing; the message names it.
    """
    for name in names:
        if not hasattr(trainer, name):
            raise ValueError(
                f"GRPOTrainer of TRL {trl.__version__} has no `{name}`, which masks go through "
                "(install 'trl>=1.0,<1.17')"
            )


def _check(trainer: GRPOTrainer) -> None:
    check_hooks(trainer, FIELDS)
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "masks do not know DeepSpeed, which steps by itself and may hold the last layer in pieces "
            "(use DDP or FSDP2)"
        )
    if trainer.is_fsdp_enabled and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) != 2:
        raise ValueError(
            'masks do not know FSDP1, which holds the last layer in flat pieces (set fsdp_config={"version": 2})'
        )
    # TRL 1.0 has the setting; 1.16 has no fused loss.
    if getattr(trainer, "use_liger_kernel", False):
        raise ValueError(
            "the fused loss of use_liger_kernel never shows a token's log-probability, so no mask could drop one "
            "(switch it off)"
        )


def _optimizer_of(trainer: GRPOTrainer) -> tuple[type, dict[str, Any]]:
    """The class and the arguments of the optimizer that the trainer will create."""
    asked = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    found: tuple[type, dict[str, Any]] = asked
    return found


def take_adamw(trainer: GRPOTrainer, second_moment: str) -> None:
    """Makes the trainer use `capo_rl.torch.AdamW` in place of torch's.

    Raises:
        ValueError: For settings that this optimizer does not support.
    """
    if second_moment not in SECOND_MOMENTS:
        raise ValueError(f'second_moment is {second_moment!r} (use "kept" or "kept_and_rejected")')
    foreign = trainer.optimizer is not None and not isinstance(trainer.optimizer, AdamW)
    lacks = [
        ("an optimizer of your own", foreign, "make it a capo_rl.torch.AdamW"),
        ("fp16", trainer.args.fp16, "use bf16"),
        ("a router's auxiliary loss", getattr(trainer, "aux_loss_enabled", False), "set router_aux_loss_coef to 0"),
        ("an adaptive entropy bonus", getattr(trainer, "use_adaptive_entropy", False), "set entropy_coef"),
        ("this version of transformers", not hasattr(Trainer, "_clip_grad_norm"), "use 5.0 or newer"),
    ]
    for what, is_there, remedy in lacks:
        if is_there:
            raise ValueError(f'second_moment "kept_and_rejected" does not go with {what} ({remedy})')
    if trainer.optimizer is None:
        kind, keys = _optimizer_of(trainer)
        if kind is not torch.optim.AdamW:
            optim = getattr(trainer.args.optim, "value", trainer.args.optim)
            raise ValueError(
                f'second_moment "kept_and_rejected" is for AdamW, and optim is `{optim}` '
                '(use "adamw_torch" or "adamw_torch_fused")'
            )
        trainer.optimizer_cls_and_kwargs = (AdamW, keys | {"second_moment": second_moment})
