"""Reward programs that answer late, twice, wrongly, without end, or not at all."""

import json
import sys

from . import originals, runs
from .bench import copy

TRIED = "reward programs that answer twice, early, out of order, without end, in pieces, with what is no number, or end, hang and leave processes behind"
LIMIT = 30

# Code of a program for the line `row` and its right answer `right`. Programs in RIGHT are correct, so the run must have
# the right rewards.
RIGHT = {
    "answers": "say(right)",
    "answers-by-id": "say(json.dumps({'id': row['id'], 'reward': right}))",
    "answers-in-pieces": "[(out.write(c), out.flush()) for c in str(right) + '\\n']",
    "answers-backwards": "held.append((row['id'], right))\nif len(held) == row['count']:\n [say(json.dumps({'id': i, 'reward': r})) for i, r in reversed(held)]; held.clear()",
    "does-not-judge": "say(right or 'null')",
    "talks-beside": "sys.stderr.write('x' * 200000); say(right)",
}
WRONG = {
    "answers-twice": "say(right); say(right)",
    "answers-again-later": "say(right)\nif row['id'] == row['count'] - 1: time.sleep(.05); say(1)",
    "answers-first": "say(1) if not held else None; held.append(1); say(right)",
    "floods": "while True: out.write('1\\n' * 4096)",
    "floods-a-line": "while True: out.write('1' * 65536)",
    "floods-errors": "while True: sys.stderr.write('1\\n' * 4096)",
    "nan": "say('NaN')", "infinite": "say('1e999')", "words": "say('good')", "an-object": "say('{}')", "a-list": "say('[1]')",
    "unknown-id": "say(json.dumps({'id': 10**9, 'reward': 1}))", "negative-id": "say(json.dumps({'id': -1, 'reward': 1}))",
    "one-id-twice": "say(json.dumps({'id': 0, 'reward': right}))",
    "deep": "say('[' * 100000)", "bytes": "out.flush(); sys.stdout.buffer.write(b'\\xff\\x00\\n'); sys.stdout.buffer.flush()",
    "silent": "pass", "sleeps": "time.sleep(1000)", "ends": "sys.exit(0)", "fails": "sys.exit(3)", "kills-itself": "os.kill(os.getpid(), 9)",
    "closes": "os.close(1); time.sleep(1000)", "leaves-a-child": "os.fork() or time.sleep(1000); sys.exit(0)",
    "ignores": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
    "kills-its-group": "os.killpg(0, 9)",
}  # fmt: skip
# `host` starts a program that ends or says nothing once more, and it may then answer correctly.
ONCE_MORE = ("silent", "sleeps", "ends", "fails", "kills-itself", "closes", "leaves-a-child", "ignores", "kills-its-group", "floods-errors", "floods-a-line")
# Answers after the last rollout belong to no rollout, so only a fault in an earlier rollout must end the run.
AFTERWARDS = ("answers-again-later",)
# Fewest lines that the programs of a run get, and the number of its rollouts.
LINES, ROLLOUTS = 8, 2
# A completion is right if its text has an even number of characters, so that right and wrong ones occur.
PROGRAM = """import json, os, signal, sys, time
out, held = sys.stdout, []
def say(text):
    out.write(f"{text}\\n"); out.flush()
for number, text in enumerate(sys.stdin):
    row = json.loads(text)
    right = 1 - len(row["completion"]) % 2
    if number < START:
        say(right)
        continue
"""


PROCESS = f'use="command", command={json.dumps([sys.executable, "-SI", "grade.py"])}, timeout=2, max_restarts=1'


class Part:
    right, wrong, program, lines, starts = RIGHT, WRONG, PROGRAM, LINES, (0, 3, 4, 7)

    def __init__(self, bench):
        self.bench = bench
        self.folder = originals.data(bench)
        sins = self.right | self.wrong
        self.cases = [(sin, start, times) for sin in sins for start in (self.starts if sin in self.wrong else (0,)) for times in (1, 2)]
        self.expected = {}
        for times in (1, 2):
            folder = copy(self.folder, bench.fresh(f"graded-{times}"))
            self.prepare(folder, "answers", 0)
            bench.must(*self.command(times), folder=folder)
            self.expected[times] = rewards(folder)

    def run(self, case):
        sin, start, processes = case.one
        case.kind = f"a program that {sin}"
        copy(self.folder, case.folder)
        self.prepare(case.folder, sin, start)
        outcome = case.call(*self.command(processes), limit=LIMIT)
        if sin in self.right and outcome.code != 0:
            case.find("it is refused", outcome)
        lines = self.lines // ROLLOUTS * (ROLLOUTS - 1) if sin in AFTERWARDS else self.lines
        if sin in self.wrong and sin not in ONCE_MORE and start < lines // processes and outcome.code == 0:
            case.find("it is taken", outcome)
        if outcome.code == 0 and rewards(case.folder) != self.expected[processes]:
            case.find("its rewards are not what it said", outcome)

    def prepare(self, folder, sin, start):
        body = "\n".join(f"    {line}" for line in (self.right | self.wrong)[sin].split("\n"))
        (folder / "grade.py").write_text(self.program.replace("START", str(start)) + body + "\n")

    def settings(self, processes):
        return [f"reward=[{{{PROCESS}, concurrency={processes}}}]"]

    def command(self, processes):
        steps = (f"train.max_steps={ROLLOUTS}", "eval.num_prompts=0", "train.save_steps=1", *self.settings(processes))
        sets = [word for one in steps for word in ("--set", one)]
        return ["train", "--config", "data.toml", *sets, "--output-dir", runs.RUN]


def rewards(folder):
    """The mean reward of each step."""
    lines = (folder / runs.RUN / "metrics.jsonl").read_text().splitlines()
    return [line["reward"] for line in map(json.loads, lines) if "reward" in line]
