"""What `torture` runs, how often, and what it calls a finding."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = ROOT / "target/torture"

# Cases of each part: for CI, and by hand.
SHORT = {"kills": 20, "locks": 4, "flips": 250, "mutations": 1300, "settings": 400, "special": 240, "swaps": 60}
SHORT |= {"templates": 60, "hub": 20, "rewards": 20, "evaluation": 30, "sft": 30, "libraries": 20}
LONG = {"kills": 1500, "locks": 100, "flips": 8000, "mutations": 100_000, "settings": 12_000, "special": 240, "swaps": 2000}
LONG |= {"templates": 6000, "hub": 1500, "rewards": 240, "evaluation": 3000, "sft": 2000, "libraries": 100}
# About what a case costs on a disk, in milliseconds: by this the parts share the time.
COST = {"kills": 900, "locks": 1000, "flips": 120, "mutations": 20, "settings": 20, "special": 25, "swaps": 40}
COST |= {"templates": 400, "hub": 100, "rewards": 1000, "evaluation": 150, "sft": 150, "libraries": 300}
# Seconds for all parts together; a part that is out of time does a case a process, and says how many it did.
SHORT_TIME, LONG_TIME = 135, 6 * 3600

# Seconds after which a command counts as one that hangs.
HANG = 60
# Bytes in memory at once that no case here has a reason for.
MEMORY = 2 << 30
# Limits of the kernel for a command, so that no finding takes the machine along: bytes of addresses, bytes of a file.
ADDRESSES, FILE_SIZE = 12 << 30, 1 << 30
# Bytes of a command's output that are looked at.
OUTPUT = 1 << 20

# A part gives up after so many findings; of each kind the folders of so many are kept.
FINDINGS, KEPT = 5000, 2

# Names that `host` gives to what is not finished, or about to go.
UNFINISHED = (".partial", ".deleted", ".tmp")
# Files that say which process has a run, and so differ from run to run.
LOCKS = ("lock",)


class Failure(Exception):
    """A sentence for the user."""
