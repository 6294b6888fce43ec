"""The data and the rewards of reasoning_gym: scores against the library's own, the program in ``host``'s protocol, and a run."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "python/examples/reasoning_gym_reward.py"
MAKER = ROOT / "scripts/reasoning_gym_data"

reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed (pip install reasoning-gym==0.1.25)")

TASKS = {
    "chain_sum": {},
    "basic_arithmetic": {"max_terms": 2},
    "decimal_arithmetic": {"max_num_decimal_places": 4},
    "complex_arithmetic": {},
    "time_intervals": {"max_date_difference_days": 7},
    "polynomial_equations": {},
    "simple_integration": {},
    "polynomial_multiplication": {},
    "countdown": {"max_numbers": 4},
    "puzzle24": {"max_value": 5},
    "string_insertion": {},
    "spiral_matrix": {"max_n": 3},
    "n_queens": {"n": 4, "min_remove": 1, "max_remove": 2},
    "word_ladder": {"min_word_length": 3, "max_word_length": 3},
    "rearc": {},
    "knights_knaves": {"n_people": 2},
    "quantum_lock": {},
    "sudoku": {"min_empty": 30, "max_empty": 32},
    "list_functions": {},
    "leg_counting": {},
}
# Texts in place of an answer: empty, long, in other alphabets, without numbers, with nested tags, and code that Python cannot parse or could run.
MALFORMED = [
    *("", " \n\t", "9" * 5000, "x" * 200_000, "[" * 300, "²³ ½ ４２ 答え", "\u202e\x00\ud7ff\U0001f600", "NaN", "-inf", "1e999", "None", "{}"),
    *("<answer>", "<answer>5", "</answer><answer>7</answer>", "<b>5</b>", "\\boxed{5}", "5 " * 2000, "1/0", "0x1F", "(", "'", "A,B,C", "1 2\n3 4"),
    *("[[1, 2], [3, 4]]", "['A', 'B']", "x**2 + C", "3 + 4*5", "1:30", "Yes"),
]


def load(path: Path):
    """A program of the repository as a module."""
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    loader.exec_module(module)
    return module


reward, maker = load(PROGRAM), load(MAKER)


def make(folder: Path, monkeypatch, *options: str) -> list[dict]:
    """The training rows that the script writes."""
    monkeypatch.setattr(sys, "argv", ["reasoning_gym_data", *options, "--out", str(folder)])
    maker.main()
    return read(folder / "train.jsonl")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def own(dataset, completion: str, entry: dict) -> float:
    """The library's score of a completion, as its own trainer computes it: of the answer, or of the whole text."""
    answer = reasoning_gym.utils.extract_answer(completion)
    try:
        return float(dataset.score_answer(completion.strip() if answer is None else answer, entry))
    except Exception:
        return 0.0


@pytest.mark.parametrize("task", TASKS)
def test_scores_equal_the_librarys_own(task, tmp_path, monkeypatch):
    settings = [f"--config={key}={value}" for key, value in TASKS[task].items()]
    rows = make(tmp_path, monkeypatch, task, "--size", "5", "--seed", "7", *settings)
    dataset = reasoning_gym.create_dataset(task, size=5, seed=7, **TASKS[task])
    entries = [dataset[index] for index in range(5)]
    answers = [str(entry["answer"]) for entry in entries]
    compared, full = 0, 0
    for number, (row, entry) in enumerate(zip(rows, entries)):
        assert row["prompt"] == entry["question"]
        malformed = MALFORMED[number::5]
        completions = [f"First <answer>1</answer>, then <answer> {answer}\n</answer>" for answer in [*answers, *malformed[:3]]]
        for completion in [*completions, *malformed[3:], answers[number], f"The answer is {answers[number]}"]:
            given = reward.score(completion, row["task"], row["config"], row["entry"])
            assert given == own(dataset, completion, entry), completion[:200]
            compared, full = compared + 1, full + (given == 1)
    assert compared >= 50
    assert full >= 5


def ask(rows: list[dict], completions: list[str], *options: str, program: tuple = (PROGRAM,)) -> tuple[list[float], str]:
    """Asks the program for the rewards of completions, line by line as ``host`` does. Returns the rewards and its standard error."""
    command = [sys.executable, *program, *options]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    answers = []
    for number, (row, completion) in enumerate(zip(rows, completions)):
        columns = {key: value for key, value in row.items() if key != "prompt"}
        line = {"id": number, "group": 0, "count": len(rows), "step": 1, "purpose": "training", "prompt": row["prompt"], "completion": completion}
        line |= {"completion_ids": [], "truncated": False, "answer": row["answer"], "columns": columns}
        program.stdin.write(json.dumps(line, ensure_ascii=False) + "\n")
        program.stdin.flush()
        answers.append(json.loads(program.stdout.readline()))
    rest, errors = program.communicate()
    assert (rest, program.returncode) == ("", 0), errors
    assert [answer["id"] for answer in answers] == list(range(len(rows)))
    return [answer["reward"] for answer in answers], errors


def test_the_program_answers_each_line(tmp_path, monkeypatch):
    [row] = make(tmp_path, monkeypatch, "chain_sum", "--size", "1")
    right = row["answer"]
    completions = [f"<answer>{right}</answer>", f"so\n#### {right}", right, f"{right} or not", "<answer></answer>", "\u2028\U0001f600"]
    exact, errors = ask([row] * 6, completions, "--separator", "####", "--exact")
    assert exact == [1, 1, 1, 0, 0, 0]
    assert errors == ""
    found, _ = ask([row] * 6, completions, r"--pattern=-?\d+", "--exact")
    assert found == [1, 1, 1, 1, 0, 0]
    parts, _ = ask([row] * 6, completions)
    assert parts == [own(reasoning_gym.create_dataset("chain_sum", size=1, seed=0), one, reward.ast.literal_eval(row["entry"])) for one in completions]


def test_answers_are_not_run_as_python(tmp_path, monkeypatch):
    """A verifier that evaluates answers must not end the program, run the model's text, or read lines of the protocol."""
    left = tmp_path / "left"
    attacks = ["exit()", "input()", f"__import__('pathlib').Path('{left}').touch()", "S('exit\\x28\\x29')", "(lambda: exit())()", "9**9**9", "print(1)"]
    rows = [make(tmp_path, monkeypatch, task, "--size", "1")[0] for task in sorted(reward.EVALUATED) for _ in attacks]
    scores, _ = ask(rows, attacks * len(reward.EVALUATED), "--seconds", "0.5")
    assert max(scores) <= 0.05
    assert not left.exists()


@pytest.mark.parametrize("task", sorted(reward.EVALUATED))
def test_accepts_the_tasks_own_answers(task):
    dataset = reasoning_gym.create_dataset(task, size=50, seed=9)
    assert [entry["answer"] for entry in dataset if not reward.harmless(str(entry["answer"]))] == []


def test_verifiers_may_print_and_read(tmp_path, monkeypatch):
    rows = make(tmp_path, monkeypatch, "leg_counting", "--size", "1") * 2
    verifier = "lambda *_: [print(7), 1.0 + len(sys.stdin.read())][1]"
    code = f"import runpy, sys, reasoning_gym.dataset as d; d.ProceduralDataset.score_answer = {verifier}; runpy.run_path('{PROGRAM}', run_name='__main__')"
    scores, errors = ask(rows, ["5", "6"], program=("-c", code))
    assert (scores, errors.split()) == ([1, 1], ["7", "7"])


def test_failing_verifiers_give_no_reward(tmp_path, monkeypatch, capsys):
    [row] = make(tmp_path, monkeypatch, "chain_sum", "--size", "1")
    columns = [row["task"], row["config"], row["entry"]]
    for failure in (ValueError("broken"), SystemExit(3), RecursionError()):

        def fails(*_, failure=failure):
            raise failure

        monkeypatch.setattr(reward.dataset(*columns[:2]), "score_answer", fails)
        assert reward.score("5", *columns) == 0
        assert capsys.readouterr().err.count("\n") == 1

    def turns(*_):
        while True:
            pass

    monkeypatch.setattr(reward.dataset(*columns[:2]), "score_answer", turns)
    assert reward.score("5", *columns, seconds=0.1) == 0
    assert "it takes more than 0.1 s" in capsys.readouterr().err
    monkeypatch.setattr(reward.dataset(*columns[:2]), "score_answer", lambda *_: float("nan"))
    assert reward.score("5", *columns) == 0


def test_writes_rows_for_trl(tmp_path, monkeypatch):
    rows = make(tmp_path, monkeypatch, "chain_sum", "--size", "3", "--conversation", "--instruction", "The answer alone.")
    assert all(row["prompt"][0]["content"].endswith("\n\nThe answer alone.") for row in rows)
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    prompts = [row["prompt"] for row in rows]
    conversations = [[{"role": "assistant", "content": f"<answer>{answer}</answer>"}] for answer in columns["answer"]]
    assert reward.reasoning_gym_reward(prompts, conversations, completion_ids=[[1]] * 3, trainer_state=None, **columns) == [1, 1, 1]
    assert reward.reasoning_gym_reward(prompts=prompts, completions=[*columns["answer"][:2], "x"], **columns) == [1, 1, 0]


def test_held_out_questions_differ_from_training_questions(tmp_path, monkeypatch, capsys):
    digits = ["--config=max_terms=2", "--config=max_digits=1"]
    train = make(tmp_path, monkeypatch, "chain_sum", "--size", "60", "--held-out", "40", *digits)
    held_out = read(tmp_path / "held_out.jsonl")
    questions = {row["prompt"] for row in held_out}
    assert len(questions) == len(held_out) == 40
    assert not {row["prompt"] for row in train} & questions
    left_out = held_out[-1]["index"] + 1 - 40
    assert f"held_out.jsonl: 40 rows of 40; {left_out} left out" in capsys.readouterr().out
    assert left_out > 0
    assert {row["seed"] for row in train} == {0} and {row["seed"] for row in held_out} == {60}
    with pytest.raises(SystemExit):
        make(tmp_path, monkeypatch, "n_queens", "--size", "90", "--held-out", "1", "--config=n=4", "--config=min_remove=4", "--config=max_remove=4")
    assert "all 10 held-out questions are in train.jsonl" in capsys.readouterr().err


def test_writes_rows_of_tasks_without_answers(tmp_path, monkeypatch):
    [row] = make(tmp_path, monkeypatch, "graph_color", "--size", "1")
    assert row["answer"] == "no single answer"
    assert reward.score("{}", row["task"], row["config"], row["entry"]) < 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["chainsum"], "there is no task `chainsum` (did you mean `chain_sum`"),
        (["chain_sum", "--config=terms=2"], "`chain_sum` has no key `terms` (its keys: min_terms, max_terms, "),
        (["chain_sum", "--config=min_terms=0"], "`chain_sum` refuses {'min_terms': 0}: AssertionError: "),
        (["chain_sum", "--size=0"], "`--size` is 0 and `--held-out` 0 (they must be at least 1 and 0)"),
    ],
)
def test_explains_bad_input(options, sentence, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        make(tmp_path, monkeypatch, *options[:1], "--size", "1", *options[1:])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_host_trains_and_evaluates(host, tmp_path, monkeypatch):
    """The embedded model adds numbers. The prompts are the sums of the questions, and the verifier agrees with ``exact_match``."""
    digits = [f"--config={key}={value}" for key, value in {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3}.items()]
    rows = make(tmp_path, monkeypatch, "chain_sum", "--size", "200", *digits)
    sums = [{**row, "prompt": row["prompt"].rpartition(": ")[2].replace(" ", "")} for row in rows if "-" not in row["prompt"]]
    maker.write(tmp_path / "sums.jsonl", sums)
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        [model]
        model_name_or_path = "embedded:tiny-arithmetic"
        [data]
        dataset_name = "{tmp_path}/sums.jsonl"
        eval_dataset_name = "{tmp_path}/sums.jsonl"
        max_prompt_length = 16
        [rollout]
        max_completion_length = 24
        [train]
        max_steps = 3
        per_device_train_batch_size = 48
        output_dir = "{tmp_path}/run"
        [eval]
        num_prompts = 32
        reward = "command"
        [[reward]]
        use = "command"
        command = ["{sys.executable}", "{PROGRAM}", "--separator", "=", "--exact"]
        [[reward]]
        use = "exact_match"
        weight = 0
        """
    )
    subprocess.run([host, "train", "--config", config], check=True, stdout=subprocess.DEVNULL)
    lines = read(tmp_path / "run/metrics.jsonl")
    steps = [line for line in lines if "rewards/command/mean" in line]
    assert len(steps) == 3
    assert all(line["rewards/command/mean"] == line["rewards/exact_match/mean"] for line in steps)
    assert sum(line["rewards/command/mean"] for line in steps) > 0
    output = tmp_path / "answers.jsonl"
    model = tmp_path / "run"
    subprocess.run([host, "eval", "--config", config, "--model", model, "--output", output], check=True, stdout=subprocess.DEVNULL)
    answers = read(output)
    assert len(answers) == 32
    assert all(one["correct"] == (one["rewards"]["exact_match"] > 0) for one in answers)
