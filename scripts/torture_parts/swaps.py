"""The file of a library, which another file replaces while it is loaded."""

import os
import re
import shutil
import threading
import time

TRIED = "`--plugin LIB@sha256:...` and `host plugins --hash` while the file is renamed over, or rewritten, between two libraries"
NAMES = ("libcapo.so", "libdrcapo.so")
LIBRARY = "lib.so"


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.folder = bench.fresh("libraries")
        self.pins, self.packages = {}, {}
        for name in NAMES:
            shutil.copy(bench.library(name), self.folder / name)
            line = bench.must("plugins", "--hash", "--plugin", f"./{name}", folder=self.folder).out.decode()
            found = re.search(r"sha256:([0-9a-f]{64})\s+(\S+)", line)
            self.pins[name], self.packages[found[1]] = found[1], found[2]

    def run(self, case):
        for name in NAMES:
            shutil.copy(self.folder / name, case.folder / name)
        os.link(case.folder / NAMES[0], case.folder / LIBRARY)
        how = case.rng.choice((rename, rename, rename, rewrite))
        stop = threading.Event()
        swapping = threading.Thread(target=swap, args=(case.folder, how, case.rng.choice((0, 0, 0.0005, 0.002)), stop))
        case.kind = "renamed over" if how is rename else "rewritten"
        swapping.start()
        try:
            self.load(case)
        finally:
            stop.set()
            swapping.join()

    def load(self, case):
        """Loads the library once, with or without a pin."""
        pinned = case.rng.random() < 0.75
        wanted = case.rng.choice(NAMES)
        if not pinned:
            outcome = self.observed(case, "plugins", "--hash", "--plugin", f"./{LIBRARY}")
            found = re.search(r"sha256:([0-9a-f]{64})\s+(\S+)", outcome.out.decode(errors="replace"))
            # A half-written file has the bytes of neither library.
            if outcome.code == 0 and found and self.packages.get(found[1], found[2]) != found[2]:
                case.find("`--hash` prints another library's pin", outcome)
            return
        outcome = self.observed(case, "plugins", "--plugin", f"./{LIBRARY}@sha256:{self.pins[wanted]}")
        text = outcome.out.decode(errors="replace")
        if outcome.code == 0 and f"from {self.packages[self.pins[wanted]]} " not in text:
            case.find("another library than the pinned one is loaded", outcome)

    def observed(self, case, *arguments):
        """As `case.call`, without a check of the folder, in which files come and go."""
        outcome = self.bench.start(arguments, case.folder).outcome()
        case.judge(outcome)
        case.tally["loaded" if outcome.code == 0 else "refused"] += 1
        return outcome


def swap(folder, how, pause, stop):
    """Replaces one library by the other again and again, until `stop` is set."""
    while not stop.is_set():
        for name in reversed(NAMES):
            how(folder / name, folder / LIBRARY)
            time.sleep(pause)


def rename(source, place):
    fresh = place.with_suffix(".new")
    os.link(source, fresh)
    os.rename(fresh, place)


def rewrite(source, place):
    """Rewrites the file in place, as `cp` does, but never through a link to a library that is still needed."""
    if place.stat().st_nlink > 1:
        place.unlink()
    shutil.copyfile(source, place)
