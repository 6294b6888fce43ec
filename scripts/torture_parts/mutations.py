"""Mutated configs, datasets, models, batches and run directories. `host` must use them, or refuse them with a sentence."""

import dataclasses
import os
import shutil
from pathlib import Path

from . import mutate, originals, runs
from .bench import copy, put

TRIED = "mutated TOML, JSONL, model directories, batches and run directories, through `train`, `eval`, `sft`, `replay` and `check`"


@dataclasses.dataclass
class Input:
    """A valid folder, the file in it that is mutated, and a command that reads the file."""

    kind: str
    folder: Path
    file: str
    command: list
    how: object = mutate.mutated


class Part:
    def __init__(self, bench):
        self.bench = bench
        bench.library("libcapo.so")
        runs.reference(bench)
        self.inputs = list(inputs(bench))
        for one in self.inputs:
            folder = copy(one.folder, bench.fresh("tried"))
            bench.must(*one.command, folder=folder)
            shutil.rmtree(folder)

    def run(self, case):
        one = case.rng.choice(self.inputs)
        case.kind = one.kind
        for entry in os.scandir(one.folder):
            if entry.is_dir():
                copy(entry.path, case.folder / entry.name)
            else:
                shutil.copy2(entry.path, case.folder / entry.name)
        file = case.folder / one.file
        put(file, case.draw(one.how(file.read_bytes())))
        case.call(*one.command)


def inputs(bench):
    yield from configs(bench)
    yield from models(bench)
    replay, batch = originals.batch(bench), "batch-0000.safetensors"
    command = ["replay", "--plugin", "libcapo.so", "--config", "mask.toml", "--out", "out", batch]
    yield Input("mask's config", replay, "mask.toml", command)
    yield Input("batch", replay, batch, command, mutate.tensors)
    yield Input("batch's numbers", replay, batch, command, mutate.tensors)
    yield from run_files(bench)


def configs(bench):
    data = originals.data(bench)
    whole = bench.fresh("config")
    shutil.copy(bench.originals / "reference" / runs.RUN / "config.toml", whole / "run.toml")
    training = ["train", "--output-dir", "out", "--stop-after", "1", "--config"]
    evaluating = ["eval", "--num-prompts", "1", "--config"]
    # `host sft` has no `--stop-after`, and a mutated number of steps may be large.
    teaching = ["sft", "--config", "sft.toml", "--set", "train.max_steps=1", "--output-dir", "out"]
    yield Input("config", whole, "run.toml", [*training, "run.toml", "--plugin", "libcapo.so"])
    yield Input("config of eval", whole, "run.toml", [*evaluating, "run.toml", "--plugin", "libcapo.so"])
    yield Input("config with data", data, "data.toml", [*training, "data.toml"])
    yield Input("config of sft", data, "sft.toml", teaching)
    yield Input("dataset", data, "train.jsonl", [*training, "data.toml"])
    yield Input("held-out dataset", data, "test.jsonl", [*evaluating, "data.toml"])
    yield Input("dataset of sft", data, "train.jsonl", teaching)
    yield Input("rows of check", data, "train.jsonl", ["check", "--only", "empty-completion", "--rows", "train.jsonl"])


def models(bench):
    command = ["eval", "--num-prompts", "1", "--set", "data.dataset_name=embedded:arithmetic", "--model", "model"]
    made = originals.model(bench)
    tokenizers = list(originals.tokenizers(bench, made))
    for name, folder in (("model", made), ("sharded model", originals.shards(bench, made)), *tokenizers):
        held = bench.fresh(f"holding-{name.replace(' ', '-')}")
        copy(folder, held / "model")
        files = [file for file in sorted(os.listdir(folder)) if name == "model" or "tokenizer" not in file]
        for file in ["tokenizer.json"] if name.startswith("model-") else files:
            how = mutate.tensors if file.endswith(".safetensors") else mutate.mutated
            yield Input(f"{name}'s {file}", held, f"model/{file}", command, how)
    held = bench.fresh("fresh")
    copy(made, held / "model")
    fresh = [*originals.STEP, "--set", "model.model_name_or_path=model", "--set", "model.fresh_weights=true"]
    yield Input("config.json for fresh weights", held, "model/config.json", ["train", *fresh, "--output-dir", "out"])


def run_files(bench):
    """A run that has finished its steps, so that a resume reads everything and trains nothing."""
    reference = bench.originals / "reference"
    newest = runs.checkpoint(reference).relative_to(reference)
    names = [f"{runs.RUN}/{name}" for name in runs.files(reference)]
    manifests = {file.name for file in (reference / newest).glob("*.json")} - set(originals.MODEL_FILES)
    names += [str(newest / name) for name in sorted(manifests)]
    for name in names:
        yield Input(f"a run's {Path(name).name}", reference, name, [*runs.resume(), "--stop-after", runs.STEPS + 1])
