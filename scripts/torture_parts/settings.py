"""How often `torture` runs each part, and what counts as a finding."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Number of cases of each part, in CI and by hand, and the approximate cost of a case on a disk in milliseconds, by
#: which the parts share the time.
CASES = {
    "kills": (20, 1500, 900), "locks": (4, 100, 1000), "flips": (250, 8000, 120), "mutations": (1300, 100_000, 20),
    "settings": (400, 12_000, 20), "special": (240, 240, 25), "swaps": (60, 2000, 40), "templates": (60, 6000, 400), "hub": (20, 1500, 100),
    "rewards": (20, 240, 1000), "environments": (20, 180, 1000), "evaluation": (30, 3000, 150), "sft": (30, 2000, 150), "libraries": (20, 100, 300),
}  # fmt: skip
# Seconds for all parts together. A part that runs out of time reports how many cases it ran.
SHORT_TIME, LONG_TIME = 135, 6 * 3600

# Seconds after which a command counts as hanging.
HANG = 60
# Bytes of memory that no case needs.
MEMORY = 2 << 30
# Limits of the kernel for a command, so that no finding stops the machine: bytes of addresses, and bytes of a file.
ADDRESSES, FILE_SIZE = 12 << 30, 1 << 30
# Bytes of a command's output that are checked.
OUTPUT = 1 << 20

# Names that `host` gives to unfinished files and to files that it is about to delete.
UNFINISHED = (".partial", ".deleted", ".tmp")
# Files that say which process has a run, so they differ from run to run.
LOCKS = ("lock",)


class Failure(Exception):
    """An error with a sentence for the user."""
