"""Makes `golden.json` beside this file: what Hugging Face transformers makes of conversations with the chat templates here.

    pip install transformers jinja2 && python make.py

Made with transformers 5.23.0. Every folder has a chat template in one of the places where transformers looks for one, and special tokens
in one of theirs; together the templates have every construct of those of Qwen2.5, Qwen3, Llama 3, Mistral, SmolLM2 and
TinyLlama, and in `rest` and `values` what templates may hold besides. The tokenizer knows bytes and special tokens, and would begin
every text with `<s>` if it was asked to. For each template and conversation, with and without a generation prompt, and with
`enable_thinking` absent, true and false, the text and its ids; or what the template refused with, or failed at. Cases like the one before
are counted in `same`; `values` has one conversation. `expressions.json` has what short templates make.

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


EXPRESSION_MESSAGES = [{"role": "user", "content": "q", "x": 10**29 + 7, "y": 1e22}, {"role": "user", "content": "r"}]
# Not here: floats that have an exponent, within a list or behind `~`, and whole numbers beyond 128 bits, which the engine writes in its own way or refuses.
EXPRESSIONS = [
    "{% for c in ('a if b'|replace(('a')|upper, 'c')) %}{{ c }}{% endfor %}",
    "{%+ for c in 'ab'|replace(')', ' if ') -%} {{ loop.last }} {%- endfor %}",
    "{% for c in 'abc' %}{{ c }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for c in 'añ' if c != 'z' %}{{ loop.last }}{{ loop.length }} {% else %}none{% endfor %}",
    "{%- for c in ('ab' if true else 'x') -%}{{ loop.last }}{%- endfor -%}",
    "{% for c in 'ab'|upper + \"c if d\" %}{{ c }}{{ loop.last }}{% endfor %}",
    "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a, b in {'x': 1}|dictsort %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% for a in {'x': 1, 'y': 2} %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% for a in [1, 2, 3] if a > 1 %}{{ loop.last }}{{ loop.length }}{{ loop.index }}{% endfor %}",
    "{% for a in range(3) %}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [1,2,3]|select('odd') %}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [{'r':1},{'r':2}]|selectattr('r','equalto',2) %}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [1,2]|map('string') %}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [1,2,3]|reverse %}{{ a }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in 'abc'|reverse %}{{ a }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [1,2,3,4]|batch(2) %}{{ a }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in [1,2,3,4]|slice(2) %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% for a in 'a b'.split() %}{{ a }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for a in undefinedthing %}x{% else %}empty{% endfor %}",
    "{% for a in [1, [2, [3]]] recursive %}{% if a is iterable %}({{ loop(a) }}){% else %}{{ a }}{{ loop.last }}{% endif %}{% endfor %}",
    "{% for a in 'ab' recursive %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% for c in 'ab' %}{{ loop.nextitem }}{{ loop.previtem }}{{ loop.cycle('x','y') }}{% endfor %}",
    "{% for c in 1, 2 %}{{ c }}{{ loop.last }}{% endfor %}",
    "{% raw %}{% for c in x %}{{ loop.last }}{% endfor %}{% endraw %}",
    "{{ '{% for c in x %}' }}",
    "{# {% for c in x %} #}a",
    "{{ {'a': {'b': '%}'}} }}",
    "{% set x = {'a': {'b': '%}'}} %}{% for c in x %}{{ c }}{{ loop.last }}{% endfor %}",
    "{{ 1e22|string }}", "{{ 1e22 }}",
    "{{ 1e-7|string }}", "{{ 1.0|string }}", "{{ 1.5 ~ 'x' }}", "{{ 1e16|tojson }}", "{{ [1e22]|tojson }}",
    "{{ '%s'|format(1e22) }}", "{{ (1e22)|int }}", "{{ '1e22'|float }}", "{{ 1e22|round }}",
    "{{ 18446744073709551615 }}", "{{ 18446744073709551616 }}", "{{ 123456789012345678901234567890 }}", "{{ 2 ** 64 }}", "{{ 2 ** 70 }}",
    "{{ 18446744073709551616|string }}", "{{ 18446744073709551616|tojson }}", "{{ [18446744073709551616] }}", "{{ 18446744073709551615 + 1 }}", "{{ 9223372036854775807 * 4 }}",
    "{{ -9223372036854775809 }}", "{{ '18446744073709551616'|int }}", "{{ 99999999999999999999 // 7 }}", "{{ 99999999999999999999 % 7 }}",
    "{{ 1e999 }}", "{{ 1e999|string }}", "{{ 0.1 + 0.2 }}", "{{ 7 / 2 }}", "{{ 4 / 2 }}", "{{ 10 ** -2 }}", "{{ 123456789012345680.0 }}", "{{ -0.0 }}", "{{ 1e5 }}", "{{ 3.0 * 2 }}",
    "{{ [1.0, 2.5]|sum }}", "{{ [0.1]|first }}", "{{ 1e22|string|length }}", "{{ messages[0].x }}", "{{ messages[0].x|string }}", "{{ messages[0].y|tojson }}",
    "{{ 5|float }}", "{{ 'abc'|list }}", "{{ 'abc'|length }}", "{{ 1e22 == 10**22 }}", "{{ none ~ true }}", "{{ [none, true, 'a', 1.0] }}",
    "a {%- generation -%} b {% endgeneration %}{{ '{% generation %}' }}{% generation %}{%- endgeneration +%}{% raw %}{% generation %}{% endraw %}",
    "{{ 'a\r\nb' }}\r\n{% if true %}\r\nc\r{% endif %}",
    *(f"{{{{ {number}|tojson }}}} {{{{ {number} }}}}" for number in "0.0 -0.0 1.0 0.1 1e-4 1e-5 1.25e-7 1e15 1e16 -1.5e100 1e999 7".split()),
    "{{ 'x' * 3 }}", "{{ [1,2] + [3] }}",
    "{% for m in messages[1:] %}{{ loop.last }}{{ loop.length }}{% endfor %}",
    # White space at the ends of raw text is its own.
    "x{% raw %}\n a {% endraw %}y{% raw %}\n  {% endraw %}\ny",
    "  {% raw %}  {{ b }}\n\n {%- endraw -%}\n y{%- raw -%}\n a\"\\\' {% endraw %} y",
    "\n  {% raw %}\n a\n  {% endraw %}\n.{% raw %}  {% endraw %}.{% raw %}{% endraw %}",
    # Python's white space and ends of lines are more than Rust's.
    "{{ '\x1c a\x1f\x85\xa0'|trim }}|{{ '-a-'|trim('-') }}|{{ '\x1ca\x1d'.strip() }}|{{ '\x1ea '.lstrip() }}|{{ ' a\x1f'.rstrip() }}",
    "{{ ' a\x1cb \x1f c\xa0'.split()|length }}{{ 'a\r\nb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\x85i\u2028j\u2029k\n\nl'.splitlines()|length }}",
    "{{ 'a\r\nb\x0bc\n'.splitlines(true)|tojson }}{{ ''.splitlines()|length }}{{ 'a\x1fb'.splitlines()|length }}",
]


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
                    {"name": "rag", "template": "not this one"},
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
        render = lambda text: chat_template_utils._compile_jinja_template(text).render(messages=EXPRESSION_MESSAGES)
        dump({text: render(text) for text in EXPRESSIONS}, HERE / "expressions.json")
