#!/usr/bin/env python3
"""Writes rows for `host sft` from games of GEM that are played at random: a base that knows how to say a move, and nothing of how to win.

    python3 python/examples/environments/random_play.py game:GuessTheNumber-v0-hard --episodes 200 --out data/guess

`sft.jsonl` has a row for each turn: the conversation up to it, and the move as `solution`. With ``--won`` it has the turns alone that won a game by chance, so
that the base has seen what a reply of the game is good for. `train.jsonl` has prompts for `host train`, all the same: the episodes' seeds are the run's. Moves
are the game's own `sample_random_action`. Needs ``pip install gem-llm==0.1.0``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gem_games import Game
from protocol import sentence

#: Prompts of `train.jsonl`.
PROMPTS = 256


def turns(name: str, prompt: str, seed: int, most: int, won: bool) -> list[dict]:
    """The rows of one episode; with `won` the last one of a game that was won, and none of another."""
    game = Game(name, {}, seed)
    messages = [{"role": "user", "content": f"{prompt}{game.message}"}]
    rows = []
    for number in range(most):
        with game.draws.go_on():
            move = game.game.sample_random_action()
        rows.append({"prompt": list(messages), "solution": move})
        answer = game.respond({"text": move, "is_last": number == most - 1})
        if answer["ended"]:
            return (rows[-1:] if answer["metrics"]["won"] else []) if won else rows
        said = [{"role": "user", **message} for message in answer["messages"]]
        messages += [{"role": "assistant", "content": move}, *said]
    return [] if won else rows


def main() -> None:
    parser = argparse.ArgumentParser(description="rows for `host sft` from games of GEM that are played at random")
    parser.add_argument("game", help="its id, such as `game:GuessTheNumber-v0-hard`")
    parser.add_argument("--episodes", type=int, default=200, help="games to play (default %(default)s)")
    parser.add_argument("--max-turns", type=int, default=8, help="turns of a game (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first game; each has the next (default %(default)s)"
    )
    parser.add_argument("--won", action="store_true", help="keep only the turns that won their game")
    parser.add_argument("--prompt", default="", help="what stands before the game's own first message")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files are written")
    options = parser.parse_args()
    if options.episodes < 1 or options.max_turns < 1 or options.seed < 0:
        parser.error("`--episodes` and `--max-turns` must be at least 1, and `--seed` at least 0")
    try:
        rows = [
            row
            for seed in range(options.seed, options.seed + options.episodes)
            for row in turns(options.game, options.prompt, seed, options.max_turns, options.won)
        ]
    except Exception as error:
        sys.exit(f"random_play: `{options.game}` cannot be played: {sentence(error)}")
    if not rows:
        sys.exit(f"random_play: no game of {options.episodes} was won at random (play more with `--episodes`)")
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = [{"prompt": [{"role": "user", "content": options.prompt}]}] * PROMPTS
    for file, lines in (("sft.jsonl", rows), ("train.jsonl", prompts)):
        (options.out / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{options.out / file}: {len(lines)} rows")


if __name__ == "__main__":
    main()
