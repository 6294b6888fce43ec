#!/usr/bin/env python3
"""Games of GEM (gem-llm), and whatever else has gym's `reset` and `step` over texts, as an environment of `host`.

    [environment]
    use = "command"
    command = ["python3", "python/examples/environments/gem_games.py", "game:GuessTheNumber-v0-easy"]
    deterministic = true

``--config KEY=VALUE`` changes an argument of the game, such as `max_turns`. A row with a column `game` plays that one. The reward of a turn is the game's.
Needs ``pip install gem-llm==0.1.0``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict

from protocol import Draws, Episode, Line, Pipe, failed, sentence

# Games that are over, by name. They begin anew, because some take long to be made: they read lists of words.
IDLE = defaultdict(list)


class Game(Episode):
    def __init__(self, name: str, config: Line, seed: int) -> None:
        import gem

        self.name, self.turns = name, 0
        self.game = IDLE[name].pop() if IDLE[name] else gem.make(name, **config)
        self.draws = Draws(seed)
        with self.draws.go_on():
            self.message = self._text(*self.game.reset(seed=seed % 2**32))

    def _text(self, seen: str, info: Line) -> str:
        """What a player reads. A game shows a part of its state, such as the letters of hangman, beside what it says."""
        return "\n".join(text.strip("\n") for text in (info.get("prefix"), seen, info.get("suffix")) if text)

    def respond(self, turn: Line) -> Line:
        self.turns += 1
        try:
            with self.draws.go_on():
                seen, reward, terminated, truncated, info = self.game.step(turn["text"])
        except Exception as error:
            return failed(error)
        ended = bool(terminated or truncated)
        answer = {"reward": float(reward), "ended": ended}
        if not ended:
            answer["messages"] = [{"content": self._text(seen, info)}]
        if ended or turn["is_last"]:
            IDLE[self.name].append(self.game)
            answer["metrics"] = {"turns": self.turns, "won": float(ended and reward >= 1)}
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="an environment of `host`: games of GEM")
    parser.add_argument("game", help="its id, such as `game:GuessTheNumber-v0-easy`")
    parser.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="an argument of the game; VALUE is JSON"
    )
    options = parser.parse_args()
    try:
        config = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in options.config)}
    except ValueError:
        parser.error(
            f"`--config {' '.join(options.config)}` is not KEY=VALUE with a value in JSON (such as max_turns=7)"
        )
    pipe = Pipe()
    try:
        Game(options.game, config, 0)
    except ImportError as error:
        sys.exit(f"gem_games: {error} (pip install gem-llm==0.1.0)")
    except Exception as error:
        sys.exit(f"gem_games: `{options.game}` does not begin: {sentence(error)}")
    pipe.serve(lambda line: Game(line["columns"].get("game", options.game), config, line["seed"]))


if __name__ == "__main__":
    main()
