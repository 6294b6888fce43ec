"""`--set` with every key of configs/README.md and of the components, with values and products that make no sense."""

import re

from . import runs
from .settings import ROOT, Failure

TRIED = "`--set` of every documented key, alone and several at once, with absurd values and products that wrap"

SIZES = [2**31 - 1, 2**31, 2**32, 2**32 + 8, 2**40, 2**53 + 1, 2**60, 2**61 + 1, 2**62, 2**62 + 4, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]
SMALL = [0, 1, 2, 3, -1, -8]
# Keys that count something, several of which are multiplied somewhere.
COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations", "num_generations")
COUNTS += ("max_completion_length", "max_prompt_length", "max_steps", "save_steps", "last_layer_top_k", "top_k", "num_prompts", "eval_steps")
FLOATS = ["nan", "inf", "-inf", "1e999", "-1e999", "0.0", "-0.0", "1e-320", "-1.5", "1e308", "1.0000000001", "99999999999999999999", ".5", "1_0"]
TEXTS = ['""', '" "', '"\x1b[31mred"', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 5000 + '"', "\u202eabc", '"cpu\\n"', '"cuda:0"', '"cuda:99999999999999999999"']
TEXTS += ['"/dev/zero"', '"/dev/full"', '"."', '"/proc/self/mem"', '"kept\\r"', '"f16"', "", "=", "'", '"', "nul\x01l", "é" * 300]
SHAPES = ["true", "false", "[]", "[1, 2]", "{}", "{a = 1}", "[[]]", "1979-05-27T07:32:00Z", "[" * 3000, "0x7fffffffffffffff", "0b11", "1__0", "{use = 1}"]
ODD_KEYS = ["", "=", ".", "..", "train", "train.", ".seed", "train..seed", "train.seed.x", "mask", "mask.0", "mask.0.", "mask.-1.x", "mask.1.use", "reward.1.use"]
ODD_KEYS += ["mask.99999999999999999999.use", "mask.4294967296.use", "reward.0", "reward.0.use", "x" * 4000, "train.\x1b[31m", "a.b.c.d.e.f", "recipe", "advantage.use"]
ODD_KEYS += ["TRAIN.seed", "train.sed", '"train".seed', "train.seed ", "[train]", "mask.0.use", "objective.reduction", "é.ü"]
# What would go out of the case's folder, or be a device.
OUTPUTS = ['""', '"."', '".."', '"./"', '"config.toml"', '"a/b/c"', '"config.toml/run"', '"' + "x" * 300 + '"', '"run\\u0000"', '"\\u001b[31mrun"', '"./run/../run"', "1", "[]"]
OWN = {"config.toml": "mine\n", "plugins.json": "mine\n", "metrics.jsonl": "mine\n", "checkpoints/step-000009/progress.json": "mine\n"}


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
        outcome = case.call(*self.command(case.rng))
        for name, text in OWN.items():
            if not (case.folder / name).exists() or (case.folder / name).read_text() != text:
                case.find("a file that was there is replaced", outcome)

    def command(self, draw):
        sets, kind = [], draw.random()
        if kind < 0.1:
            return [*training(), "--set", f"train.output_dir={draw.choice(OUTPUTS)}"]
        if kind < 0.2:
            sets = [f"{draw.choice(ODD_KEYS)}={value(draw)}"]
        elif kind < 0.5:
            for key in draw.sample(self.counts, draw.choice((2, 2, 3, 4))):
                sets.append(f"{key}={draw.choice(SIZES if draw.random() < 0.7 else SMALL)}")
        else:
            sets = [f"{key}={value(draw)}" for key in draw.sample(self.keys, draw.choice((1, 1, 1, 2)))]
        sets = [word for one in sets for word in ("--set", one)]
        masks = [one for one in sets if one.startswith("mask.")]
        if masks and draw.random() < 0.5:
            batch = ROOT / "tests/data/replay/paper-token-adam/batch-0000.safetensors"
            return ["replay", "--plugin", "libcapo.so", *sets, "--out", "out", batch]
        return draw.choice(([*training(), *sets, "--output-dir", "out"], [*training(), *sets, "--output-dir", "out"], evaluating(sets), teaching(sets)))


def training():
    small = runs.TINY | {"train.max_steps": 1, "train.save_steps": 0, "eval.num_prompts": 0}
    return [*runs.train(small)[:-2], "--stop-after", "1"]


def evaluating(sets):
    return ["eval", "--plugin", "libcapo.so", "--set", "eval.num_prompts=1", *sets]


def teaching(sets):
    """Here the number of steps comes last: there is no `--stop-after`, and a large one is in order."""
    small = ("--set", "eval.num_prompts=1", "--set", "train.per_device_train_batch_size=2")
    return ["sft", *small, *sets, "--set", "train.max_steps=1", "--output-dir", "out"]


def value(draw):
    return str(draw.choice(draw.choice((SIZES, SIZES, SMALL, FLOATS, TEXTS, SHAPES))))


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
    """The keys of the components that a run with the plugin has, as `--set` takes them."""
    places, place, using = {"reward": "reward.0", "advantage": "advantage", "objective": "objective", "mask": "mask.0"}, None, ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            place = places.get(line.strip())
        elif named := re.match(r"  (\S+)", line):
            using = named[1] if line[2] != " " else using
        if place and using.startswith(("capo.", "exact_match")) and (keys := re.match(r"\s+keys: (.*)", line)):
            yield from (f"{place}.{key}" for key in re.findall(r"[\w]+", keys[1]))
