"""Settings of masks, weights and step controls in a run of verl, and the refusals of wrong ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import FSDPActorConfig

from .. import Mask, StepControl, Weight
from .._adamw import SECOND_MOMENTS
from .._metrics import CHOICES
from ..batch import Denominator, Reduction

#: verl's `loss_agg_mode` by the reductions of plugins. Under the first two a mask may change what is divided by.
REDUCTIONS: dict[str, Reduction] = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "completion_mean",
    "seq-mean-token-sum-norm": "fixed_length",
}
KEPT = ("token-mean", "seq-mean-token-mean")
VENDOR = "VERL_ENGINE_VENDOR"
MODES = ("auto", "ahead", "inflight")
KEYS = (
    "masks",
    "weights",
    "step_controls",
    "mask_denominator",
    "mode",
    "second_moment",
    "last_layer_top_k",
    "component_metrics",
)


@dataclass(frozen=True)
class Settings:
    """The table `capo`, checked: components as in a config, `denominator` and `reduction` as for `Batch`."""

    masks: tuple[dict[str, Any], ...]
    weights: tuple[dict[str, Any], ...]
    step_controls: tuple[dict[str, Any], ...]
    mode: str
    second_moment: str
    denominator: Denominator
    reduction: Reduction
    group_size: int
    last_layer_top_k: int
    seed: int
    loss_scale_factor: int | None
    loss_mode: str
    component_metrics: str

    @property
    def by_micro_batch(self) -> bool:
        """Whether a token's loss depends on the other completions of its micro-batch.

        It divides by the longest one, or chooses tokens among them all.
        """
        longest = self.reduction == "fixed_length" and self.loss_scale_factor is None
        return longest or self.loss_mode in ("clip_cov", "kl_cov")

    def components(self) -> tuple[list[Mask], list[Weight], list[StepControl]]:
        """The components, built: masks, weights, step controls."""
        given = ((Mask, self.masks), (Weight, self.weights), (StepControl, self.step_controls))
        masks, weights, controls = ([_opened(kind, table) for table in tables] for kind, tables in given)
        return masks, weights, controls

    def inflight(self, deciders: Sequence[Mask | Weight]) -> bool:
        """Whether these masks and weights decide in the forward pass that trains.

        Raises:
            ValueError: Where they cannot, and are to.
        """
        others = [each.id for each in deciders if not {"TOKEN_WISE", "SUMS_RANKS"} <= each.traits]
        if self.mode == "inflight" and others:
            raise ValueError(
                f"`{others[0]}` may need the whole step, which no micro-batch of a rank shows (use `capo.mode=ahead`)"
            )
        return self.mode != "ahead" and not others


def _opened(kind: type, table: dict[str, Any]) -> Any:
    keys = dict(table)
    return kind(keys.pop("use"), **keys)


@dataclass
class CapoActorConfig(FSDPActorConfig):
    """verl's config of an FSDP actor, with a table `capo`.

    `capo.masks`, `capo.weights`: ids, or tables as under `[[mask]]` in a config: `{use: capo.curvature,
        fisher_threshold: 1e-4}`; applied in order.
    `capo.step_controls`: the same as under `[[step_control]]`; each shortens what those before it left of a step.
    `capo.mode`: `ahead`, `inflight`, or `auto`: in flight where every mask and weight can.
    `capo.second_moment`: `kept_and_rejected`: Adam's second moment takes in the gradient of what was rejected too, see
        `capo_rl.torch.AdamW`.
    `capo.mask_denominator`: `kept`, tokens that stay weigh more, or `original`, a dropped token is a zero. By default
        `kept` where verl's loss allows it.
    `capo.last_layer_top_k`: how many of the largest logits masks of the last layer see; 50.
    `capo.component_metrics`: what the components report, for verl's log: `main`, the few numbers that say how a run
        goes, or `all`.

    Raises `ValueError` for a combination that cannot be right.
    """

    capo: dict[str, Any] = field(default_factory=dict)
    # The tables of verl's other engines, which `_checked` refuses.
    megatron: Any = None
    veomni: Any = None
    torchtitan: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = _checked(self)
        # verl hands `strategy` down in the same way, because it makes the engine from this config alone.
        object.__setattr__(self.engine, "capo", settings)
        if os.environ.setdefault(VENDOR, "capo") != "capo":
            raise ValueError(f"`{VENDOR}` is `{os.environ[VENDOR]}`, an engine that knows no masks (unset it)")


def _checked(config: CapoActorConfig) -> Settings:
    table = dict(config.capo)
    if unknown := [name for name in table if name not in KEYS]:
        raise ValueError(f"`capo.{unknown[0]}` is unknown (known: {', '.join(KEYS)})")
    masks, weights, controls = (_tables(name, table.get(name, ())) for name in ("masks", "weights", "step_controls"))
    mode, second_moment = _one_of(MODES, "mode", table), _one_of(SECOND_MOMENTS, "second_moment", table)
    asked, top_k = table.get("mask_denominator"), table.get("last_layer_top_k", 50)
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"`capo.last_layer_top_k` is {top_k!r} (it must be a number of logits, 1 or more)")
    if config.strategy not in ("fsdp", "fsdp2"):
        raise ValueError(
            f"actor.strategy is `{config.strategy}`, an engine that shows masks no whole step (use `fsdp2` or `fsdp`)"
        )
    if config.fsdp_config.ulysses_sequence_parallel_size > 1:
        raise ValueError("masks need whole sequences on a rank (set ulysses_sequence_parallel_size to 1)")
    component_metrics, aggregation = _one_of(CHOICES, "component_metrics", table), config.loss_agg_mode
    if aggregation not in REDUCTIONS:
        raise ValueError(f"loss_agg_mode `{aggregation}` is none that plugins know (known: {', '.join(REDUCTIONS)})")
    if any(table["use"] == "governor.last-layer" for table in controls):
        raise ValueError("`governor.last-layer` reads losses, which verl does not show (use `governor.kl`)")
    if controls:
        _check_trainer(config, "step controls")
    if second_moment != "kept":
        _check_trainer(config, f"second_moment `{second_moment}`")
        _check_adamw(config, second_moment)
    denominator, loss_mode = _denominator(asked, aggregation), config.policy_loss.get("loss_mode", "vanilla")
    others = (config.rollout_n, top_k, config.data_loader_seed, config.loss_scale_factor, loss_mode, component_metrics)
    return Settings(masks, weights, controls, mode, second_moment, denominator, REDUCTIONS[aggregation], *others)


def _one_of(known: tuple[str, ...], name: str, table: dict[str, Any]) -> str:
    """The value of `name` in the table; without one, the first of `known`."""
    asked: str = table.get(name, known[0])
    if asked not in known:
        raise ValueError(f"`capo.{name}` is {asked!r} (use {', '.join(f'`{each}`' for each in known)})")
    return asked


def _check_trainer(config: CapoActorConfig, what: str) -> None:
    if config.strategy == "fsdp":
        raise ValueError(
            f"{what} cannot tell weights and gradients apart under strategy `fsdp`, which flattens them "
            "(set actor.strategy=fsdp2)"
        )
    if config.fsdp_config.qat.enable:
        raise ValueError(f"{what} do not go with quantization-aware training (switch off actor.fsdp_config.qat.enable)")


def _check_adamw(config: CapoActorConfig, second_moment: str) -> None:
    kind = f"{config.optim.optimizer_impl}.{config.optim.optimizer}"
    precision = config.fsdp_config.mixed_precision or {}
    if kind != "torch.optim.AdamW":
        raise ValueError(
            f"second_moment `{second_moment}` is for AdamW of torch.optim, and actor.optim is `{kind}` "
            "(leave it at AdamW)"
        )
    if PrecisionType.is_fp16(precision.get("param_dtype")):
        raise ValueError(f"second_moment `{second_moment}` does not go with the scaled losses of fp16 (use bf16)")


def _tables(name: str, given: Any) -> tuple[dict[str, Any], ...]:
    if isinstance(given, (str, dict)):
        raise ValueError(f"`capo.{name}` is {given!r} (it must be a list, such as `[capo.curvature]`)")
    tables = tuple({"use": each} if isinstance(each, str) else dict(each) for each in given)
    for table in tables:
        if "use" not in table:
            raise ValueError(f"a table of `capo.{name}` has no `use` (write `{{use: capo.curvature}}`)")
    return tables


def _denominator(asked: str | None, aggregation: str) -> Denominator:
    if asked not in (None, "kept", "original"):
        raise ValueError(f"`capo.mask_denominator` is {asked!r} (use `kept` or `original`)")
    if asked == "kept" and aggregation not in KEPT:
        raise ValueError(
            f"loss_agg_mode `{aggregation}` divides by a number that masks do not change "
            "(use `capo.mask_denominator=original`)"
        )
    if asked is None:
        return "kept" if aggregation in KEPT else "original"
    return "kept" if asked == "kept" else "original"
