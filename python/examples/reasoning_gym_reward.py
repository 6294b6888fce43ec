#!/usr/bin/env python3
"""Rewards by the verifiers of reasoning_gym, for rows that scripts/reasoning_gym_data wrote.

A program for ``[[reward]] use = "command"``, which reads completions as JSON lines and writes their scores:

    python3 python/examples/reasoning_gym_reward.py [--separator TEXT] [--pattern REGEX] [--exact] [--seconds S]

and a reward function of TRL, ``reasoning_gym_reward``. Needs ``pip install reasoning-gym==0.1.25``.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache

# A library for numbers that cannot be interrupted, or ends the process where a number is too large, is none for answers
# of a model.
os.environ.setdefault("SYMPY_GROUND_TYPES", "python")

try:
    import reasoning_gym
    from reasoning_gym.utils import extract_answer
except ImportError as error:
    if __name__ != "__main__":
        raise
    raise SystemExit(f"reasoning_gym_reward: {error} (pip install reasoning-gym==0.1.25)") from None

# Tasks whose verifiers hand an answer to Python's `eval`, or to sympy's parser, which calls it.
EVALUATED = {
    *("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"),
    *("countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"),
}
FUNCTIONS = set("sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log ln sqrt abs Abs pi Integral".split())

# Columns of a row that the verifier needs.
COLUMNS = ("task", "config", "entry")

# Processor seconds that one answer may take.
SECONDS = 5.0


class TooLong(BaseException):
    """Verifiers that catch every `Exception` do not catch it."""


def harmless(answer: str) -> bool:
    """True if evaluating the answer calls nothing but functions of mathematics."""
    if "\\" in answer or "(" not in answer:
        return "\\" not in answer
    return not re.search("[\"']", answer) and all(
        len(name) == 1 or name in FUNCTIONS for name in re.findall(r"[^\W\d]\w*", answer)
    )


def answer_of(completion: str, separator: str | None = None, pattern: str | None = None) -> str:
    """The text in the last ``<answer>`` of a completion, else the text behind the last separator, else all of it; of either, the first match."""
    answer = extract_answer(completion)
    if answer is not None:
        return answer
    answer = completion.rpartition(separator)[2].strip() if separator else completion.strip()
    found = re.search(pattern, answer) if pattern else None
    return found[0] if found else answer


@lru_cache(maxsize=64)
def dataset(task: str, config: str):
    """The dataset whose verifier is asked; it generates one entry at most."""
    return reasoning_gym.create_dataset(task, seed=0, size=1, **json.loads(config))


@contextmanager
def limited(seconds: float):
    """Ends what takes longer. Only a process's main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise TooLong(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    # Again and again: a verifier may catch the first.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def score(
    completion: str,
    task: str,
    config: str,
    entry: str,
    separator: str | None = None,
    pattern: str | None = None,
    exact: bool = False,
    seconds: float = SECONDS,
) -> float:
    """The score of a completion. A verifier that fails gives 0 and a line on standard error."""
    verifier, entry = dataset(task, config), ast.literal_eval(entry)
    try:
        with limited(seconds):
            answer = answer_of(completion, separator, pattern)
            if task in EVALUATED and not harmless(answer):
                answer = "("  # As wrong as whatever cannot be parsed.
            value = float(verifier.score_answer(answer, entry))
        if not math.isfinite(value):
            raise ValueError(f"its score is {value}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # An answer may be `exit()`.
        print(f"reasoning_gym_reward: {task}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        return 0.0
    return float(value >= 1) if exact else value


def reasoning_gym_reward(
    prompts, completions, *, task, config, entry, separator=None, pattern=None, exact=False, **_
) -> list[float]:
    """A reward function of TRL: completions are texts or conversations, and the columns come from the dataset's rows."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [score(*row, separator=separator, pattern=pattern, exact=exact) for row in zip(texts, task, config, entry)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="scores completions by reasoning_gym's verifiers; JSON lines in, a number for each out"
    )
    parser.add_argument(
        "--separator", help="the answer stands behind the last of this text, where there is no <answer>"
    )
    parser.add_argument(
        "--pattern", help="the answer is the first match of this regular expression in that text, where there is one"
    )
    parser.add_argument("--exact", action="store_true", help="1 for a full score, 0 for parts of one")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="processor seconds for one answer (default %(default)g)"
    )
    options = parser.parse_args()
    if not 0 < options.seconds < 1e6:
        parser.error(f"`--seconds` is {options.seconds} (it must be above 0)")
    try:
        re.compile(options.pattern or "")
    except re.error as error:
        parser.error(f"`--pattern` is no regular expression: {error}")
    # A verifier or an answer may read and print, but not the lines of the protocol.
    lines, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in lines:
        row = json.loads(line)
        columns = row["columns"]
        missing = [f"`{key}`" for key in COLUMNS if key not in columns]
        if missing:
            sys.exit(
                f"reasoning_gym_reward: a row has no {' and no '.join(missing)} (make rows with scripts/reasoning_gym_data)"
            )
        wanted = [columns[key] for key in COLUMNS]
        value = score(row["completion"], *wanted, options.separator, options.pattern, options.exact, options.seconds)
        print(json.dumps({"id": row["id"], "reward": value}), file=answers, flush=True)


if __name__ == "__main__":
    main()
