"""A tiny run, and the comparison of two runs that must be equal."""

import json
import os

from . import mutate, settings, verdict
from .bench import copy
from .settings import Failure

STEPS = 6
# The run writes a checkpoint after every step and keeps two. Every step has a gradient, and evaluations add metrics.
TINY = {
    "train.max_steps": STEPS,
    "train.save_steps": 1,
    "train.save_total_limit": 2,
    "train.per_device_train_batch_size": 8,
    "train.learning_rate": 1e-3,
    "train.warmup_ratio": 0.0,
    "rollout.num_generations": 4,
    "rollout.temperature": 1.2,
    "eval.num_prompts": 2,
    "eval.eval_steps": 3,
    "logging.log_completions": "true",
}
RUN, BATCHES = "run", "batches"
PLUGIN, DUMP = ("--plugin", "libcapo.so"), ("--dump-batches", BATCHES)
# A run with a weight, an optimizer with rejected gradients in its state, a step control with a state, and measured steps.
GOVERNED = (*PLUGIN, "--plugin", "libgovernor.so", "--set", "recipe=capo-soft", "--step-control", "governor.kl")
GOVERNED += ("--set", "step_control.governor.kl.every=2", "--set", "train.measure_step=2")
TIMES = ("step_time", "timing_s/")


def train(plan=TINY, options=PLUGIN):
    """The command that starts the run in the folder `run`."""
    sets = [word for key, value in plan.items() for word in ("--set", f"{key}={value}")]
    return ["train", *options, *sets, "--output-dir", RUN]


def resume(options=PLUGIN):
    """The command that resumes the run; the run knows its plugin."""
    return ["train", "--resume", RUN, *(DUMP if options[-2:] == DUMP else ())]


def next_launch(folder, options=PLUGIN):
    """The command that a user would give in this folder: a resume if there is a run, else a start."""
    return resume(options) if (folder / RUN).exists() else train(options=options)


def reference(bench, name="reference", options=PLUGIN):
    """The folder of an undisturbed run. Two such runs must be equal, else no comparison with them would mean anything."""
    folders = [bench.fresh(name), bench.fresh(f"{name}-again")]
    for folder in folders:
        bench.must(*train(options=options), folder=folder)
    if differing := [*differences(folders[1], folders[0])]:
        raise Failure(f"two undisturbed runs are not the same: {differing[0]}")
    return folders[0]


def half(bench, name, steps=STEPS // 2):
    """The folder of a run that was stopped in the middle. A resume must end like the reference."""
    folder = bench.fresh(name)
    bench.must(*train(), "--stop-after", steps, folder=folder)
    again = copy(folder, bench.fresh(f"{name}-again"))
    bench.must(*resume(), folder=again)
    if differing := [*differences(again, bench.originals / "reference")]:
        raise Failure(f"a run that was stopped and resumed is not the undisturbed one: {differing[0]}")
    return folder


def differences(folder, expected):
    """The differences between two folders of finished runs, as sentences."""
    here, there = names(folder), names(expected)
    for name in sorted({verdict.general(name) for name in topmost(here - there)}):
        yield f"`{name}` is left behind"
    for name in sorted(topmost(there - here)):
        yield f"`{name}` is missing"
    for name in sorted(here & there):
        one, other = folder / name, expected / name
        if one.is_file() and other.is_file() and contents(one) != contents(other):
            yield f"`{name}` is not that of an undisturbed run"


def topmost(paths):
    """The paths that are not inside another one of the paths."""
    return {path for path in paths if path.rpartition("/")[0] not in paths}


def names(folder):
    paths = {path for path, _ in verdict.walk(folder)}
    return {path for path in paths if not any(lock in path.rsplit("/")[-1] for lock in settings.LOCKS)}


def contents(path):
    """The part of a file that must be equal: all bytes, except for times in metrics, and for the metadata of a batch, which have no
    order."""
    data = path.read_bytes()
    if path.parent.name == BATCHES:
        header, numbers = mutate.unpack(data)
        # A checksum also depends on the order of the metadata.
        header.get("__metadata__", {}).pop("sha256", None)
        return header, numbers
    if path.name == "metrics.jsonl":
        return [timeless(line) for line in data.split(b"\n")]
    return data


def timeless(line):
    try:
        return {name: value for name, value in json.loads(line).items() if not name.startswith(TIMES)}
    except (ValueError, AttributeError):
        return line


def files(folder):
    """The files of the run in `folder` except for its checkpoints: its settings and its records."""
    found = [path.name for path in sorted((folder / RUN).iterdir()) if path.is_file() and path.stat().st_size > 0]
    return [name for name in found if not any(lock in name for lock in settings.LOCKS)]


def checkpoint(folder):
    """The newest checkpoint of the run in `folder`."""
    return folder / RUN / "checkpoints" / max(os.listdir(folder / RUN / "checkpoints"))
