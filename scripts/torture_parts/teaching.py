"""`host sft` on rows that are empty, too long for the model or unknown to its tokenizer, and killed while it writes."""

import json

from hypothesis import strategies as st

from . import mutate, nasty, originals, runs
from .bench import copy, put

TRIED = "`host sft` on solutions and prompts of any length up to megabytes, of unknown and hostile text, mutated rows, small and large limits; killed"
LIMIT = 60
LENGTHS = (0, 1, 40, 62, 63, 64, 65, 66, 1000, 20_000, 5_000_000)
KNOWN = ("1", "12+34=46")
TEXTS = (*KNOWN, "é", "\x00", "\x1b[2J", "\ud7ff", "𝟙", " ", "=", "<eos>", "<pad>")


class Part:
    def __init__(self, bench):
        self.bench = bench
        runs.reference(bench)
        self.folder = originals.data(bench)
        folder = copy(self.folder, bench.fresh("taught"))
        bench.must(*command(), folder=folder)
        self.expected = (folder / "out/model.safetensors").read_bytes()

    def run(self, case):
        copy(self.folder, case.folder)
        rows, draw = case.folder / "train.jsonl", case.rng
        sets, kind = [], draw.choice(("lengths", "lengths", "mutated", "sizes", "killed"))
        case.kind = kind
        if kind == "killed":
            saving = [*command(), "--set", "train.save_minutes=1e-6"]
            process = self.bench.start(saving, case.folder)
            if not process.ended(draw.random() * 0.3):
                process.kill()
            case.judge(process.outcome())
            out = case.folder / "out/model.safetensors"
            if not (case.folder / "out").exists():
                case.call(*saving, limit=LIMIT)
            if not out.exists() or out.read_bytes() != self.expected:
                case.find("the model is not that of an undisturbed run", case.log[-1])
            return
        if kind == "lengths":
            text = [one(draw) for _ in range(draw.choice((1, 4, 10)))]
            put(rows, "".join(json.dumps(row) + "\n" for row in text).encode())
        elif kind == "mutated":
            put(rows, case.draw(mutate.mutated(rows.read_bytes())))
        if draw.random() < 0.4 or kind == "sizes":
            for key in draw.sample(("data.max_prompt_length", "train.per_device_train_batch_size", "train.gradient_accumulation_steps"), 2):
                sets += ["--set", f"{key}={case.draw(nasty.sizes | st.sampled_from((1, 2, 64, 100_000)))}"]
        if draw.random() < 0.5:
            sets += ["--set", "data.on_bad_row=skip"]
        case.call(*command(), *sets, limit=LIMIT)


def one(draw):
    """A row with a prompt and a solution of random lengths."""
    texts = TEXTS if draw.random() < 0.1 else KNOWN
    prompt, solution = (draw.choice(texts) * draw.choice(LENGTHS) for _ in range(2))
    prompt = "12+34=" if draw.random() < 0.9 else prompt
    return {"prompt": prompt, "answer": solution[-3:], "solution": solution}


def command():
    return ["sft", "--config", "sft.toml", "--output-dir", "out"]
