#!/usr/bin/env python3
"""Tools from Python functions, as an environment of `host`.

    [environment]
    use = "command"
    command = ["python3", "python/examples/environments/python_tools.py", "tools.py"]

Each public function that the file defines becomes a tool: its name, its docstring in Google's style and its types make the schema, as for `tools` of TRL's
`GRPOTrainer`. `FILE.py:CLASS` takes what TRL takes as `environment_factory`. Each episode has an object of its own, whose public methods are tools; what
`reset(**row)` returns follows the prompt, and `get_reward()`, if there is one, is asked after each turn: it gives the reward of the episode so far, or
None if nothing is to be added.

The model reads what a call returns as text, and `{'error': ...}` for an exception, as in TRL. A call that raises one counts in
`tools/failure_frequency`. **The functions run with your rights.**
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import runpy
import sys
import typing
from collections.abc import Callable
from pathlib import Path

from protocol import Episode, Line, Pipe, sentence
from schemas import of_function

OWN = ("reset", "get_reward")


def functions(source: dict[str, Callable] | object) -> dict[str, Callable]:
    """The tools by their names: functions of a file, or methods of an object."""
    if isinstance(source, dict):
        return {
            name: each
            for name, each in source.items()
            if inspect.isfunction(each) and each.__module__ == "tools" and name[0] != "_"
        }
    names = [
        name for name, _ in inspect.getmembers(type(source), inspect.isfunction) if name[0] != "_" and name not in OWN
    ]
    return {name: getattr(source, name) for name in names}


def called(function: Callable, arguments: Line) -> tuple[str, bool]:
    """What the model reads of a call, and whether it failed."""
    hints = typing.get_type_hints(function)
    # JSON knows one kind of number.
    whole = lambda name, value: int(value) if hints.get(name) is int and isinstance(value, float) else value
    try:
        result = function(**{name: whole(name, value) for name, value in arguments.items()})
        return str(asyncio.run(result) if inspect.iscoroutine(result) else result), False
    except Exception as error:
        return str({"error": str(error)}), True


class Tools(Episode):
    def __init__(self, source: dict[str, Callable] | object, row: Line) -> None:
        self.source, self.tools, self.rewarded = source, functions(source), 0.0
        if not isinstance(source, dict):
            self.message = source.reset(**row) or ""

    def respond(self, turn: Line) -> Line:
        said = [(call["name"], *called(self.tools[call["name"]], call["arguments"])) for call in turn["calls"]]
        # A turn without a call is the answer.
        answer = {
            "messages": [{"role": "tool", "name": name, "content": text} for name, text, _ in said],
            "ended": not said,
        }
        failed_calls = sum(failed for *_, failed in said)
        if failed_calls:
            answer["metrics"] = {"failed_calls": failed_calls}
        # An episode also ends where its next message has no room, and nothing tells of that. So each turn earns what has been added.
        if hasattr(self.source, "get_reward"):
            found = self.source.get_reward()
            reward = self.rewarded if found is None else float(found)
            answer["reward"], self.rewarded = reward - self.rewarded, reward
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="an environment of `host`: tools from Python functions")
    parser.add_argument("file", metavar="FILE.py[:CLASS]", help="functions, or a class whose methods are tools")
    path, _, name = parser.parse_args().file.partition(":")
    pipe = Pipe()
    try:
        if not Path(path).is_file():
            raise OSError(f"there is no file `{path}` (name one of Python functions)")
        sys.path.insert(0, str(Path(path).resolve().parent))
        file = runpy.run_path(path, run_name="tools")
        if name and name not in file:
            raise TypeError(f"`{path}` has no class `{name}`")
        source = file[name] if name else lambda: file
        tools = [of_function(each) for each in functions(source()).values()]
        if not tools:
            raise TypeError(f"`{path}` has no public function")
    except Exception as error:
        sys.exit(f"python_tools: {sentence(error)}")
    pipe.serve(lambda line: Tools(source(), {"prompt": line["prompt"], **line["columns"]}), tools)


if __name__ == "__main__":
    main()
