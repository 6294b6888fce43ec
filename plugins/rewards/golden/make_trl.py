"""Makes trl.json beside this file: what TRL's reward functions give, and open-r1's two of tags.

    pip install trl==1.16.0 && python make_trl.py

open-r1 is no package; the two functions are written here after its `rewards.py`.
"""

import itertools
import json
import re
from pathlib import Path

from trl.rewards import get_soft_overlong_punishment, think_format_reward

PARTS = ["<think>", "</think>", "<answer>", "</answer>", "a", "\n"]
WHOLE = [
    "<think>\na\n</think>\n<answer>\n4\n</answer>",
    "<think>\na\n</think>\n<answer>\n4\n</answer>\n",
    "<think>\na\n</think>\n<answer>\n4\n</answer>\nmore",
    "<think>\na\n</think>\n<answer>\n4\n</answer> more",
    "<think>\na\n</think>\n<answer>\n4\n</answer> more\n</answer>",
    " <think>\na\n</think>\n<answer>\n4\n</answer>",
    "<think>\n\n</think>\n<answer>\n\n</answer>",
    "<think>\n</think>\n<answer>\n</answer>",
    "<think>\na\n</think>\n\n<answer>\n4\n</answer>",
    "<think>\na\nb\n</think>\n<answer>\n4\n5\n</answer>",
    "<think>\na\n</think>\n<think>\nb\n</think>\n<answer>\n4\n</answer>",
    "<think>a</think><answer>4</answer>",
    "<think>\na\n</think>\n4",
    "x\n<think>a</think>",
    "",
]


def one(function, text):
    return function([[{"content": text}]])[0]


def think_answer(completions):
    """open-r1, format_reward"""
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL | re.MULTILINE) else 0.0 for content in contents]


def tag_count(completions):
    """open-r1, tag_count_reward"""
    tags = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"]
    return [sum(completion[0]["content"].count(tag) == 1 for tag in tags) / 4 for completion in completions]


def overlong(longest, cache):
    lengths = list(range(0, longest + 4))
    rewards = get_soft_overlong_punishment(longest, cache)([[1] * length for length in lengths])
    return {"max_completion_len": longest, "soft_punish_cache": cache, "lengths": lengths, "rewards": rewards}


mixed = ["".join(parts) for count in range(1, 5) for parts in itertools.product(PARTS[:2] + PARTS[4:], repeat=count)]
texts = WHOLE + mixed
golden = {
    "think": [[text, one(think_format_reward, text)] for text in texts],
    "think_answer": [[text, one(think_answer, text)] for text in WHOLE],
    "tag_count": [[text, one(tag_count, text)] for text in WHOLE],
    "soft_overlong": [overlong(10, 4), overlong(10, 0), overlong(10, 10), overlong(7, 3), overlong(100, 20)],
}
Path(__file__).with_name("trl.json").write_text(json.dumps(golden) + "\n")
