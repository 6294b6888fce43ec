"""Makes `golden.json` beside this file: what Hugging Face transformers makes of conversations with the chat templates here.

    pip install transformers jinja2 && python make.py

Made with transformers 5.23.0. Every folder has a chat template in one of the places where transformers looks for one, and special tokens
in one of theirs; together the templates have every construct of those of Qwen2.5, Qwen3, Llama 3, Mistral, SmolLM2 and
TinyLlama, and in `rest` and `values` what templates may hold besides. The tokenizer knows bytes and special tokens, and would begin
every text with `<s>` if it was asked to. For each template and conversation, with and without a generation prompt, and with
`enable_thinking` absent, true and false, the text and its ids; or what the template refused with, or failed at. Cases like the one before
are counted in `same`; `values` has one conversation.

`python make.py --check DIR` does the same with the templates `DIR/*.jinja`, and writes `DIR/golden.json`.
"""

import datetime
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jinja2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
DATE = datetime.datetime(2024, 7, 6)
SPECIAL = """<s> </s> <unk> <|im_start|> <|im_end|> <|endoftext|> <|begin_of_text|> <|start_header_id|> <|end_header_id|>
    <|eot_id|> [INST] [/INST] <|user|> <|system|> <|assistant|> <think> </think>""".split()

call = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": [1.5, "é"]}}}
user = {"role": "user", "content": "What is 2+2?"}
assistant = {"role": "assistant", "content": "It is 4."}
system = {"role": "system", "content": "Be brief. "}
CONVERSATIONS = {
    "one": [user],
    "system": [system, user],
    "turns": [user, assistant, {"role": "user", "content": "And 3+3?"}],
    "answered": [system, user, assistant, user, {"role": "assistant", "content": "Still 4.\n"}],
    "unicode": [{"role": "user", "content": "Grüße, 世界! 😀 e\u0301 \u00a0<b>&amp;'\"\\"}],
    "braces": [{"role": "user", "content": "{{ messages }} {% raw %} {# no #} ${x} <|im_end|>\n<|user|>"}],
    "newlines": [{"role": "user", "content": "\n\n a\r\n\tb \n\n"}, {"role": "assistant", "content": "\n\nc\n"}, user],
    "thoughts": [
        user,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."},
        user,
        {"role": "assistant", "reasoning": "again?\n", "content": "\n4"},
    ],
    "calls": [
        user,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "[3.5, 4]"},
        {"role": "tool", "content": "none"},
        assistant,
    ],
    "two calls": [user, {"role": "assistant", "content": "So:", "tool_calls": [call, {**call, "id": "short"}]}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}],
    "no turns": [user, user],
    "only system": [system],
    "unknown": [{"role": "critic", "name": "zed", "content": "Bad.", "author": "x"}],
}


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    bos = SPECIAL[0]
    inner.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, inner.token_to_id(bos))])
    return inner


def config(**more) -> dict:
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **more}


def configs() -> dict:
    """`tokenizer_config.json` of every folder, and other files than the template."""
    text = lambda name: (HERE / name / "chat_template.txt").read_text()
    token = lambda content: {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "chatml": {
            "tokenizer_config.json": config(eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=text("chatml"))
        },
        "thinking": {"tokenizer_config.json": config(eos_token="<|im_end|>", chat_template="not this one")},
        "headers": {"tokenizer_config.json": config(bos_token=token("<|begin_of_text|>"), eos_token=token("<|eot_id|>"))},
        "inst": {
            "tokenizer_config.json": config(
                bos_token="<s>",
                eos_token="</s>",
                chat_template=[
                    {"name": "tool_use", "template": "not this one"},
                    {"name": "default", "template": text("inst")},
                ],
            )
        },
        "lines": {
            "tokenizer_config.json": config(eos_token="<unk>", chat_template=text("lines")),
            "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {**token("</s>")}},
        },
        "rest": {"tokenizer_config.json": config(bos_token="<s>", eos_token="</s>")},
        "values": {"tokenizer_config.json": config(eos_token="</s>")},
    }


class Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DATE


def cases(loaded: PreTrainedTokenizerFast) -> list:
    chat_template_utils.datetime = Datetime
    found = []
    for name, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            for thinking in (None, True, False):
                said = {} if thinking is None else {"enable_thinking": thinking}
                case = {"conversation": name, "add_generation_prompt": prompt, "enable_thinking": thinking}
                try:
                    apply = lambda **how: loaded.apply_chat_template(messages, add_generation_prompt=prompt, **said, **how)
                    text = apply(tokenize=False)
                    case |= {"text": text, "ids": apply(tokenize=True, return_dict=False)}
                except jinja2.exceptions.TemplateError as error:
                    raised = type(error) is jinja2.exceptions.TemplateError
                    case |= {"refused": str(error)} if raised else {"failed": str(error)}
                except TypeError as error:
                    case |= {"failed": str(error)}
                found.append(case)
    return found


def dump(value, path: Path):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def dump_golden(golden: dict, path: Path):
    """A line for each conversation and each case."""
    lines = lambda values, ends: ends[0] + ",\n".join("\n" * (not i) + v for i, v in enumerate(values)) + "\n" + ends[1]
    text = lambda value: json.dumps(value, ensure_ascii=False)
    conversations = lines([f"{text(name)}: {text(messages)}" for name, messages in golden["conversations"].items()], "{}")
    templates = [f"{text(name)}: " + lines(map(text, cases), "[]") for name, cases in golden["templates"].items()]
    date = text(golden["date"])
    path.write_text(f'{{"date": {date},\n"conversations": {conversations},\n"templates": {lines(templates, "{}")}}}\n')


def shorter(cases: list) -> list:
    """Cases that `enable_thinking` leaves as they were are not written down again."""
    kept = []
    for case in cases:
        same = lambda other: all(
            other.get(key) == case.get(key)
            for key in ("conversation", "add_generation_prompt", "text", "refused", "failed")
        )
        if not any(same(other) for other in kept):
            kept.append(case)
        elif case["enable_thinking"] is not None:
            next(other for other in kept if same(other)).setdefault("same", []).append(case["enable_thinking"])
    return kept


def golden() -> dict:
    inner = tokenizer()
    inner.save(str(HERE / "tokenizer.json"))
    templates = {}
    for name, files in configs().items():
        for file, value in files.items():
            dump(value, HERE / name / file)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
            shutil.copy(HERE / "tokenizer.json", folder)
            found = shorter(cases(PreTrainedTokenizerFast.from_pretrained(folder)))
        templates[name] = found[:1] if name == "values" else found
    return {"date": DATE.strftime("%Y-%m-%d"), "conversations": CONVERSATIONS, "templates": templates}


def check(folder: Path) -> dict:
    templates = {}
    for path in sorted(folder.glob("*.jinja")):
        loaded = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>")
        loaded.chat_template = path.read_text()
        templates[path.stem] = cases(loaded)
    return {"date": DATE.strftime("%Y-%m-%d"), "conversations": CONVERSATIONS, "templates": templates}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        dump_golden(check(Path(sys.argv[2])), Path(sys.argv[2]) / "golden.json")
    else:
        dump_golden(golden(), HERE / "golden.json")
