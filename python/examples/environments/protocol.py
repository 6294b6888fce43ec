"""What the programs here share: lines of JSON from and to ``[environment] use = "command"``, which docs/environments.md describes.

A program of your own opens the `Pipe` first, and has it make an `Episode` of each line that begins one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

#: A line of the protocol.
Line = dict[str, Any]


class Episode:
    """One conversation. It begins with `message`, which follows the row's prompt."""

    message = ""

    def respond(self, turn: Line) -> Line:
        """The answer to a turn of the model, without the episode's number: `messages`, `ended`, `reward`, `metrics`."""
        raise NotImplementedError


class Pipe:
    """The lines of the protocol. What else the program reads and prints is not among them from here on: a game may do both."""

    def __init__(self) -> None:
        # An order that follows from hashes of texts, as that of a set, is else another one in each process.
        if os.environ.get("PYTHONHASHSEED") != "0":
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
        self.lines = os.fdopen(os.dup(0), encoding="utf-8")
        # A result may have half of a surrogate pair, which no line of the protocol can hold.
        self.answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def serve(self, begin: Callable[[Line], Episode], tools: list[Line] | None = None) -> None:
        """Answers every line until they end.

        Args:
            begin: Makes an episode of the line that begins it.
            tools: Schemas of the tools that the model may call.
        """
        episodes: dict[int, Episode] = {}
        for line in self.lines:
            asked = json.loads(line)
            number = asked.get("episode")
            if asked["ask"] == "tools":
                answer = {"tools": tools or []}
            elif asked["ask"] == "begin":
                episodes[number] = begin(asked)
                answer = {"episode": number, "message": episodes[number].message}
            else:
                answer = {"episode": number, "turn": asked["turn"], **episodes[number].respond(asked)}
                if asked["is_last"] or answer.get("ended") or not answer.get("messages"):
                    del episodes[number]
            print(json.dumps(answer, ensure_ascii=False), file=self.answers, flush=True)


class Draws:
    """The random numbers of one episode. Games draw from those of Python and numpy, which all episodes of a process share."""

    def __init__(self, seed: int) -> None:
        self.python, self.numpy = random.Random(seed).getstate(), None
        if "numpy" in sys.modules:
            self.numpy = sys.modules["numpy"].random.RandomState([seed % 2**32, seed >> 32]).get_state()

    @contextmanager
    def go_on(self):
        """All draws inside go on where those of this episode ended."""
        numpy = self.numpy and sys.modules["numpy"].random
        random.setstate(self.python)
        if numpy:
            numpy.set_state(self.numpy)
        try:
            yield
        finally:
            self.python, self.numpy = random.getstate(), numpy and numpy.get_state()


def failed(error: Exception) -> Line:
    """Ends an episode whose game fails at what the model said: no reward, and the reason on standard error."""
    print("".join(traceback.format_exception(error)), file=sys.stderr)
    return {"ended": True, "metrics": {"failed": 1}}


def sentence(error: Exception) -> str:
    """The message of an error on one line, the first 400 characters."""
    return " ".join(str(error).split())[:400]
