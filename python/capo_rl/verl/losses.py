"""Advantages and objectives of plugins in verl's registries.

verl chooses them by `algorithm.adv_estimator` and `actor.policy_loss.loss_mode`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss

from .. import Advantage, Batch, Objective
from ..plugins import Source

AGGREGATIONS = {
    "token_mean": "token-mean",
    "completion_mean": "seq-mean-token-mean",
    "fixed_length": "seq-mean-token-sum-norm",
    "completion_sum": "seq-mean-token-sum",
}


def register_advantage(id: str, plugin: Source = None, **keys: Any) -> None:
    """Makes a plugin's advantage one of verl's estimators, under its id: `algorithm.adv_estimator=drcapo.advantage`.

    Call it in a module that `actor_rollout_ref.model.external_lib` names. `plugin` and `keys` as for `Advantage`.
    """
    advantage = Advantage(id, plugin, **keys)

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        order, size = _groups(id, index, len(token_level_rewards))
        mask, rewards = response_mask[order].to(torch.uint8), token_level_rewards.sum(-1)[order].float()
        zeros = torch.zeros(mask.shape, dtype=torch.float32)
        found, _ = advantage(Batch(zeros.int(), mask.cpu(), zeros, rewards=rewards.cpu(), group_size=size))
        given = torch.empty_like(token_level_rewards, dtype=torch.float32)
        given[order] = torch.from_numpy(found).to(given)
        return given, given

    register_adv_est(id)(estimate)


def _groups(id: str, index: Any, count: int) -> tuple[Tensor, int]:
    """An order of rows in which the completions of a prompt are neighbours, and their number per prompt."""
    if index is None:
        return torch.arange(count), 1
    _, numbers, sizes = np.unique(np.asarray(index, dtype=str), return_inverse=True, return_counts=True)
    if sizes.min() != sizes.max():
        raise ValueError(
            f"`{id}` compares the completions of a prompt: one prompt has {sizes.min()} and another {sizes.max()} "
            "(each needs as many)"
        )
    return torch.from_numpy(np.argsort(numbers, kind="stable")), int(sizes[0])


def register_objective(id: str, plugin: Source = None, **keys: Any) -> None:
    """Makes a plugin's objective one of verl's policy losses, under its id.

    Call it in a module that `actor_rollout_ref.model.external_lib` names; then
    `actor.policy_loss.loss_mode=drcapo.objective` is it. `loss_agg_mode` must be the objective's own reduction.

    Args:
        id: As for `Objective`.
        plugin: As for `Objective`.
        **keys: As for `Objective`.

    Raises:
        ValueError: For one that reads what verl keeps from its policy losses.
    """
    objective = Objective(id, plugin, **keys)
    if unknown := sorted(objective.inputs - {"OLD_LOGPS"}):
        raise ValueError(
            f"`{id}` reads {', '.join(unknown)}, which verl keeps from policy losses "
            "(set `beta` to 0, and verl's `use_kl_loss` instead)"
        )

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        own = AGGREGATIONS.get(objective.reduction or "", loss_agg_mode)
        if loss_agg_mode != own:
            raise ValueError(
                f"`{id}` is made for loss_agg_mode `{own}`, and it is `{loss_agg_mode}` (set actor.loss_agg_mode={own})"
            )
        mask, logps = response_mask.to(torch.uint8).cpu(), log_prob.detach().float().cpu() * response_mask.cpu()
        old, given = (array.detach().float().cpu() * mask for array in (old_log_prob, advantages))
        batch = Batch(
            torch.zeros(mask.shape, dtype=torch.int32), mask, logps, given, old_logps=old, denominator="original"
        )
        losses, dloss_dlogp, records = objective(batch)
        values, slopes = torch.from_numpy(losses).to(log_prob), torch.from_numpy(dloss_dlogp).to(log_prob)
        by_token = values + slopes * (log_prob - log_prob.detach())
        if rollout_is_weights is not None:
            by_token = by_token * rollout_is_weights
        numbers = {f"actor/{name}": float(value) for name, value in records.items() if isinstance(value, (int, float))}
        return agg_loss(by_token, response_mask, loss_agg_mode, **config.global_batch_info), numbers

    register_policy_loss(id)(loss)
