"""Plugins in verl 0.9: masks and weights in its FSDP engine, advantages and objectives in its registries.

    actor_rollout_ref.actor._target_=capo_rl.verl.CapoActorConfig
    +actor_rollout_ref.actor.capo.masks='[{use: capo.curvature, fisher_threshold: 1e-4}]'

`CapoActorConfig` is verl's config of an FSDP actor with a table `capo`. It travels to every worker with the rest of the
config, and there has the actor's engine be `CapoEngine`, which shows the masks the whole mini-batch of an optimizer
step.
"""

from .config import CapoActorConfig
from .engine import CapoEngine
from .losses import register_advantage, register_objective

__all__ = ["CapoActorConfig", "CapoEngine", "register_advantage", "register_objective"]
