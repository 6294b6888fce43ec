"""`--set` with every key of configs/README.md and of the components, with values and products that make no sense."""

import re

from hypothesis import strategies as st

from . import nasty, runs
from .settings import ROOT, Failure

TRIED = "`--set` of every documented key, alone and several at once, with absurd values and products that wrap"

# Keys whose values are counts, some of which `host` multiplies with each other.
COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations")
COUNTS += ("num_generations", "max_completion_length", "max_prompt_length", "last_layer_top_k", "top_k", "num_prompts")
COUNTS += ("max_steps", "save_steps", "eval_steps")
# Files in the folder where the command runs.
OWN = {"config.toml": "mine\n", "provenance.json": "mine\n", "metrics.jsonl": "mine\n", "checkpoints/step-000009/progress.json": "mine\n"}


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.keys = [key for key in documented((ROOT / "configs/README.md").read_text()) if key != "train.output_dir"]
        self.keys += components(bench.must("plugins", "--plugin", bench.library("libcapo.so"), folder=bench.scratch).out.decode())
        self.counts = [key for key in self.keys if key.rpartition(".")[2] in COUNTS]
        if len(self.keys) < 30 or len(self.counts) < 10:
            raise Failure("configs/README.md and `host plugins` list too few keys (did their form change?)")

    def run(self, case):
        for name, text in OWN.items():
            path = case.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        outcome = case.call(*self.command(case.rng, case.draw))
        for name, text in OWN.items():
            if not (case.folder / name).exists() or (case.folder / name).read_text() != text:
                case.find("a file that was there is replaced", outcome)

    def command(self, rng, draw):
        kind = rng.random()
        if kind < 0.1:
            return [*training(), "--set", f"train.output_dir={draw(nasty.folders)}"]
        if kind < 0.2:
            sets = [f"{draw(nasty.keys)}={draw(nasty.values)}"]
        elif kind < 0.5:
            count = st.one_of(nasty.sizes, nasty.sizes, nasty.small)
            sets = [f"{key}={draw(count)}" for key in rng.sample(self.counts, rng.choice((2, 2, 3, 4)))]
        else:
            sets = [f"{key}={draw(nasty.values)}" for key in rng.sample(self.keys, rng.choice((1, 1, 1, 2)))]
        sets = [word for one in sets for word in ("--set", one)]
        masks = [one for one in sets if one.startswith("mask.")]
        if masks and rng.random() < 0.5:
            batch = ROOT / "tests/data/replay/paper-token-adam/batch-0000.safetensors"
            return ["replay", "--plugin", "libcapo.so", *sets, "--out", "out", batch]
        trained = [*training(), *sets, "--output-dir", "out"]
        return rng.choice((trained, trained, evaluating(sets), teaching(sets)))


def training():
    small = runs.TINY | {"train.max_steps": 1, "train.save_steps": 0, "eval.num_prompts": 0}
    return [*runs.train(small)[:-2], "--stop-after", "1"]


def evaluating(sets):
    return ["eval", "--plugin", "libcapo.so", "--set", "eval.num_prompts=1", *sets]


def teaching(sets):
    """Puts the number of steps last, because there is no `--stop-after` here and a large number of steps is valid."""
    small = ("--set", "eval.num_prompts=1", "--set", "train.per_device_train_batch_size=2")
    return ["sft", *small, *sets, "--set", "train.max_steps=1", "--output-dir", "out"]


def documented(text):
    """The keys in the tables of configs/README.md, with their sections."""
    section = None
    for line in text.splitlines():
        if line.startswith("## "):
            heading = re.fullmatch(r"## `\[(\w+)\]`", line)
            section = f"{heading[1]}." if heading else "" if line.startswith("## `[") else None
        elif section is not None and line.startswith("| `"):
            yield from (section + key for key in re.findall(r"`([\w.]+)`", line.split("|")[1]))


def components(text):
    """The keys of the components in a run with the plugin, in the form for `--set`."""
    places, place, using = ({"reward": "reward.0", "advantage": "advantage", "objective": "objective", "mask": "mask.0"}, None, "")
    for line in text.splitlines():
        if line and not line.startswith(" "):
            place = places.get(line.strip())
        elif named := re.match(r"  (\S+)", line):
            using = named[1] if line[2] != " " else using
        if place and using.startswith(("capo.", "exact_match")) and (keys := re.match(r"\s+keys: (.*)", line)):
            yield from (f"{place}.{key}" for key in re.findall(r"[\w]+", keys[1]))
