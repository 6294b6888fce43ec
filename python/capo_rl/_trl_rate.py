"""A learning rate that is found before a run, by the search of `governor.kl`."""

from __future__ import annotations

import copy
import statistics
from typing import Any

from transformers import TrainerCallback

#: So many steps with an advantage tell a rate.
FIRST = 6
#: Steps that the search takes, if each has an advantage: the rate follows the run from the first ones on.
STEPS = 25
#: The rate is the median of so many of the last steps.
LAST = 10


class Search(TrainerCallback):
    """Ends training when a step control has followed the run for a while."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rates: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reads the rate from the records of the step."""
        # With several controls of one id, their names have numbers.
        found = [rate for name, rate in self.trainer._controls.records.items() if name.endswith("/found_rate")]
        self.rates += found[:1]
        control.should_training_stop |= len(self.rates) > STEPS - FIRST


def find_rate(trainer: Any) -> float | None:
    """Trains at a constant rate until `governor.kl` has found a learning rate, as `host find-rate` does.

    It takes 25 steps, or more until six of them had completions of one prompt with different rewards, and is the
    median of the rates of the last ten. It cannot find a rate above the trainer's, so give the trainer one that is
    surely high enough. Afterwards the model has changed. For the run itself load it again, into a new trainer;
    `trainer.args` are the same as before.

    Args:
        trainer: A `CapoGRPOTrainer` with the step control `governor.kl`.

    Returns:
        The rate; `None` if training ended before it was found.

    Raises:
        ValueError: For a trainer without that step control, and for one with a fixed target or a scheduler of its own.
    """
    governors = [control for control in trainer.capo_step_controls if control.id == "governor.kl"]
    if not any(control.keys.get("target", "auto") == "auto" for control in governors):
        raise ValueError(
            '`find_rate` needs a search (give the trainer `step_controls=["governor.kl"]`, with no `target` but "auto")'
        )
    if trainer.lr_scheduler is not None:
        raise ValueError(
            "`find_rate` trains at a constant rate, and the trainer has a scheduler already "
            "(give it a new trainer, without one in `optimizers`)"
        )
    search = Search(trainer)
    given = trainer.args
    # transformers does not copy the arguments, and the caller may use them for the run itself.
    trainer.args = args = copy.copy(given)
    args.lr_scheduler_type = "constant"
    args.lr_scheduler_kwargs = None
    args.warmup_steps = 0
    args.save_strategy = "no"
    if args.max_steps > 0:
        args.max_steps = max(args.max_steps, STEPS)
    trainer.add_callback(search)
    try:
        trainer.train()
    finally:
        trainer.args = given
        trainer.remove_callback(search)
    return statistics.median(search.rates[-LAST:]) if search.rates else None
