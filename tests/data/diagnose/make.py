#!/usr/bin/env python3
"""Records the runs that `host diagnose` is tested on: the metrics that its checks read, of runs whose fate is known.

    cargo build --release && tests/data/diagnose/make.py

Each file has the run's settings that the checks and their advice ask for, as `key = value`, then an empty line, the names of its metrics, and a line per step.
Numbers have three digits. A metric that is the same in every step and that no check would miss is left out.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
HOST = HERE.parents[2] / "target/release/host"
CAPO = ["--plugin", "libcapo.so"]
SOFT = [*CAPO, "--set", "recipe=capo-soft"]
GOVERNED = ["--plugin", "libgovernor.so", "--set", "step_control.governor.kl.target=3e-5"]
ALWAYS = {"step", "reward", "frac_advantage_zero", "learning_rate"}
KEPT = {"entropy", "completions/clipped_ratio", "mask/rejection_rate", "mask/rejected_gradient_share", "step/kl"}
OF_COMPONENTS = ("/rejection_rate", "/weighted_away_gradient_share", "/applied", "/found_rate", "-weight/mean")
SETTINGS = ("recipe", "mask", "weight", "step_control", "model.model_name_or_path", "model.use_peft", "data.max_prompt_length", "rollout.num_generations",
            "rollout.max_completion_length", "train.learning_rate", "train.max_steps", "train.per_device_train_batch_size",
            "train.gradient_accumulation_steps", "train.second_moment", "eval.num_prompts")

# Name, steps, learning rate, and what else is said.
RUNS = {
    "healthy-grpo": (300, "1e-4", []),
    "healthy-soft": (300, "3e-4", SOFT),
    "healthy-governed": (300, "5e-4", GOVERNED),
    "healthy-found": (75, "1e-3", ["--plugin", "libgovernor.so"]),
    "too-fast": (75, "1e-3", []),
    "short-fall": (3, "1e-3", ["--set", "eval.num_prompts=512"]),
    "mask-undone": (100, "3e-4", CAPO),
    "all-rejected": (10, "1e-4", ["--plugin", "libmasks.so", "--set", "recipe=grpo", "--mask", "masks.truncated", "--set", "rollout.max_completion_length=8"]),
    "no-signal": (30, "1e-4", ["--set", 'reward=[{use="regex",pattern="x"}]']),
    "kl-jump": (160, "1e-4", CAPO),
    "entropy-gone": (75, "1e-3", ["--set", 'reward=[{use="soft_overlong",soft_punish_cache=24}]']),
    "cut-off": (30, "1e-4", ["--set", "rollout.max_completion_length=11"]),
    "mask-rejects-much": (20, "1e-4", [*CAPO, "--set", "mask.0.fisher_threshold=1e-11"]),
    "weights-small": (75, "3e-4", [*SOFT, "--set", "weight.0.fisher_threshold=1e-18"]),
    "adapter-bound": (75, "1e-3", [*SOFT, "--set", "model.use_peft=true", "--set", "weight.0.fisher_threshold=1e-18"]),
    "governor-tight": (75, "5e-3", GOVERNED),
    "governor-idle": (75, "1e-4", [*GOVERNED[:-1], "step_control.governor.kl.target=1"]),
    "mask-idle": (30, "1e-4", ["--plugin", "libmasks.so", "--set", "recipe=dppo"]),
}


def main():
    for name, (steps, rate, more) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / name
            sets = [f"train.learning_rate={rate}", f"train.max_steps={steps}", "train.lr_scheduler_type=constant", "train.warmup_ratio=0",
                    "train.save_steps=0", "train.measure_step=1", "eval.num_prompts=128", "eval.eval_steps=25"]
            command = [HOST, "train", "--output-dir", run, *(word for one in sets for word in ("--set", one)), *more]
            said = subprocess.run(command, check=True, capture_output=True, text=True)
            (HERE / f"{name}.txt").write_text(record(run))
            print(name, *(line for line in said.stderr.splitlines() if line.startswith("warning")), sep="\n  ")


def record(run):
    """The text of a file."""
    settings = head(tomllib.loads((run / "config.toml").read_text()))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    every = dict.fromkeys(name for line in lines[1:] for name in line if name != "eval_accuracy")
    names = [name for name in every if is_kept(name, lines[1:])] + ["eval_accuracy"]
    rows = [" ".join(shown(line.get(name)) for name in names) for line in lines]
    return "\n".join([*settings, "", " ".join(names), *rows, ""])


def head(config):
    """The lines of the settings."""
    def value_of(key):
        section, _, name = key.partition(".")
        return config.get(section, {}).get(name) if name else config.get(section)

    values = {key: value_of(key) for key in SETTINGS}
    return [f"{key} = {toml(value)}" for key, value in values.items() if value not in (None, False, [])]


def toml(value):
    match value:
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{key} = {toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


def is_kept(name, lines):
    """Whether the checks would miss a metric."""
    moves = any(line.get(name) != lines[0].get(name) for line in lines)
    return name in ALWAYS or name.endswith(OF_COMPONENTS) and not name.startswith(("mask/", "step_control/")) or name in KEPT and (moves or lines[0].get(name) == 1)


def shown(value):
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
