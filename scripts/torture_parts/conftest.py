"""Options of the torture, fixtures of all parts, and the table of results."""

import os
import shutil
from pathlib import Path

import pytest

from . import process, settings
from .bench import Bench


def pytest_addoption(parser):
    group = parser.getgroup("torture")
    group.addoption("--long", action="store_true", help="an hour or so; by default two minutes on two cores")
    group.addoption("--host", type=Path, default=settings.ROOT / "target/release/host")
    group.addoption("--scratch", type=Path, default=settings.ROOT / "target/torture", help="a folder to work in")
    group.addoption("--time-limit", type=float, metavar="SECONDS", help="for all parts together")


@pytest.fixture(scope="session")
def bench(request):
    """The `host` of the options. Each process has its own folder."""
    process.limit_children()
    folder = request.config.getoption("--scratch").resolve()
    yield (made := Bench(request.config.getoption("--host"), folder / os.environ.get("PYTEST_XDIST_WORKER", "alone")))
    for name in (made.originals, made.work):
        shutil.rmtree(name, ignore_errors=True)


def pytest_terminal_summary(terminalreporter):
    """A row for every part: the number of cases, their outcomes, the longest time and the most memory."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    for report in reports:
        if "cases" in (told := dict(report.user_properties)):
            terminalreporter.write_line("| {part} | {tried} | {cases} | {became} | {longest} | {memory} |".format(**told))
