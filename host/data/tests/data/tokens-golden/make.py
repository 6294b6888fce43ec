"""Makes `golden.json` beside this file: what Hugging Face transformers makes of texts with the tokenizer of `chat-golden`.

    pip install transformers && python make.py

Made with transformers 5.24.0. Each case has other files beside `tokenizer.json`, or another post-processor in it. For each text there are its
ids, what they decode to, and the ids of a prompt that consists of it.
"""

import json
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
BASE = json.loads((HERE.parent / "chat-golden/tokenizer.json").read_text())
SIZE = len(BASE["model"]["vocab"]) + len([token for token in BASE["added_tokens"] if token["content"] not in BASE["model"]["vocab"]])
TEXTS = ["a b", "<s>a", " <tool> b<tool>", "x <think>y", "A", "<image>1</s>"]


def around(first: list, last: list) -> dict:
    ids = {token["content"]: token["id"] for token in BASE["added_tokens"]}
    special = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    part = lambda name: {"Sequence": {"id": name, "type_id": 0}}
    whole = lambda *names: [*map(special, first), *map(part, names), *map(special, last)]
    tokens = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in first + last}
    return {"type": "TemplateProcessing", "single": whole("A"), "pair": whole("A", "B"), "special_tokens": tokens}


def token(content: str, **more) -> dict:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False} | more


CONFIG, ADDED, MAP = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
CASES = {
    "one token before a text": {},
    "tokens on both sides": {"processor": around(["<s>", "<unk>"], ["</s>"])},
    "no processor": {"processor": None},
    "added_tokens.json": {ADDED: {"<tool>": SIZE, "<image>": SIZE + 1}},
    "added_tokens_decoder": {
        CONFIG: {"added_tokens_decoder": {str(SIZE): token("<tool>", lstrip=True, rstrip=True, special=True), str(SIZE + 1): token("<image>")}},
        ADDED: {"a": 7},
    },
    "additional_special_tokens": {CONFIG: {"additional_special_tokens": ["<image>", token("<tool>", special=True) | {"__type": "AddedToken"}]}},
    "extra_special_tokens": {CONFIG: {"extra_special_tokens": {"image_token": "<image>"}, "tool_token": "<tool>"}},
    "special_tokens_map.json": {MAP: {"additional_special_tokens": ["<tool>"], "cls_token": "<image>"}},
    "a token of the model": {CONFIG: {"pad_token": "A"}},
}


def case(name: str, said: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = BASE | ({"post_processor": said["processor"]} if "processor" in said else {})
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", **said.get(CONFIG, {})}
        files = {"tokenizer.json": tokenizer, **said, CONFIG: config}
        for file, value in files.items():
            Path(folder, file).write_text(json.dumps(value))
        loaded = PreTrainedTokenizerFast.from_pretrained(folder)
        texts = [one(loaded, text) for text in TEXTS]
        return {"name": name, **said, CONFIG: config, "texts": texts}


def one(loaded: PreTrainedTokenizerFast, text: str) -> dict:
    ids, whole = loaded(text, add_special_tokens=False)["input_ids"], loaded(text)["input_ids"]
    begin = whole[: next(at for at in range(len(whole)) if whole[at : at + len(ids)] == ids)]
    # Where transformers writes a token twice there is one here, and a prompt has nothing after its text.
    prompt = ids if ids[: len(begin)] == begin else begin + ids
    return {"text": text, "ids": ids, "decoded": loaded.decode(ids, skip_special_tokens=True), "prompt": prompt}


if __name__ == "__main__":
    cases = [json.dumps(case(name, said)) for name, said in CASES.items()]
    (HERE / "golden.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")
