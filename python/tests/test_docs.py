"""Runs the code of docs/python.md and of the examples unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_runs_each_block_of_the_docs(number, tmp_path, monkeypatch):
    if "load_dataset" in BLOCKS[number]:
        pytest.skip("it loads a model and a dataset over the network; test_trl.py has the trainer")
    if "import torch" in BLOCKS[number]:
        pytest.importorskip("torch", reason="torch is not installed here")
    monkeypatch.chdir(ROOT)
    program = tmp_path / "block.py"
    program.write_text(BLOCKS[number])
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error::UserWarning"})
    assert run.returncode == 0, run.stderr
    expected = re.search(r"print\(token_mask\) *# (.*)", BLOCKS[number])
    if expected:
        assert " ".join(run.stdout.split()) == expected[1]


def test_the_reward_of_trls_example_reads_conversations():
    (reward,) = re.findall(r"reward_funcs=(lambda .*),$", "".join(BLOCKS), re.MULTILINE)
    completions = [[{"role": "assistant", "content": text}] for text in ("yes", "the quick brown fox jumps over it")]
    assert eval(reward)(prompts=[], completions=completions) == [0.0, 1.0]


def test_the_first_examples_use_only_the_governor():
    """README advises to begin with the governor, because a mask alone does not replace it."""
    docstring = (ROOT / "python/capo_rl/trl.py").read_text().split('"""')[1]
    for example in (BLOCKS[0], docstring, (ROOT / "python/examples/train_trl.py").read_text()):
        assert 'step_controls=["governor.kl"]' in example and not re.search(r"\b(masks|weights)=", example), example


def test_finds_blocks_in_the_docs():
    assert len(BLOCKS) >= 3


def test_the_example():
    run = subprocess.run([sys.executable, ROOT / "python/examples/decide.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("tokens rejected") == 4
    assert " 0 of " not in run.stdout, run.stdout


def test_the_loop_of_plain_torch():
    pytest.importorskip("transformers", reason="transformers is not installed here")
    run = subprocess.run([sys.executable, ROOT / "python/examples/torch_grpo.py", "12"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (taken,) = re.findall(r"step  12 .* KL of the whole step .* taken (0\.\d+)", run.stdout)
    assert 0 < float(taken) < 0.5 and run.stdout.count("step ") >= 2


def test_the_example_in_trl(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed here")
    run = subprocess.run([sys.executable, ROOT / "python/examples/train_trl.py"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = re.findall(r"^step +\d+  reward (\S+)  taken (\S+)$", run.stdout, re.MULTILINE)
    rewards, taken = [float(reward) for reward, _ in lines], [float(share) for _, share in lines]
    assert len(lines) == 8 and rewards[-1] > rewards[0] + 0.2 and max(taken) < 1, run.stdout


def test_pip_does_not_wait_for_other_builds():
    """pip does not show cargo's output, so a wait for the lock of the workspace's target folder would look like a hang."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    command = ["cargo", "metadata", "--offline", "--no-deps", "--format-version", "1"]
    targets = [subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout for folder in (ROOT, ROOT / "python")]
    whole, pips = (os.path.normpath(json.loads(target)["target_directory"]) for target in targets)
    assert pips not in (whole, f"{whole}/wheel"), "the second is where the build script builds the plugins"
