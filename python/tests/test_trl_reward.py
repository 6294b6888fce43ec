"""A plugin's reward among TRL's `reward_funcs`."""

import datetime
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import capo_rl
import pytest
from capo_rl._trl_reward import reward_func


def said(text, *more):
    return [*more, {"role": "assistant", "content": text}]


#: The arguments of a call by TRL 1.16: each column with repeated values, and TRL's own helpers.
OF_TRL = {"trainer_state": SimpleNamespace(global_step=3, max_steps=10), "log_extra": print, "log_metric": print}
ASKED = {"role": "user", "content": "What is 1/4 + 1/4?"}
TOOL = {"role": "tool", "content": "\\boxed{1/2}"}
CASES = [
    ("strings", ["4 + 4 = "] * 2, ["\\boxed{8}", "\\boxed{9}"], {"answer": ["8", "8"]}, [1, 0]),
    ("messages", [[ASKED]] * 2, [said("It is $\\boxed{\\frac12}$."), said("no")], {"answer": ["0.5", "0.5"]}, [1, 0]),
    (
        "the last message of the assistant",
        [[ASKED]] * 2,
        [said("\\boxed{1/2}", *said("wait"), TOOL), said("no", *said("\\boxed{1/2}"), TOOL)],
        {"answer": [0.5, 0.5]},
        [1, 0],
    ),
    (
        "text in parts, and none",
        [[ASKED]] * 2,
        [said([{"type": "image"}, {"type": "text", "text": "\\boxed{1/2}"}]), said(None)],
        {"answer": ["1/2", "1/2"]},
        [1, 0],
    ),
    ("a row without an answer", ["a", "b"], ["\\boxed{8}", "\\boxed{8}"], {"answer": [None, 8]}, [None, 1]),
    ("columns that are no JSON", ["a"], ["\\boxed{8}"], {"answer": ["8"], "day": [datetime.date(2026, 1, 1)], "weight": [float("nan")]}, [1]),
]


@pytest.mark.parametrize(("prompts", "completions", "columns", "rewards"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rewards_as_trl_calls_them(prompts, completions, columns, rewards):
    ids = [[1, 2, 3]] * len(completions)
    assert reward_func("math")(prompts=prompts, completions=completions, completion_ids=ids, **columns, **OF_TRL) == rewards


def test_keys_columns_and_limits(tmp_path):
    named = reward_func(capo_rl.Reward("exact_match", answer_separator=":"), answer="gold", max_completion_length=3)
    assert named.__name__ == "exact_match"
    assert named(prompts=["a", "b"], completions=["x:1", "x:1"], completion_ids=[[1], [1, 2, 3]], gold=["1", "1"]) == [1, 0], "the second is cut off"
    with pytest.raises(ValueError, match="`exact_match` compares with the column `gold`, which the dataset does not have \\(name the column"):
        named(prompts=["a"], completions=["1"], answer=["1"])
    with pytest.raises(TypeError, match="an answer in the column `gold` is of type `list` \\(it must be text or a number\\)"):
        named(prompts=["a"], completions=["1"], gold=[["1"]])
    long = reward_func(capo_rl.Reward("soft_overlong", soft_punish_cache=2), answer=None, max_completion_length=4)
    assert long(prompts=["a", "b"], completions=["", ""], completion_ids=[[1, 2], [1, 2, 3]]) == [0, -0.5]
    program = tmp_path / "columns.py"
    program.write_text("import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n    print(row['columns']['level'] + row['step'], flush=True)\n")
    own = reward_func(capo_rl.Reward("command", command=[sys.executable, str(program)]), answer=None)
    assert own(prompts=["a", "b"], completions=["", ""], level=[1, 2], **OF_TRL) == [4, 5]


def test_trl_trains_with_it(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed")
    ended = subprocess.run([sys.executable, str(Path(__file__).with_name("tiny_rewarded.py"))], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["rewards/exact_match/mean"] == 0.5 and told["rewards/soft_overlong/mean"] == -0.5 and told["reward"] == 0.0, told
