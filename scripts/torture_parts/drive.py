"""All parts one after the other, each on several processes, within the time."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import multiprocessing
import shutil
import sys
import time

from . import answers, flips, graders, hub, kills, knobs, libraries, locks, mutations, process, settings, special, swaps, table, teaching
from . import templates, verdict
from .bench import Bench, Case
from .settings import Failure

PARTS = {
    "kills": kills,
    "locks": locks,
    "flips": flips,
    "mutations": mutations,
    "settings": knobs,
    "special": special,
    "swaps": swaps,
    "templates": templates,
    "hub": hub,
    "rewards": graders,
    "evaluation": answers,
    "sft": teaching,
    "libraries": libraries,
}
FORK = multiprocessing.get_context("fork")


@dataclasses.dataclass
class Result:
    """What a part, or a few cases of it, came to."""

    name: str
    planned: int = 0
    done: int = 0
    tally: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    findings: list = dataclasses.field(default_factory=list)
    peak: int = 0
    longest: float = 0.0
    seconds: float = 0.0

    def add(self, other):
        self.done += other.done
        self.tally += other.tally
        self.findings += other.findings
        self.peak, self.longest = max(self.peak, other.peak), max(self.longest, other.longest)


def main(args):
    """Runs the parts asked for; the exit code is 1 where anything was found."""
    names = args.only or list(PARTS)
    if unknown := [name for name in [*names, *args.cases] if name not in PARTS]:
        raise Failure(f"no part is called `{unknown[0]}` (there are {', '.join(PARTS)})")
    counts = (settings.LONG if args.long else settings.SHORT) | args.cases
    limit = args.time_limit or (settings.LONG_TIME if args.long else settings.SHORT_TIME)
    bench = Bench(args.host, args.seed, args.scratch)
    with scratch(bench):
        end, results = time.monotonic() + limit, []
        for number, name in enumerate(names):
            costs = [counts[left] * settings.COST[left] for left in names[number:]]
            until = time.monotonic() + max(0, end - time.monotonic()) * costs[0] / max(1, sum(costs))
            results.append(perform(bench, name, counts[name], args.jobs, until))
    text = table.table(results, args)
    print(text, end="")
    if args.out:
        args.out.write_text(text)
    return 1 if any(result.findings for result in results) else 0


def reproduce(args):
    """One case alone, by the name that a run gave it."""
    try:
        name, seed, number = args.reproduce.split(":")
        module, seed, number = PARTS[name], int(seed), int(number)
    except (ValueError, KeyError):
        raise Failure(f"`{args.reproduce}` is no case (its name is PART:SEED:NUMBER)") from None
    bench = Bench(args.host, seed, args.scratch)
    with scratch(bench):
        process.limit_children()
        part = module.Part(bench)
        if number >= getattr(part, "count", number + 1):
            raise Failure(f"`{name}` has {part.count} cases, from 0")
        case = Case(bench, name, number)
        part.run(case)
        case.close(keep=True)
    for outcome in case.log:
        print(verdict.command_line(outcome).replace(str(case.folder), str(bench.found / case.folder.name)))
        ended = "killed" if outcome.killed else f"exit code {outcome.code}"
        print(f"  {ended} after {outcome.seconds:.2f} s  {verdict.said(outcome)}")
    for finding in case.findings:
        print(f"FOUND {finding.what}")
    print(f"its folder: {bench.found / case.folder.name}")
    return 1 if case.findings else 0


@contextlib.contextmanager
def scratch(bench):
    """The working folder for this process alone; in the end only what was found stays."""
    bench.scratch.mkdir(parents=True, exist_ok=True)
    with open(bench.scratch / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(f"another `torture` works in `{bench.scratch}` (give this one another `--scratch`)") from None
        for folder in (bench.originals, bench.work, bench.found):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            yield
        finally:
            for folder in (bench.originals, bench.work):
                shutil.rmtree(folder, ignore_errors=True)


def perform(bench, name, count, jobs, until):
    """One part. What it finds is told when it is found."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    result, began = Result(name), time.monotonic()
    part = PARTS[name].Part(bench)
    result.planned = min(count, getattr(part, "count", count))
    kinds = collections.Counter()
    stop = FORK.Event()
    with workers(part, name, jobs, until, stop) as pool, stopping(stop):
        size = max(1, min(20, result.planned // (4 * jobs)))
        chunks = [range(first, min(first + size, result.planned)) for first in range(0, result.planned, size)]
        for one in pool.map(work, chunks):
            result.add(one)
            tell(bench, one.findings, kinds)
            if len(result.findings) >= settings.FINDINGS:
                print(f"{name}: {len(result.findings)} findings, this is enough", file=sys.stderr)
                break
    result.seconds = time.monotonic() - began
    if result.done < result.planned:
        print(f"{name}: {result.done} of {result.planned} cases", file=sys.stderr, flush=True)
    return result


def tell(bench, findings, kinds):
    """Prints the first findings of each kind; the folders of the others are removed."""
    for finding in findings:
        kinds[finding.what] += 1
        if kinds[finding.what] == 1:
            print(f"FOUND {finding.case}  {finding.what}\n  {finding.command}\n  {finding.said}", file=sys.stderr, flush=True)
    for case in {finding.case for finding in findings}:
        if all(kinds[finding.what] > settings.KEPT for finding in findings if finding.case == case):
            shutil.rmtree(bench.found / case.replace(":", "-"), ignore_errors=True)


@contextlib.contextmanager
def stopping(stop):
    """However this ends, the workers end after their current case."""
    try:
        yield
    finally:
        stop.set()


def workers(part, name, jobs, until, stop):
    """Processes that share the prepared part, with limits on what they start."""
    return concurrent.futures.ProcessPoolExecutor(jobs, FORK, initializer=begin, initargs=(part, name, until, stop))


CURRENT = {}


def begin(part, name, until, stop):
    process.limit_children()
    CURRENT.update(part=part, name=name, until=until, stop=stop, began=False)


def work(numbers):
    """Some cases of the part, while there is time; the first case of a process in any event, so that no part is left out."""
    part, result = CURRENT["part"], Result(CURRENT["name"])
    for number in numbers:
        if CURRENT["stop"].is_set() or (CURRENT["began"] and time.monotonic() > CURRENT["until"]):
            break
        CURRENT["began"] = True
        case = Case(part.bench, result.name, number)
        part.run(case)
        case.close()
        result.add(Result(result.name, 0, 1, case.tally, case.findings, case.peak, case.seconds))
    return result
