"""Valid inputs for mutations: a small model in one file and in shards, with tokenizers of several kinds, and data."""

import json
import shutil

from . import mutate, runs
from .settings import ROOT

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
STEP = "--set train.max_steps=1 --set train.per_device_train_batch_size=4 --set rollout.num_generations=2 --set eval.num_prompts=0".split()

DATA = """[model]
model_name_or_path = "embedded:tiny-arithmetic"
[data]
dataset_name = "train.jsonl"
eval_dataset_name = "test.jsonl"
max_prompt_length = 16
[rollout]
num_generations = 2
max_completion_length = 8
[train]
max_steps = 1
per_device_train_batch_size = 4
learning_rate = 1e-4
[[reward]]
use = "exact_match"
"""
TEACH = """[model]
config_name_or_path = "embedded:tiny-arithmetic"
[data]
dataset_name = "train.jsonl"
max_prompt_length = 16
[train]
max_steps = 1
per_device_train_batch_size = 2
[eval]
num_prompts = 0
"""


def model(bench):
    """A Hugging Face directory with a few thousand weights, as `host` itself saves it."""
    whole, folder = bench.originals / "reference", bench.fresh("small")
    checkpoint, base = runs.checkpoint(whole), folder / "base"
    base.mkdir()
    for name in MODEL_FILES[2:]:
        shutil.copy(checkpoint / name, base / name)
    config = json.loads((checkpoint / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | SMALL))
    place = ("--set", "model.model_name_or_path=base", "--set", "model.fresh_weights=true")
    bench.must("train", *STEP, *place, "--output-dir", runs.RUN, folder=folder)
    made = bench.fresh("model")
    for name in MODEL_FILES:
        shutil.copy(runs.checkpoint(folder) / name, made / name)
    return made


def shards(bench, made):
    """The same model with its weights in two files."""
    folder = bench.fresh("shards")
    for name in MODEL_FILES:
        if name != "model.safetensors":
            shutil.copy(made / name, folder / name)
    header, data = mutate.unpack((made / "model.safetensors").read_bytes())
    header.pop("__metadata__", None)
    names, index = sorted(header), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file, entries, bytes_ = f"model-0000{number}-of-00002.safetensors", {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = header[name] | {"data_offsets": [len(bytes_), len(bytes_) + end - begin]}
            bytes_ += data[begin:end]
            index[name] = file
        (folder / file).write_bytes(mutate.pack(entries, bytes_))
    text = {"metadata": {"total_size": len(data)}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text, indent=2))
    return folder


def tokenizers(bench, made):
    """The same model with tokenizers of other kinds, which have the same fifteen ids."""
    plain = json.loads((made / "tokenizer.json").read_text())
    vocabulary = plain["model"]["vocab"]
    scores = [[token, -float(number)] for token, number in sorted(vocabulary.items(), key=lambda item: item[1])]
    template = {"type": "TemplateProcessing", "special_tokens": {}, "pair": []}
    template["single"] = [{"Sequence": {"id": "A", "type_id": 0}}]
    cut = {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 0}
    fill = {"strategy": {"Fixed": 4}, "direction": "Left", "pad_to_multiple_of": None}
    fill |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    replacing = {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, replacing]}
    pieces = {"type": "WordPiece", "unk_token": "<pad>", "continuing_subword_prefix": "", "max_input_chars_per_word": 100}
    kinds = {
        "bpe": {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}},
        "unigram": {"model": {"type": "Unigram", "unk_id": 0, "vocab": scores}, "truncation": cut},
        "wordpiece": {"model": pieces | {"vocab": vocabulary}},
        "pipeline": {"normalizer": normalizer, "post_processor": template, "padding": fill},
    }
    for name, change in kinds.items():
        folder = bench.fresh(f"model-{name}")
        for file in MODEL_FILES:
            shutil.copy(made / file, folder / file)
        (folder / "tokenizer.json").write_text(json.dumps(plain | change))
        yield f"model-{name}", folder


def data(bench):
    """Configs for `host train` and `host sft`, and rows."""
    folder = bench.fresh("data")
    rows = [{"prompt": f"{n}+{n + 7}=", "answer": str(2 * n + 7), "solution": f"{2 * n + 7}", "level": n % 3} for n in range(100, 800, 90)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("train.jsonl", "test.jsonl"):
        (folder / name).write_text(text)
    (folder / "data.toml").write_text(DATA)
    (folder / "sft.toml").write_text(TEACH)
    return folder


def batch(bench):
    """A recorded batch with the inputs of the mask, and the mask's config."""
    folder = bench.fresh("replay")
    case = ROOT / "tests/data/replay/paper-token-adam"
    for name in ("batch-0000.safetensors", "mask.toml"):
        shutil.copy(case / name, folder / name)
    return folder
