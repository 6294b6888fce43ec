#!/usr/bin/env python3
"""Games of one player of textarena, as an environment of `host`.

    [environment]
    use = "command"
    command = ["python3", "python/examples/environments/textarena_games.py", "GuessTheNumber-v0"]
    deterministic = true

A row with a column `game` plays that one. The reward is the game's, at its end. Needs ``pip install textarena==0.7.4``.
"""

from __future__ import annotations

import argparse
import sys

from protocol import Draws, Episode, Line, Pipe, failed, sentence


class Game(Episode):
    def __init__(self, name: str, seed: int) -> None:
        import textarena

        self.turns, self.own = 0, textarena.ObservationType.PLAYER_ACTION
        self.draws = Draws(seed)
        with self.draws.go_on():
            self.game = textarena.make(name)
            # Wrappers repeat the whole game in each message; the model's conversation has it already.
            while isinstance(self.game, textarena.Wrapper):
                self.game = self.game.env
            self.game.reset(num_players=1, seed=seed)
            self.message = self._text()

    def _text(self) -> str:
        """What the game has said since the last turn."""
        _, messages = self.game.get_observation()
        return "\n".join(text.strip("\n") for _, text, kind in messages if kind != self.own)

    def respond(self, turn: Line) -> Line:
        self.turns += 1
        reward = 0.0
        try:
            with self.draws.go_on():
                ended, _ = self.game.step(turn["text"])
                if ended:
                    reward = float(self.game.close()[0][0])
                answer = {"reward": reward, "ended": bool(ended)} | (
                    {} if ended else {"messages": [{"content": self._text()}]}
                )
        except Exception as error:
            return failed(error)
        if ended or turn["is_last"]:
            answer["metrics"] = {"turns": self.turns, "won": float(reward >= 1)}
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="an environment of `host`: games of one player of textarena")
    parser.add_argument("game", help="its id, such as `GuessTheNumber-v0`")
    options = parser.parse_args()
    pipe = Pipe()
    try:
        Game(options.game, 0)
    except ImportError as error:
        sys.exit(f"textarena_games: {error} (pip install textarena==0.7.4)")
    except Exception as error:
        sys.exit(f"textarena_games: `{options.game}` does not begin for one player: {sentence(error)}")
    pipe.serve(lambda line: Game(line["columns"].get("game", options.game), line["seed"]))


if __name__ == "__main__":
    main()
