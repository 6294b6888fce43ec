"""Runs every part of the torture on the `host` of the options."""

import collections
import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, given, strategies
from hypothesis import settings as hypothesis_settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky

from . import answers, flips, graders, hub, kills, knobs, libraries, locks, mutations, players, settings, special, swaps, teaching, templates
from .bench import Case

PARTS = {
    "kills": kills, "locks": locks, "flips": flips, "mutations": mutations, "settings": knobs, "special": special, "swaps": swaps,
    "templates": templates, "hub": hub, "rewards": graders, "environments": players, "evaluation": answers, "sft": teaching, "libraries": libraries,
}  # fmt: skip
# Parts whose cases do the same each time, so that Hypothesis can make a finding smaller.
SHRINK = ("mutations", "settings", "templates", "flips")
PREPARED = {}


class OutOfTime(BaseException):
    """Ends a part. It is not an `Exception`, so that Hypothesis lets it pass."""


def prepared(bench, name):
    """The part with its valid inputs, which are made once."""
    if name not in PREPARED:
        PREPARED[name] = PARTS[name].Part(bench)
    return PREPARED[name]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in PARTS])
def test_part(name, bench, pytestconfig, record_property):
    long, jobs = pytestconfig.getoption("--long"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    limit = pytestconfig.getoption("--time-limit") or (settings.LONG_TIME if long else settings.SHORT_TIME)
    costs = {part: row[long] * row[2] for part, row in settings.CASES.items()}
    part, count = prepared(bench, name), settings.CASES[name][long]
    until = time.monotonic() + limit * jobs * costs[name] / sum(costs.values())
    tally, seen = collections.Counter(), {"cases": 0, "seconds": 0.0, "peak": 0, "found": None, "late": False}

    def one(rng=None, draw=None, chosen=None):
        # The first case always runs, so that no part is left out.
        if seen["cases"] and time.monotonic() > until:
            seen["late"] = True
            raise OutOfTime
        case = Case(bench, name, rng, draw, chosen)
        try:
            part.run(case)
        finally:
            tally.update(case.tally)
            seen["cases"] += 1
            seen["seconds"], seen["peak"] = max(seen["seconds"], case.seconds), max(seen["peak"], case.peak)
        try:
            case.close()
        except AssertionError as found:
            seen["found"] = found
            raise

    try:
        if hasattr(part, "cases"):
            # Shuffled, so that a few cases already cover all kinds.
            for chosen in random.Random(1).sample(part.cases, min(count, len(part.cases))):
                one(chosen=chosen)
        else:
            drawn(name, count, bench)(one)()
    except (OutOfTime, Flaky):
        # A case that ends early is not a fault of Hypothesis's strategies. A case that failed before is a finding,
        # which may have become smaller.
        if seen["found"] or not seen["late"]:
            raise seen["found"] or AssertionError("a part draws by something else than its choices") from None
    finally:
        became = ", ".join(f"{label} {number:,}" for label, number in sorted(tally.items()))
        told = {"part": name, "tried": PARTS[name].TRIED, "cases": f"{seen['cases']:,}", "became": became}
        for key, value in (told | {"longest": f"{seen['seconds']:.1f} s", "memory": f"{seen['peak'] / 1e6:.0f} MB"}).items():
            record_property(key, value)


def drawn(name, count, bench):
    """Makes a test of `count` cases from a function of one case. Hypothesis makes the random choices."""
    phases = (Phase.reuse, Phase.generate, Phase.shrink) if name in SHRINK else (Phase.reuse, Phase.generate)
    database = DirectoryBasedExampleDatabase(bench.scratch.parent / "examples" / name)
    settled = hypothesis_settings(max_examples=count, deadline=None, phases=phases, database=database, suppress_health_check=list(HealthCheck))

    def of(one):
        @settled
        @given(rng=strategies.randoms(use_true_random=name not in SHRINK), data=strategies.data())
        def case(rng, data):
            one(rng, data.draw)

        return case

    return of
