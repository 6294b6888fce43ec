"""The programs of python/examples/environments, which `[environment] use = "command"` starts: games and tools that speak lines of JSON."""

import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT

PROGRAMS = ROOT / "python/examples/environments"

# A game in place of an optional package. It draws numbers at its beginning and in each turn, also from a set, prints, and raises errors.
GAME = """
import random
class Game:
    def __init__(self, **config):
        print("made", config, flush=True)
        self.last = config.get("max_turns", 3)
    def reset(self, num_players=1, seed=None):
        self.turn, self.heard = 0, [f"secret {random.choice(sorted(range(1000)))} {next(iter({str(i) for i in range(99)}))}"]
        return self.heard[0], {"suffix": "Go."}
    def step(self, action):
        print("not a line of the protocol", flush=True)
        self.turn += 1
        return f"{action} {random.randint(0, 10**9)}", 1.0 if action == "win" else 1 / int(action or 1), action == "win", self.turn == self.last, {}
    def sample_random_action(self):
        return random.choice(["2", "4", "8"])
"""
PACKAGES = {
    "gem_games": ("gem", f"{GAME}\ndef make(name, **config):\n    return {{'game': Game}}[name](**config)\n"),
    "textarena_games": (
        "textarena",
        f"""{GAME}
from types import SimpleNamespace
ObservationType = SimpleNamespace(PLAYER_ACTION=1)
class Wrapper:
    def __init__(self, env): self.env = env
class OfOnePlayer(Game):
    def reset(self, num_players, seed):
        self.texts = [(-1, super().reset()[0], 0)]
    def step(self, action):
        text, self.reward, won, late, _ = super().step(action)
        self.texts += [(0, action, 1), (-1, text, 0)]
        return won or late, {{}}
    def get_observation(self):
        texts, self.texts = self.texts, []
        return 0, texts
    def close(self):
        return {{0: self.reward}}, {{}}
def make(name):
    return {{'game': lambda: Wrapper(OfOnePlayer())}}[name]()
""",
    ),
}


class Program:
    """One of the programs, with functions to send and receive lines."""

    def __init__(self, name, *arguments, path=()):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
        command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def ask(self, ask, **line):
        self.process.stdin.write(json.dumps({"ask": ask, **line}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.process.stderr.read()
        return json.loads(answer)

    def begin(self, episode, seed=1, columns=None):
        row = {"group": 0, "place": 0, "step": 0, "max_turns": 8, "purpose": "training", "prompt": "Play.", "answer": None}
        return self.ask("begin", episode=episode, seed=seed, columns=columns or {}, **row)["message"]

    def respond(self, episode, turn, text="", calls=(), is_last=False):
        answer = self.ask("respond", episode=episode, turn=turn, text=text, calls=list(calls), is_last=is_last)
        assert (answer.pop("episode"), answer.pop("turn")) == (episode, turn)
        return answer

    def end(self):
        """Ends the program's input, and returns its standard error."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.process.stderr.read()
        return self.process.stderr.read()


def refused(name, *arguments, path=()):
    """The last line of the error of a program that does not start."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    ended = subprocess.run(command, input="", capture_output=True, text=True, env=environment)
    assert ended.returncode in (1, 2) and ended.stdout == ""
    return ended.stderr.strip().splitlines()[-1]


@pytest.fixture(params=list(PACKAGES))
def game(request, tmp_path):
    """A program, and the folder with the replacement of its package."""
    package, text = PACKAGES[request.param]
    (tmp_path / f"{package}.py").write_text(text)
    return request.param, tmp_path


def played(program, episode, seed, says):
    return [program.begin(episode, seed), *(program.respond(episode, turn, text) for turn, text in enumerate(says))]


def test_a_seed_determines_an_episode(game):
    name, path = game
    first = Program(name, "game", path=[path])
    assert first.ask("tools") == {"tools": []}
    alone = [played(first, 0, 1, ["2", "4"]), played(first, 0, 2, ["2", "4"])]
    assert alone[0] != alone[1] and alone[0] == played(first, 5, 1, ["2", "4"]), "it may be played again"
    # The turns of two episodes alternate in one process.
    second = Program(name, "game", path=[path])
    together = [[second.begin(0, 1)], [second.begin(1, 2)]]
    for turn, text in enumerate(["2", "4"]):
        for episode in (1, 0):
            together[episode].append(second.respond(episode, turn, text))
    assert together == alone
    assert "not a line of the protocol" in first.end() + second.end()


def test_games_end_with_their_reward(game):
    name, path = game
    program = Program(name, "game", path=[path])
    ends = lambda reward, turns, won: {"reward": reward, "ended": True, "metrics": {"turns": turns, "won": won}}
    for episode, seed, says, expected in [(0, 1, ["2", "win"], ends(1, 2, 1)), (1, 1, ["4", "4", "4"], ends(0.25, 3, 0)), (0, 2**53, ["win"], ends(1, 1, 1))]:
        assert played(program, episode, seed, says)[-1] == expected
    program.begin(7)
    last = program.respond(7, 0, "4", is_last=True)
    assert last["metrics"] == {"turns": 1, "won": 0} and not last["ended"]
    program.begin(8)
    assert program.respond(8, 0, "no number") == {"ended": True, "metrics": {"failed": 1}}
    assert "ValueError: invalid literal for int() with base 10: 'no number'" in program.end()


def test_observations_of_games(game):
    name, path = game
    program = Program(name, "game", path=[path])
    message, answer = played(program, 0, 1, ["2"])
    assert message.startswith("secret ") and message.endswith("Go.") == (name == "gem_games")
    assert answer["messages"][0]["content"].startswith("2 "), "and not what the player said"
    assert program.begin(1, columns={"game": "game"}) == message
    program.end()


def test_configures_games(tmp_path):
    (tmp_path / "gem.py").write_text(PACKAGES["gem_games"][1])
    program = Program("gem_games", "game", "--config", "max_turns=1", path=[tmp_path])
    assert played(program, 0, 1, ["4"])[-1]["ended"]
    program.end()


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("gem_games", ["game:None"], "gem_games: `game:None` does not begin: 'game:None'"),
        ("gem_games", ["game", "--config", "x"], "gem_games.py: error: `--config x` is not KEY=VALUE with a value in JSON (such as max_turns=7)"),
        ("textarena_games", ["None"], "textarena_games: `None` does not begin for one player: 'None'"),
        ("python_tools", ["none.py"], "python_tools: there is no file `none.py` (name one of Python functions)"),
        ("python_tools", [f"{PROGRAMS}/arithmetic_tools.py:Game"], f"python_tools: `{PROGRAMS}/arithmetic_tools.py` has no class `Game`"),
    ],
)
def test_explains_programs_that_cannot_start(name, arguments, sentence, tmp_path):
    for package, text in PACKAGES.values():
        (tmp_path / f"{package}.py").write_text(text)
    assert refused(name, *arguments, path=[tmp_path]) == sentence


@pytest.mark.parametrize("name", PACKAGES)
def test_names_a_missing_package(name, tmp_path):
    package = PACKAGES[name][0]
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")")
    assert refused(name, "game", path=[tmp_path]).startswith(f"{name}: No module named '{package}' (pip install ")


REAL = {"gem_games": ("gem", "game:GuessTheNumber-v0-hard", "\\boxed{{{}}}", 50), "textarena_games": ("textarena", "GuessTheNumber-v0", "[{}]", 20)}


@pytest.mark.parametrize("name", REAL)
def test_bisection_wins_the_packages_own_game(name):
    package, game, said, high = REAL[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    program = Program(name, game, path=sys.path)
    for seed in (3, 3, 11):
        bounds, turns = [1, high], []
        message = program.begin(0, seed)
        assert f"between 1 and {high}" in message
        while not turns or not turns[-1].get("ended"):
            middle = sum(bounds) // 2
            turns.append(program.respond(0, len(turns), said.format(middle)))
            if "messages" in turns[-1]:
                bounds = [bounds[0], middle - 1] if "lower" in turns[-1]["messages"][0]["content"] else [middle + 1, bounds[1]]
        assert turns[-1] == {"reward": 1, "ended": True, "metrics": {"turns": len(turns), "won": 1}} and len(turns) <= 6
    program.end()


def test_random_play_writes_rows_of_turns(tmp_path):
    (tmp_path / "gem.py").write_text(PACKAGES["gem_games"][1])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "0"}
    for folder, seed in (("a", 5), ("b", 5), ("c", 6)):
        command = [sys.executable, PROGRAMS / "random_play.py", "game", "--episodes", "2", "--max-turns", "2", "--out", tmp_path / folder, "--seed", str(seed)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    texts = [(tmp_path / folder / "sft.jsonl").read_text() for folder in "abc"]
    assert texts[0] == texts[1] != texts[2]
    rows = [json.loads(line) for line in texts[0].splitlines()]
    assert [len(row["prompt"]) for row in rows] == [1, 3, 1, 3] and {row["solution"] for row in rows} <= {"2", "4", "8"}
    assert [message["role"] for message in rows[1]["prompt"]] == ["user", "assistant", "user"]
    assert rows[1]["prompt"][1]["content"] == rows[0]["solution"] and rows[1]["prompt"][2]["content"].startswith(rows[0]["solution"])
    # The program of the environment shows the same observations as the rows.
    program = Program("gem_games", "game", path=[tmp_path])
    assert program.begin(0, 5) == rows[0]["prompt"][0]["content"]
    program.end()


def test_writes_the_last_moves_of_won_games(tmp_path):
    command = [sys.executable, PROGRAMS / "random_play.py", "game", "--episodes", "20", "--won", "--out", tmp_path / "won"]
    for moves, status in (('["2", "win"]', 0), ('["2"]', 1)):
        (tmp_path / "gem.py").write_text(PACKAGES["gem_games"][1].replace('["2", "4", "8"]', moves))
        run = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
        assert run.returncode == status, run.stderr
    assert run.stderr == "random_play: no game of 20 was won at random (play more with `--episodes`)\n"
    rows = [json.loads(line) for line in (tmp_path / "won/sft.jsonl").read_text().splitlines()]
    assert {row["solution"] for row in rows} == {"win"} and {len(row["prompt"]) for row in rows} == {1, 3, 5}, rows


TOOLS = '''
import os, sys
from helpers import twice
LIMIT = 3
def double(x: int, note: str = "") -> int:
    """Doubles.

    Args:
        x: A number.
        note: What it is for.
    """
    print("said", note, input() if note == "read" else "")
    return twice(x)
async def wait(x: float) -> str:
    """Waits.

    Args:
        x: Seconds.
    """
    return f"{x} s"
def half() -> str:
    """Half of a pair."""
    return "a\\ud800"
def _hidden(x):
    return x
class Game:
    """As TRL takes it."""
    def __init__(self): self.sum = 0
    def reset(self, level, prompt, **_): return f"{prompt} Level {level}."
    def add(self, x: int) -> int:
        """Adds.

        Args:
            x: A number.
        """
        self.sum += x
        return self.sum
    def get_reward(self): return self.sum / 8 if self.sum else None
'''


@pytest.fixture
def tools(tmp_path):
    (tmp_path / "helpers.py").write_text("def twice(x):\n    return x * 2 if x < 9 else 1 // 0\n")
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    return file


def test_functions_become_tools(tools):
    program = Program("python_tools", tools)
    named = program.ask("tools")["tools"]
    assert [each["function"]["name"] for each in named] == ["double", "wait", "half"], "neither what is imported nor what is hidden"
    assert named[0]["function"]["parameters"]["required"] == ["x"]
    assert program.begin(0) == ""
    calls = [("double", {"x": 4}, "8"), ("double", {"x": 4.0, "note": "a"}, "8"), ("wait", {"x": 0.5}, "0.5 s")]
    calls += [
        ("double", {"x": 9}, "{'error': 'integer division or modulo by zero'}"),
        ("double", {"x": 1, "note": "read"}, "{'error': 'EOF when reading a line'}"),
    ]
    calls += [("half", {}, "a?")]
    calls += [("double", {}, "{'error': \"double() missing 1 required positional argument: 'x'\"}")]
    answer = program.respond(0, 0, calls=[{"name": name, "arguments": arguments} for name, arguments, _ in calls])
    assert answer == {"messages": [{"role": "tool", "name": name, "content": text} for name, _, text in calls], "ended": False, "metrics": {"failed_calls": 3}}
    assert program.respond(0, 1, "It is 8.") == {"messages": [], "ended": True}
    assert "said a" in program.end()


def test_environments_of_trl_work_in_host(tools):
    program = Program("python_tools", f"{tools}:Game")
    assert [each["function"]["name"] for each in program.ask("tools")["tools"]] == ["add"]
    add = lambda x: [{"name": "add", "arguments": {"x": x}}]
    assert [program.begin(episode, columns={"level": episode}) for episode in (0, 1)] == ["Play. Level 0.", "Play. Level 1."]
    said = lambda text, reward: {"messages": [{"role": "tool", "name": "add", "content": text}], "ended": False, "reward": reward}
    # The rewards of the turns add up to the object's reward, wherever the episode ends.
    assert program.respond(0, 0, calls=add(0)) == said("0", 0.0), "None adds nothing"
    assert program.respond(0, 0, calls=add(2)) == said("2", 0.25)
    assert program.respond(1, 0, calls=add(5)) == said("5", 0.625)
    assert program.respond(0, 1, calls=add(2)) == said("4", 0.25)
    assert program.respond(0, 2, "Done.") == {"messages": [], "ended": True, "reward": 0.0}
    assert program.respond(1, 1, calls=add(1), is_last=True) == said("6", 0.125)
    program.end()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "`tools.py` has no public function"),
        ("def f(x: int): return x", "`f` has no docstring (say what it does, and under `Args:` what its arguments are)"),
        ("def f(x):\n  '''F.\n\n  Args:\n    x: It.\n  '''", "the argument `x` of `f` has no type (a model needs both)"),
        ("def f(x: int):\n  '''F.'''", "the argument `x` of `f` has no description (a model needs both)"),
        (
            "def f(x: set):\n  '''F.\n\n  Args:\n    x: It.\n  '''",
            "`<class 'set'>` has no schema (use int, float, str, bool, list, dict, Literal, Enum, or a union of them)",
        ),
        ("def f(:", "invalid syntax (tools.py, line 1)"),
    ],
)
def test_explains_functions_that_cannot_be_tools(text, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(text)
    assert refused("python_tools", "tools.py") == f"python_tools: {sentence}"


def test_tools_of_the_examples_have_schemas():
    program = Program("python_tools", PROGRAMS / "arithmetic_tools.py")
    assert [each["function"]["name"] for each in program.ask("tools")["tools"]] == ["multiply", "divide"]
    program.begin(0)
    calls = [{"name": "divide", "arguments": {"dividend": 1, "divisor": 4, "exactly": True}}, {"name": "divide", "arguments": {"dividend": 1, "divisor": 0}}]
    assert [each["content"] for each in program.respond(0, 0, calls=calls)["messages"]] == ["1/4", "{'error': 'division by zero'}"]
    program.end()
