"""What a run of verl says about masks, and which of it cannot be right."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from verl.workers.config import FSDPActorConfig

from .. import Mask, Weight

#: verl's `loss_agg_mode` by the reductions of plugins. Under the first two a mask may change what is divided by.
REDUCTIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "completion_mean", "seq-mean-token-sum-norm": "fixed_length"}
KEPT = ("token-mean", "seq-mean-token-mean")
VENDOR = "VERL_ENGINE_VENDOR"


@dataclass(frozen=True)
class Settings:
    """The table ``capo``, checked: ``masks`` and ``weights`` as in a config, ``denominator`` and ``reduction`` as for ``Batch``."""

    masks: tuple[dict[str, Any], ...]
    weights: tuple[dict[str, Any], ...]
    denominator: str
    reduction: str
    group_size: int
    last_layer_top_k: int
    seed: int
    loss_scale_factor: int | None

    def components(self) -> tuple[list[Mask], list[Weight]]:
        """The masks and weights, opened."""
        return [_opened(Mask, table) for table in self.masks], [_opened(Weight, table) for table in self.weights]


def _opened(kind: type, table: dict[str, Any]) -> Any:
    keys = dict(table)
    return kind(keys.pop("use"), **keys)


@dataclass
class CapoActorConfig(FSDPActorConfig):
    """verl's config of an FSDP actor, with a table ``capo``.

    ``capo.masks``, ``capo.weights``: ids, or tables as under ``[[mask]]`` in a config: ``{use: capo.curvature, fisher_threshold: 1e-4}``; applied in order.
    ``capo.mask_denominator``: ``kept``, tokens that stay weigh more, or ``original``, a dropped token is a zero. By default ``kept`` where verl's loss allows it.
    ``capo.last_layer_top_k``: how many of the largest logits masks of the last layer see; 50.

    Raises ``ValueError`` for a combination that cannot be right.
    """

    capo: dict[str, Any] = field(default_factory=dict)
    # The tables of verl's other engines, of which `_checked` has a sentence to say.
    megatron: Any = None
    veomni: Any = None
    torchtitan: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = _checked(self)
        # As `strategy` is handed down in verl: the engine is made of this config alone.
        object.__setattr__(self.engine, "capo", settings)
        if os.environ.setdefault(VENDOR, "capo") != "capo":
            raise ValueError(f"`{VENDOR}` is `{os.environ[VENDOR]}`, an engine that knows no masks (unset it)")


def _checked(config: CapoActorConfig) -> Settings:
    table = dict(config.capo)
    masks, weights = _tables("masks", table.pop("masks", ())), _tables("weights", table.pop("weights", ()))
    asked, top_k = table.pop("mask_denominator", None), table.pop("last_layer_top_k", 50)
    if table:
        raise ValueError(f"`capo.{next(iter(table))}` is unknown (known: masks, weights, mask_denominator, last_layer_top_k)")
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"`capo.last_layer_top_k` is {top_k!r} (it must be a number of logits, 1 or more)")
    if config.strategy not in ("fsdp", "fsdp2"):
        raise ValueError(f"actor.strategy is `{config.strategy}`, an engine that shows masks no whole step (use `fsdp2` or `fsdp`)")
    if config.fsdp_config.ulysses_sequence_parallel_size > 1:
        raise ValueError("masks need whole sequences on a rank (set ulysses_sequence_parallel_size to 1)")
    aggregation = config.loss_agg_mode
    if aggregation not in REDUCTIONS:
        raise ValueError(f"loss_agg_mode `{aggregation}` is none that plugins know (known: {', '.join(REDUCTIONS)})")
    denominator = _denominator(asked, aggregation)
    return Settings(masks, weights, denominator, REDUCTIONS[aggregation], config.rollout_n, top_k, config.data_loader_seed, config.loss_scale_factor)


def _tables(name: str, given: Any) -> tuple[dict[str, Any], ...]:
    if isinstance(given, (str, dict)):
        raise ValueError(f"`capo.{name}` is {given!r} (it must be a list, such as `[capo.curvature]`)")
    tables = tuple({"use": each} if isinstance(each, str) else dict(each) for each in given)
    for table in tables:
        if "use" not in table:
            raise ValueError(f"a table of `capo.{name}` has no `use` (write `{{use: capo.curvature}}`)")
    return tables


def _denominator(asked: str | None, aggregation: str) -> str:
    if asked not in (None, "kept", "original"):
        raise ValueError(f"`capo.mask_denominator` is {asked!r} (use `kept` or `original`)")
    if asked == "kept" and aggregation not in KEPT:
        raise ValueError(f"loss_agg_mode `{aggregation}` divides by a number that masks do not change (use `capo.mask_denominator=original`)")
    return asked or ("kept" if aggregation in KEPT else "original")
