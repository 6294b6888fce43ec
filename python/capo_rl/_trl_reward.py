"""A plugin's reward as one of the functions that TRL calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .components import Reward

#: Arguments that TRL passes to a reward function in addition to the dataset's columns.
OF_TRL = ("trainer_state", "log_extra", "log_metric", "environments")


def reward_func(
    reward: str | Reward, answer: str | None = "answer", max_completion_length: int | None = None
) -> Callable[..., list[float | None]]:
    """`reward` as an entry of `reward_funcs`; TRL logs it under its id.

    In a conversation, the text of a completion is the assistant's last message, and the text of a prompt is all of its
    messages. The reward also sees the dataset's other columns, except those that JSON cannot represent.

    Args:
        reward: An id, such as `"math"`, or a `capo_rl.Reward` with its keys.
        answer: The dataset's column with which a completion is compared. A row without a value in it gets no reward
            (None). Use `None` for a reward that reads no answer.
        max_completion_length: The trainer's limit, for a reward that uses it. A completion of this many tokens counts
            as cut off.

    Raises:
        CapoError: For an unknown id.
        ValueError: When the function is called, if the dataset has no such column.
        TypeError: When the function is called, for an answer that is neither text nor a number.
    """
    reward = Reward(reward) if isinstance(reward, str) else reward

    def func(
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]] | None = None,
        trainer_state: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        if answer is not None and answer not in columns:
            raise ValueError(
                f"`{reward.id}` compares with the column `{answer}`, which the dataset does not have "
                "(name the column: `answer=...`, or `answer=None` for a reward that reads none)"
            )
        answers = columns[answer] if answer is not None else [""] * len(completions)
        rows = [row for row, value in enumerate(answers) if value is not None]
        columns = {name: values for name, values in columns.items() if name not in OF_TRL and _is_json(values)}
        ids = None if completion_ids is None else [completion_ids[row] for row in rows]
        limit = max_completion_length
        cut = None if ids is None or limit is None else [len(each) >= limit for each in ids]
        run = trainer_state
        of_run = {} if run is None else {"step": run.global_step, "max_steps": run.max_steps}
        scored, _ = reward(
            [_text(prompts[row]) for row in rows],
            [_text(completions[row], "assistant") for row in rows],
            answers=[_answer(answer, answers[row]) for row in rows],
            columns=[{name: values[row] for name, values in columns.items()} for row in rows],
            completion_ids=ids,
            truncated=cut,
            max_completion_length=max_completion_length,
            **of_run,
        )
        found: list[float | None] = [None] * len(completions)
        for row, value in zip(rows, scored.tolist(), strict=True):
            found[row] = value
        return found

    func.__name__ = reward.id
    return func


def _answer(column: str | None, value: Any) -> str:
    if not isinstance(value, (str, int, float)):
        raise TypeError(
            f"an answer in the column `{column}` is of type `{type(value).__name__}` (it must be text or a number)"
        )
    return str(value)


def _text(given: Any, role: str | None = None) -> str:
    """A text as it is; of a list of messages, the text of the last one of `role`, or of all if `role` is `None`."""
    if isinstance(given, str):
        return given
    texts = [_content(message.get("content")) for message in given if role in (None, message["role"])]
    return "\n".join(texts) if role is None else texts[-1] if texts else ""


def _content(content: Any) -> str:
    """A message's text. A message in parts, such as one with images, has the texts of its parts."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())


def _is_json(values: Any) -> bool:
    """False for values that JSON cannot represent, such as images."""
    try:
        return bool(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError):
        return False
