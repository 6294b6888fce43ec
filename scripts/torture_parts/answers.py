"""Kills evaluations, and changes their kept answers or their questions before they go on."""

import json
import time

from . import flips, originals, runs
from .bench import copy, put

TRIED = "`host eval` killed, a byte of its kept answers or a row of its questions changed, then gone on with; held-out rows changed before `--resume`"
ANSWERS = "answers.jsonl"
SAMPLES = 16


class Part:
    def __init__(self, bench):
        self.bench = bench
        runs.reference(bench)
        self.folder = originals.data(bench)
        put(self.folder / "bench.toml", (originals.DATA + BENCHMARK).encode())
        whole = copy(self.folder, bench.fresh("answered"))
        began = time.monotonic()
        bench.must(*command(), folder=whole)
        self.seconds, self.expected = time.monotonic() - began, (whole / ANSWERS).read_bytes()

    def run(self, case):
        (self.resumed if case.rng.random() < 0.2 else self.evaluated)(case)

    def evaluated(self, case):
        """A kill, a change, and the same command again, which must refuse or give the answers of an undisturbed evaluation."""
        copy(self.folder, case.folder)
        process = self.bench.start(command(), case.folder)
        if not process.ended(case.rng.random() * self.seconds):
            process.kill()
        case.judge(process.outcome())
        partial = case.folder / f"{ANSWERS}.partial"
        how = case.rng.choice(("nothing", "a byte", "a word", "a line", "a question"))
        case.kind = f"{how} changed"
        changed = False
        if how == "a question":
            changed = question(case.folder / "test.jsonl", case.rng)
        elif how != "nothing" and partial.exists() and partial.stat().st_size:
            changed = edit(partial, how, case.rng)
        if (case.folder / ANSWERS).exists():
            return
        outcome = case.call(*command())
        if outcome.code == 0 and how != "a question" and (case.folder / ANSWERS).read_bytes() != self.expected:
            case.find("its answers are not those of an undisturbed evaluation", outcome)
        elif outcome.code != 0 and not changed:
            case.find("it does not go on", outcome)
        elif outcome.code == 0 and how == "a question":
            kept = (case.folder / ANSWERS).rename(case.folder / "kept").read_bytes()
            if case.call(*command()).code == 0 and (case.folder / ANSWERS).read_bytes() != kept:
                case.find("answers to other questions are kept", outcome)

    def resumed(self, case):
        """Changes a held-out row. The number of rows stays the same."""
        case.kind = "held-out rows changed before a resume"
        copy(self.folder, case.folder)
        # In the same folder, because a run refers to its files by their full paths.
        case.call(*TRAIN, "--stop-after", "1")
        question(case.folder / "test.jsonl", case.rng)
        outcome = case.call(*runs.resume(()))
        if outcome.code == 0 and b"test.jsonl" not in outcome.err:
            case.find("it goes on without a word", outcome)


BENCHMARK = f"""[[eval.benchmark]]
name = "own"
file = "test.jsonl"
samples = {SAMPLES}
temperature = 1.0
max_completion_length = 8
"""
TRAIN = ("train", "--config", "data.toml", "--set", "train.max_steps=2", "--set", "eval.num_prompts=4", "--set", "train.save_steps=1")
TRAIN = (*TRAIN, "--output-dir", runs.RUN)


def command():
    return ["eval", "--config", "bench.toml", "--set", "eval.per_device_eval_batch_size=4", "--output", ANSWERS]


def question(path, draw):
    """Changes the answer to one of the first rows."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    draw.choice(rows[:4])["answer"] = str(draw.randrange(100))
    put(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return True


def edit(path, how, draw):
    """Changes one byte, one decisive word, or the place of a line. Returns false if the file stays the same."""
    data = path.read_bytes()
    if how == "a byte":
        made = flips.flipped(data, draw.randrange(len(data)), draw)
    elif how == "a word":
        one, other = draw.choice(((b'"correct":false', b'"correct":true'), (b'"reward":0.0', b'"reward":1.0'), (b'"sample":0', b'"sample":1')))
        made = data.replace(one, other, 1)
    else:
        lines = data.split(b"\n")
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        made = b"\n".join(lines)
    put(path, made)
    return made != data
