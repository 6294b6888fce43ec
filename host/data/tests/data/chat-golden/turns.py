"""Makes `turns.json` beside this file: a conversation of several turns through the templates of five families, as token ids.

    pip install torch transformers trl && python turns.py [--check DIR]

Made with transformers 5.24.0 and trl 1.16.0. Of each case: the ids of the prompt; the model's turns, as the template writes them up to the token that ends
one, and the calls in them; the ids of what the template writes between two turns, which TRL's `GRPOTrainer._get_tool_suffix_ids` finds too; `mask`, 1 for the
model's tokens in what follows the prompt. Where `rewrites` is true, the template writes earlier turns of the whole conversation in another way. Templates
without tools get the same conversation with the results as turns of the user.

`--check DIR` does the same with published templates, `DIR/*.jinja`, and writes `DIR/turns.json`.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from make import DATE, HERE, Datetime, tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
from trl import GRPOTrainer

FAMILIES = {"qwen2.5": True, "qwen3": True, "llama3": True, "inst": False, "lines": False}
NUMBER = {"type": "number", "description": "A number."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.capitalize()}s zwei Zahlen: α·β.",
            "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
        },
    }
    for name in ("multiply", "add")
]


def call(name, a, b):
    return {"type": "function", "function": {"name": name, "arguments": {"a": a, "b": b}}}


def result(name, content):
    return {"role": "tool", "name": name, "content": content}


CONVERSATION = [
    {"role": "user", "content": "What is 12·34 + 5?"},
    {"role": "assistant", "content": "", "tool_calls": [call("multiply", 12, 34)]},
    result("multiply", "408"),
    {"role": "assistant", "content": "", "tool_calls": [call("add", 408, 5.5)]},
    result("add", "{'error': 'no\nfractions'}"),
    {"role": "assistant", "content": "It is 413."},
    {"role": "user", "content": "Grüße! And 413 − 1?"},
    {"role": "assistant", "content": "412"},
]


def plain(message):
    """The message where there are no tools."""
    if message["role"] == "assistant":
        calls = "".join(f"{each['function']['name']}{each['function']['arguments']}" for each in message.get("tool_calls", []))
        return {"role": "assistant", "content": calls or message["content"]}
    return {"role": "user", "content": message["content"]}


def case(loaded, with_tools):
    messages, tools = (CONVERSATION, TOOLS) if with_tools else ([plain(message) for message in CONVERSATION], None)
    text = lambda messages, prompts: loaded.apply_chat_template(messages, tools=tools, add_generation_prompt=prompts, tokenize=False)
    ids = lambda text: loaded(text, add_special_tokens=False)["input_ids"]
    ends = loaded.eos_token
    found = {"eos_token": ends, "tools": tools or [], "messages": messages[:1], "prompt": ids(text(messages[:1], True)), "turns": []}
    row, mask = list(found["prompt"]), []
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place, then in zip(turns, [*turns[1:], len(messages)]):
        before, after = text(messages[:place], True), text(messages[: place + 1], False)
        # A template may open the turn in another way than it prompts for it: the model says what follows the prompt.
        said = after[len(before) :] if after.startswith(before) else after[after.rindex(before.rpartition("\n")[2] or "\n") :]
        said = said[: said.rindex(ends)]
        replies = messages[place + 1 : then]
        turn = {"said": said, "ids": ids(said + ends), "calls": messages[place].get("tool_calls", []), "replies": replies}
        turn["after"] = between(loaded, replies) if replies else []
        found["turns"].append(turn)
        row += turn["ids"] + turn["after"]
        mask += [1] * len(turn["ids"]) + [0] * len(turn["after"])
    whole = ids(text(messages, False))
    return found | {"mask": mask, "rewrites": whole[: len(row)] != row}


def between(loaded, replies):
    """Ids of what stands between a turn, which ends, and the next one."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": replies[0].get("name"), "arguments": {}}}]}
    answer = {"role": "assistant", "content": "dummy"}
    of_tool = replies[0]["role"] == "tool"
    text = loaded.apply_chat_template([CONVERSATION[0], call if of_tool else answer, *replies], add_generation_prompt=True, tokenize=False)
    begun = loaded.apply_chat_template([CONVERSATION[0]], add_generation_prompt=False, tokenize=False)
    rest = text[len(begun) :].split(loaded.eos_token, 1)[1]
    found = loaded(rest, add_special_tokens=False)["input_ids"]
    if of_tool:
        self = SimpleNamespace(processing_class=loaded, _tokenizer=loaded, chat_template=None, chat_template_kwargs={}, _is_vlm=False)
        try:
            assert GRPOTrainer._get_tool_suffix_ids(self, replies) == found
        except ValueError as error:
            # TRL has templates of its own in place of those that rewrite earlier turns.
            assert "Unexpected tokenization" in str(error)
    return found


def dump(cases, path):
    """A line for each part of a case."""
    text = lambda value: json.dumps(value, ensure_ascii=False)
    parts = [f"{text(name)}: {{" + ",\n".join(f"{text(key)}: {text(value)}" for key, value in each.items()) + "}" for name, each in cases.items()]
    path.write_text(f'{{"date": {text(DATE.strftime("%Y-%m-%d"))},\n"templates": {{\n' + ",\n".join(parts) + "\n}}\n")


def main():
    chat_template_utils.datetime = Datetime
    cases = {}
    if sys.argv[1:2] == ["--check"]:
        for path in sorted(Path(sys.argv[2]).glob("*.jinja")):
            text = path.read_text()
            ends = next((token for token in ("<|im_end|>", "<|eot_id|>") if token in text), "</s>")
            loaded = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<s>", eos_token=ends)
            loaded.chat_template = text
            cases[path.stem] = case(loaded, True)
        dump(cases, Path(sys.argv[2]) / "turns.json")
        return
    for name, with_tools in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
            shutil.copy(HERE / "tokenizer.json", folder)
            cases[name] = case(PreTrainedTokenizerFast.from_pretrained(folder), with_tools)
    dump(cases, HERE / "turns.json")


main()
