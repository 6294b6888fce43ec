"""Two processes on one run directory at once. One must get it, and the other must say which process has it."""

from . import runs

TRIED = "two `--resume` of one run, or two `train --output-dir` of one name, at once"


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.reference = runs.reference(bench)
        self.half = runs.half(bench, "begun", 1)

    def run(self, case):
        resumes = case.rng.random() < 0.5
        if resumes:
            runs.copy(self.half, case.folder)
        command = runs.resume() if resumes else runs.train()
        first = self.bench.start(command, case.folder)
        first.ended(case.rng.choice((0, 0, 0.01)))
        second = self.bench.start(command, case.folder)
        outcomes = [first.outcome(), second.outcome()]
        for outcome in outcomes:
            case.judge(outcome)
        self.compare(case, resumes, *outcomes, pids=(first.pid, second.pid))

    def compare(self, case, resumes, first, second, pids):
        refused = [outcome for outcome in (first, second) if outcome.code != 0]
        if len(refused) == 2:
            return case.find("neither of two gets the run", second)
        case.tally["one refused" if refused else "both one after the other"] += 1
        if not refused and not resumes:
            case.find("both of two start in one directory", second)
        for outcome in refused:
            holder = pids[outcome is first]
            if resumes and str(holder) not in outcome.err.decode(errors="replace"):
                case.find("the refusal does not say which process has the run", outcome)
        for what in runs.differences(case.folder, self.reference):
            case.find(what, first if first.code == 0 else second)
        return None
