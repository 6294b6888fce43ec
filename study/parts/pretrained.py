"""The second part of the study: a pretrained model. This protocol was written before the first run; the arms `auto` and at 2% were added later.

* Model: SmolLM2-135M-Instruct as scripts/pretrained fetches it (Q4_1, trained in f32), all weights or LoRA of rank 16.
* Tasks: `sequence` (`Continue the sequence: 3, 5, 7, 9,`; 480 prompts, 128 others held out), and reasoning_gym's `chain_sum` (two terms of at
  most two digits) and `number_sequence` (500 prompts, 128 others held out). No chat template. The reward is 1 if the first whole number of
  a completion is the answer, else 0.
* Training: 60 steps of 32 completions in groups of 8, at most 6 tokens, temperature 1, a constant learning rate without a warm-up.
* Number of a run: the greedy accuracy on the 128 held-out prompts, as the mean of the measurements after 40, 50 and 60 steps.
* Seeds 31 to 33, on which nothing was chosen. The target of 4e-3 was measured on seed 30: the median KL of a step of `grpo` at 1e-5 is
  4.5e-3, cut to one digit.
* Fixed targets between 3e-5, the default at that time, and the measured target were added at the rate 1e-4, together with the search over
  rates. At that time, only seed 31 had runs.
* The fixed targets of an adapter, and its mask at 2%, at the rate 1e-3, were added before any of these runs. In a grid of targets, only the
  best target on seed 31 has runs on the other seeds.
* Successive halving over RATES at the cost of one run: five rates train for 4 steps, the two with the highest mean training reward continue
  to step 10, and the one of them with the higher mean reward from step 5 to 10 continues to step 40. Its number is the mean of the
  measurements after 30 and 40 steps. The search takes its numbers from the runs of `grpo`.
* All other settings have their defaults.
"""

import json
import random
import subprocess
from pathlib import Path

PARTS = Path(__file__).resolve().parent
SCRIPTS = PARTS.parents[1] / "scripts"
SEEDS = (31, 32, 33)
RATES = ("3e-6", "1e-5", "3e-5", "1e-4", "3e-4")
ADAPTER_RATES = ("1e-4", "3e-4", "1e-3")
STEPS, EVERY, BATCH = 60, 10, 32
# Number of last measurements whose mean is a run's number.
LAST = 3
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Targets of the governor, nats per token.
TARGETS = ("3e-5", "1e-4", "3e-4", "1e-3", "4e-3")
# Rungs of the search: (number of rates, step to which they train). Together 5 x 4 + 2 x 6 + 1 x 30 = 62 steps.
RUNGS = ((5, 4), (2, 10), (1, 40))
TASKS = {"sequence": None, "chain_sum": ["--config", "max_terms=2", "--config", "max_digits=2"], "number_sequence": []}
# Metrics of each step that are kept.
METRICS = (
    "reward",
    "entropy",
    "step/kl",
    "step/last_layer_kl",
    "mask/rejection_rate",
    "weight/removed_squares",
    "capo.curvature-weight/mean",
    "step_control/applied",
    "grad_norm",
)


def sequences():
    """Rows of the task `sequence`: the training rows, then those held out."""
    rows = []
    for first in range(1, 61):
        for step in range(2, 13):
            shown = ", ".join(str(first + step * place) for place in range(4))
            rows.append({"prompt": f"Continue the sequence: {shown},", "answer": str(first + 4 * step)})
    random.Random(1).shuffle(rows)
    return rows[:480], rows[480:608]


def prepare(folder, python, tasks):
    """Fetches the model and makes the rows of `tasks` in `folder`; what is already there is kept."""
    if not (folder / "models" / MODEL).exists():
        subprocess.run([SCRIPTS / "pretrained", folder / "models"], check=True)
    for task in tasks:
        config, data = TASKS[task], folder / "data" / task
        if (data / "held_out.jsonl").exists():
            continue
        if config is None:
            data.mkdir(parents=True, exist_ok=True)
            for name, rows in zip(("train", "held_out"), sequences()):
                (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            make = [python, SCRIPTS / "reasoning_gym_data", task, "--size", "500", "--held-out", "128", "--seed", "1"]
            subprocess.run([*make, *config, "--out", data], check=True)


def config(folder, task, python):
    """Writes the configuration that all runs on `task` share, and returns its path."""
    data = folder / "data" / task
    command = json.dumps([str(python), str(PARTS / "first_number.py")])
    path = folder / f"{task}.toml"
    path.write_text(
        f"""[model]
model_name_or_path = "{folder / "models" / MODEL}"

[data]
dataset_name = "{data / "train.jsonl"}"
eval_dataset_name = "{data / "held_out.jsonl"}"

[rollout]
num_generations = 8
max_completion_length = 6

[train]
per_device_train_batch_size = {BATCH}
gradient_accumulation_steps = 1
measure_step = 5

[eval]
num_prompts = 128
eval_steps = {EVERY}

[[reward]]
use = "command"
command = {command}
"""
    )
    return path


def kept(lines):
    """The metrics of a run that the tables need: the accuracies, of which the first is from before training, and METRICS by step."""
    accuracies = [line["eval_accuracy"] for line in lines if "eval_accuracy" in line]
    steps = [line for line in lines if line["step"]]
    short = lambda value: None if value is None else float(f"{value:.3g}")
    metrics = {name: {line["step"]: short(line[name]) for line in steps if name in line} for name in METRICS}
    return {"accuracies": accuracies, "metrics": {name: list(of.items()) for name, of in metrics.items() if of}}
