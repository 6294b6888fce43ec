"""Twelve tasks in few-shot prompts for a pretrained model.

A prompt shows worked examples of one kind of question, each on a line of its own, and ends with a question. The examples of a prompt are drawn
for it alone. The reward is 1 where the first line of a completion is the answer, else 0 (`first_line.py`). Questions of the held-out prompts do
not end a training prompt, except for the tasks that have few questions (`FEW_QUESTIONS`), whose examples differ.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

WORDS = (
    "apple arrow basket bread brick bridge brush butter button candle carpet castle chair chalk cheese church circle cloud coffee copper corner cotton "
    "cradle cream desk dinner doctor dragon dress drum engine farmer feather fence field finger flower forest garden ghost giant glass goose grass "
    "guitar hammer harbor helmet honey horse hotel island jacket jungle kettle kitchen ladder lemon letter lion market mirror monkey morning mountain "
    "needle number ocean office onion orange oven palace paper pencil pepper picture pillow planet pocket potato prince puzzle queen rabbit river "
    "rocket saddle salad school shadow sheep shelf silver sister snow soldier spider spoon square station stone storm sugar summer table teacher "
    "thunder ticket tiger tower train tunnel turtle uncle valley village violin wagon water weather wheel window winter wizard yellow zebra"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NAMES = "one two three four five six seven eight nine ten".split()


class Task(NamedTuple):
    """A kind of question."""

    # Draws a question and its answer.
    draw: Callable[[random.Random], tuple[str, str]]
    # Worked examples of a prompt.
    shots: int
    # Most tokens of a completion.
    tokens: int


def add(rng):
    a, b = rng.randrange(10, 100), rng.randrange(10, 100)
    return f"{a}+{b}=", str(a + b)


def subtract(rng):
    b, a = sorted(rng.sample(range(10, 100), 2))
    return f"{a}-{b}=", str(a - b)


def remainder(rng):
    a, b = rng.randrange(10, 60), rng.randrange(3, 8)
    return f"{a} mod {b} =", str(a % b)


def between(rng):
    a = rng.randrange(1, 80)
    b = a + 2 * rng.randrange(1, 9)
    return f"halfway from {a} to {b}:", str((a + b) // 2)


def smallest(rng):
    numbers = rng.sample(range(10, 100), 4)
    return f"smallest of {', '.join(map(str, numbers))}:", str(min(numbers))


def sort(rng):
    numbers = rng.sample(range(1, 10), 4)
    return f"sort {' '.join(map(str, numbers))}:", " ".join(map(str, sorted(numbers)))


def second(rng):
    words = rng.sample(WORDS, 3)
    return f"second in the alphabet of {', '.join(words)}:", sorted(words)[1]


def last_letter(rng):
    word = rng.choice(WORDS)
    return f"last letter of {word}:", word[-1]


def reverse(rng):
    letters = "".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 3))
    return f"backwards {' '.join(letters)}:", " ".join(reversed(letters))


def count(rng):
    word = rng.choice(WORDS)
    return f"letters in {word}:", str(len(word))


def weekday(rng):
    day, later = rng.randrange(7), rng.randrange(2, 7)
    return f"{NAMES[later - 1]} days after {DAYS[day]}:", DAYS[(day + later) % 7]


def month(rng):
    start, earlier = rng.randrange(12), rng.randrange(2, 11)
    return f"{NAMES[earlier - 1]} months before {MONTHS[start]}:", MONTHS[(start - earlier) % 12]


TASKS = {
    "add": Task(add, 9, 4),
    "subtract": Task(subtract, 9, 4),
    "remainder": Task(remainder, 8, 3),
    "between": Task(between, 6, 4),
    "smallest": Task(smallest, 4, 4),
    "sort": Task(sort, 5, 8),
    "second": Task(second, 5, 4),
    "last-letter": Task(last_letter, 8, 3),
    "reverse": Task(reverse, 5, 7),
    "count": Task(count, 8, 3),
    "weekday": Task(weekday, 7, 4),
    "month": Task(month, 7, 4),
}
FEW_QUESTIONS = ("weekday", "month", "last-letter", "count", "remainder")
PARTS = Path(__file__).resolve().parent
TRAINING, HELD_OUT = 500, 128


def rows(name):
    """Rows of a task: training, then held out."""
    task, rng = TASKS[name], random.Random(f"few-shot {name}")
    held_out = []
    asked = set()
    while len(held_out) < HELD_OUT:
        row = prompt(task, rng)
        asked.add(row["prompt"].split("\n")[-1])
        held_out.append(row)
    training = []
    while len(training) < TRAINING:
        row = prompt(task, rng)
        if row["prompt"].split("\n")[-1] not in asked or name in FEW_QUESTIONS:
            training.append(row)
    return training, held_out


def prompt(task, rng):
    """A row: the prompt's examples and question, and the question's answer."""
    examples = [task.draw(rng) for _ in range(task.shots)]
    question, answer = task.draw(rng)
    lines = [f"{question} {answer}" for question, answer in examples] + [question]
    return {"prompt": "\n".join(lines), "answer": answer}


def prepare(folder, name, model, python):
    """Writes the rows of a task and the configuration that its runs share below `folder`. Returns the configuration's path."""
    data = folder / name
    data.mkdir(parents=True, exist_ok=True)
    for part, of in zip(("train", "held_out"), rows(name)):
        (data / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    path = data / "run.toml"
    path.write_text(
        f"""[model]
model_name_or_path = "{model}"

[data]
dataset_name = "{data / "train.jsonl"}"
eval_dataset_name = "{data / "held_out.jsonl"}"

[rollout]
num_generations = 8
max_completion_length = {TASKS[name].tokens}

[train]
per_device_train_batch_size = 32
gradient_accumulation_steps = 1
save_steps = 0

[eval]
num_prompts = {HELD_OUT}

[warnings]
clipped_ratio = 0

[[reward]]
use = "command"
command = {json.dumps([str(python), str(PARTS / "first_line.py")])}
"""
    )
    return path
