"""SIGKILL at any moment of a run, or a full disk, several times in a row. In the end the run must equal an undisturbed one."""

import os
import shutil
import time

from . import process, runs, settings, verdict

TRIED = "SIGKILL during start, checkpoint and prune, or a full disk, up to four times on one run, then `--resume` to the end"
# Most bytes of a file on a full disk: enough for the output, and at most too few for the optimizer's state.
FULL = (4096, 1_000_000)
WITH_LIMIT = ("sh", "-c", 'trap "" XFSZ; ulimit -f "$0"; exec "$@"')
# Options of the runs, in turn. Only runs without a plugin have a full disk, because a plugin is copied to a file in
# memory, to which the limit applies too.
RUNS = {"capo": runs.PLUGIN, "batches": runs.PLUGIN + runs.DUMP, "governed": runs.GOVERNED, "plain": ()}


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.references = {name: runs.reference(bench, f"reference-{name}", options) for name, options in RUNS.items()}
        # The time of an undisturbed run, and how often a file appears, is renamed or disappears in it.
        folder = bench.fresh("measured")
        started = bench.start(runs.train(), folder)
        self.changes = max(4, watch(started, folder))
        self.seconds = started.outcome().seconds
        shutil.rmtree(folder)

    def run(self, case):
        name = case.rng.choice(list(RUNS))
        for _ in range(case.rng.randint(1, 4)):
            disturb = fill if name == "plain" and case.rng.random() < 0.5 else launch
            if not disturb(self, case, RUNS[name]):
                break
        outcome = case.call(*runs.next_launch(case.folder, RUNS[name]))
        if outcome.code != 0:
            case.find("a run that was killed cannot go on", outcome)
            return
        for what in runs.differences(case.folder, self.references[name]):
            case.find(what, outcome)


def launch(part, case, options):
    """Starts the run and kills it: after a time, after a number of file changes, or at a certain work. Returns false if it ended before."""
    how, delay = case.rng.random(), case.rng.random()
    started = part.bench.start(runs.next_launch(case.folder, options), case.folder)
    if how < 0.2:
        watch(started, case.folder, sight=case.rng.choice((".partial", ".deleted", ".deleted")))
        started.ended(delay * 0.0005)
    elif how < 0.7:
        watch(started, case.folder, 1 + int(part.changes * case.rng.random() ** 2))
        started.ended(delay * 0.002)
    else:
        started.ended(delay * part.seconds)
    started.kill()
    outcome = started.outcome()
    if outcome.killed:
        case.tally[f"killed {moment(case.folder)}"] += 1
    elif outcome.code != 0:
        case.find("a run that was killed cannot go on", outcome)
    case.judge(outcome)
    return outcome.killed


def fill(part, case, options):
    """Starts the run on a disk on which no file can exceed a size. Returns true if that stopped it."""
    size = int(FULL[0] * (FULL[1] / FULL[0]) ** case.rng.random())
    command = [*WITH_LIMIT, str(size // 512), part.bench.host, *runs.next_launch(case.folder, options)]
    outcome = process.Process([str(word) for word in command], case.folder, part.bench.environment).outcome()
    case.tally["stopped by a full disk"] += outcome.code != 0
    case.judge(outcome)
    return outcome.code != 0


def watch(started, folder, changes=None, sight=None):
    """Watches the names under the folder until they have changed `changes` times, one begins with a prefix, or the process ends. Returns
    how often they changed."""
    seen, before = 0, None
    while not started.ended(0) and time.monotonic() < started.began + settings.HANG:
        now = [path for path, _ in verdict.walk(folder)]
        if before is not None and now != before:
            seen += 1
            if seen == changes or sight and any(f"/{sight}" in f"/{path}" for path in now):
                break
        before = now
    return seen


def moment(folder):
    """The work during which the process was killed, according to the files that it left."""
    run = folder / runs.RUN
    if not run.exists():
        return "before the run directory"
    found = sorted(os.listdir(run / "checkpoints")) if (run / "checkpoints").exists() else []
    if any(name.startswith((".deleted", ".old", ".gone")) for name in found) or torn(run, found):
        return "deleting a checkpoint"
    if any(name.startswith(".") for name in found):
        return "writing a checkpoint"
    return "between checkpoints" if found else "before the first checkpoint"


def torn(run, found):
    """True if a checkpoint under its final name lacks files that another one has."""
    whole = [name for name in found if not name.startswith(".")]
    sizes = {len(os.listdir(run / "checkpoints" / name)) for name in whole}
    return len(sizes) > 1
