"""A learning rate that is found before a run, by the search of `governor.kl`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class Search(TrainerCallback):
    """Ends training when a step control has found a learning rate."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rate: float | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the rate from what was reported of the step."""
        self.rate = self.trainer._controls.records.get("governor.kl/found_rate")
        control.should_training_stop |= self.rate is not None


def find_rate(trainer: Any) -> float | None:
    """Trains at a constant rate until `governor.kl` has found a learning rate, as `host find-rate` does.

    It takes six steps in which completions of one prompt have different rewards. The trainer's rate is the highest
    that can be found, so give it one that is surely not too low. Its model has moved afterwards: the run itself takes a new trainer.

    Args:
        trainer: A `CapoGRPOTrainer` with the step control `governor.kl`.

    Returns:
        The rate; `None` if training ended before.

    Raises:
        ValueError: For a trainer without that step control.
    """
    if not any(control.id == "governor.kl" for control in trainer.capo_step_controls):
        raise ValueError('`find_rate` needs a search (give the trainer `step_controls=["governor.kl"]`)')
    search = Search(trainer)
    trainer.args.lr_scheduler_type, trainer.args.warmup_steps, trainer.args.save_strategy = "constant", 0, "no"
    trainer.add_callback(search)
    trainer.train()
    return search.rate
