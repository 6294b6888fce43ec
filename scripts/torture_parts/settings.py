"""How often `torture` runs each part, and what it calls a finding."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Cases of each part, for CI and by hand, and about what one costs on a disk, in milliseconds: by this the parts share
#: the time.
CASES = {
    "kills": (20, 1500, 900), "locks": (4, 100, 1000), "flips": (250, 8000, 120), "mutations": (1300, 100_000, 20),
    "settings": (400, 12_000, 20), "special": (240, 240, 25), "swaps": (60, 2000, 40), "templates": (60, 6000, 400), "hub": (20, 1500, 100),
    "rewards": (20, 240, 1000), "environments": (20, 180, 1000), "evaluation": (30, 3000, 150), "sft": (30, 2000, 150), "libraries": (20, 100, 300),
}  # fmt: skip
# Seconds for all parts together. A part that is out of time says how many cases it did.
SHORT_TIME, LONG_TIME = 135, 6 * 3600

# Seconds after which a command counts as one that hangs.
HANG = 60
# Bytes in memory at once that no case here has a reason for.
MEMORY = 2 << 30
# Limits of the kernel for a command, so that no finding takes the machine along: bytes of addresses, bytes of a file.
ADDRESSES, FILE_SIZE = 12 << 30, 1 << 30
# Bytes of a command's output that are looked at.
OUTPUT = 1 << 20

# Names that `host` gives to what is not finished, or about to go.
UNFINISHED = (".partial", ".deleted", ".tmp")
# Files that say which process has a run, and so differ from run to run.
LOCKS = ("lock",)


class Failure(Exception):
    """A sentence for the user."""
