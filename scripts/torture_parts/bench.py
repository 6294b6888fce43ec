"""The workplace of the torture, and one case of a part."""

import collections
import os
import shutil
from pathlib import Path

from . import process, verdict
from .settings import Failure

# Files up to this size are copied. Larger ones are linked, because `host` replaces files and never writes into them.
COPIED = 1 << 16


class Bench:
    """The `host` under test, and the working folders."""

    def __init__(self, host, scratch):
        self.host, self.scratch = Path(host).resolve(), Path(scratch).resolve()
        if not os.access(self.host, os.X_OK):
            raise Failure(f"`{host}` cannot be run (build it with `cargo build --release --features full`, or name one with `--host`)")
        self.originals, self.work, self.found = (self.scratch / name for name in ("originals", "work", "found"))
        self.environment = {name: value for name, value in os.environ.items() if name != "CAPO_PLUGIN_PATH"}
        self.environment |= {"RUST_BACKTRACE": "0"}

    def library(self, name):
        """A plugin in the folder of `host`."""
        path = self.host.parent / name
        if not path.exists():
            raise Failure(f"`{path}` is missing (`cargo build` makes it beside `host`)")
        return path

    def start(self, arguments, folder, stdout=None):
        """Starts `host`."""
        return process.Process([str(self.host), *map(str, arguments)], folder, self.environment, stdout)

    def must(self, *arguments, folder):
        """Runs `host` on valid input, and returns the outcome."""
        outcome = self.start(arguments, folder).outcome()
        wrong = [*verdict.faults(outcome)]
        if outcome.code != 0 or wrong:
            wrong = wrong or [f"exit code {outcome.code}"]
            raise Failure(f"an input that is in order: {wrong[0]}\n{verdict.command_line(outcome)}\n{verdict.said(outcome)}")
        return outcome

    def fresh(self, name):
        """An empty folder for valid inputs."""
        folder = self.originals / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


class Case:
    """One case: its folder, its random choices, its observations and its findings."""

    def __init__(self, bench, part, rng=None, draw=None, one=None):
        self.bench, self.rng, self.draw, self.one, self.folder = bench, rng, draw, one, bench.work / part
        self.kind, self.findings, self.tally = "", [], collections.Counter()
        self.peak, self.seconds, self.log = 0, 0.0, []
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def call(self, *arguments, limit=None, stdout=None):
        """Runs `host` in the case's folder, and notes everything that no command may do."""
        before = verdict.snapshot(self.folder)
        outcome = self.bench.start(arguments, self.folder, stdout).outcome(limit)
        self.judge(outcome)
        for what in verdict.traces(outcome, before, verdict.snapshot(self.folder)):
            self.find(what, outcome)
        return outcome

    def judge(self, outcome):
        """Notes the faults of the outcome itself."""
        self.log.append(outcome)
        self.peak, self.seconds = max(self.peak, outcome.peak), max(self.seconds, outcome.seconds)
        self.tally["killed" if outcome.killed else f"exit {outcome.code}"] += 1
        for what in verdict.faults(outcome):
            self.find(what, outcome)

    def find(self, what, outcome):
        """Notes a finding."""
        what = f"{self.kind}: {what}" if self.kind else what
        self.findings.append(f"{what}\n  {verdict.command_line(outcome)}\n  {verdict.said(outcome)}")

    def close(self):
        """Removes the folder. If there are findings, moves it to where a person can look at it, and reports them."""
        if not self.findings:
            return shutil.rmtree(self.folder, ignore_errors=True)
        kept = self.bench.found / self.folder.name
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        self.folder.rename(kept)
        raise AssertionError("\n".join(self.findings).replace(str(self.folder), str(kept)))


def copy(source, target):
    """Copies a folder; large files are linked."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            copy(entry.path, target / entry.name)
        elif entry.stat(follow_symlinks=False).st_size <= COPIED:
            shutil.copy2(entry.path, target / entry.name, follow_symlinks=False)
        else:
            os.link(entry.path, target / entry.name)
    return target


def put(path, data):
    """Replaces a file. Other links to the old file keep its contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path
