"""Changes one digit or byte in every file of a run directory. A resume must refuse, or end like the undisturbed run."""

import re

from . import runs
from .bench import copy, put

TRIED = "one digit or byte of a run directory's files, then `--resume` and `host eval --model CHECKPOINT`"
# Files of a checkpoint that `host eval` reads.
READ = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.reference = runs.reference(bench)
        self.half = runs.half(bench, "half")
        self.checkpoint = runs.checkpoint(self.half).relative_to(self.half)
        # Files that a resume may report as damaged before it goes on. It does not compare the contents of metrics and
        # completions.
        self.records = [name for name in runs.files(self.half) if name not in ("config.toml", "metrics.jsonl", "completions.jsonl")]
        self.files = [path for path in self.half.rglob("*") if path.is_file() and path.stat().st_size > 0]
        answers = self.answers(bench.originals, self.half / self.checkpoint)
        self.expected = bench.must(*answers, folder=bench.originals).out, (bench.originals / "answers").read_bytes()

    def answers(self, folder, checkpoint):
        (folder / "answers").unlink(missing_ok=True)
        return ["eval", "--model", checkpoint, "--num-prompts", 2, "--output", "answers"]

    def run(self, case):
        path = case.rng.choice(self.files).relative_to(self.half)
        copy(self.half, case.folder)
        file = case.folder / path
        data = file.read_bytes()
        digits = [] if file.suffix in (".safetensors", ".bin") else [match.start() for match in re.finditer(rb"\d", data)]
        offset = case.rng.choice(digits) if digits and case.rng.random() < 0.7 else case.rng.randrange(len(data))
        put(file, flipped(data, offset, case.rng))
        case.kind = path.name
        damaged = {name: (case.folder / runs.RUN / name).read_bytes() for name in self.records}
        if path.is_relative_to(self.checkpoint):
            self.measure(case, path.name)
        outcome = case.call(*runs.resume())
        case.tally["went on" if outcome.code == 0 else "refused"] += 1
        if outcome.code == 0:
            self.compare(case, outcome, damaged)

    def measure(self, case, name):
        outcome = case.call(*self.answers(case.folder, self.checkpoint))
        if outcome.code == 0 and name in READ:
            case.find("`host eval` reads a damaged checkpoint", outcome)
        elif outcome.code == 0 and (outcome.out, (case.folder / "answers").read_bytes()) != self.expected:
            case.find("`host eval` finds something else", outcome)

    def compare(self, case, outcome, damaged):
        """Notes differences from the undisturbed run after a resume that ended well."""
        silent = "" if outcome.err.strip() else ", in silence"
        here, there = runs.checkpoint(case.folder), runs.checkpoint(self.reference)
        for file in sorted(there.iterdir()):
            if not (here / file.name).exists() or runs.contents(here / file.name) != runs.contents(file):
                return case.find(f"resumes to another `{file.name}`{silent}", outcome)
        for name, before in damaged.items():
            whole = (self.half / runs.RUN / name).read_bytes()
            if silent and before != whole:
                return case.find("a damaged record is taken without a word", outcome)
            if silent and runs.contents(case.folder / runs.RUN / name) != runs.contents(self.reference / runs.RUN / name):
                return case.find(f"`{name}` differs, in silence", outcome)
        return None


def flipped(data, offset, draw):
    """The data with one digit replaced by another, or with one bit of another byte flipped."""
    old = data[offset : offset + 1]
    new = str((int(old) + draw.randint(1, 9)) % 10).encode() if old.isdigit() else bytes([old[0] ^ 1 << draw.randrange(8)])
    return data[:offset] + new + data[offset + 1 :]
