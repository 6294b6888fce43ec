"""`python -m capo_rl plugins|check|replay`: what `host` has under these names, for masks and weights."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from . import CapoError, Plugins
from .recorded import steps

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main() -> int:
    """The exit code: 0, and 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m capo_rl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_plugins(commands)
    add_replay(commands)
    commands.add_parser("check", help="whether plugins keep the rules: runs `host check`, from `PATH`", add_help=False)
    if sys.argv[1:2] == ["check"]:
        return run_check(sys.argv[2:])
    arguments = parser.parse_args()
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as `head`, has read enough. The interpreter must not flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CapoError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def with_plugins(command: argparse.ArgumentParser) -> None:
    """The arguments that name plugins."""
    command.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="LIB",
        help="a path or a name; repeatable; without one, those of this package",
    )
    command.add_argument(
        "--allow-unsafe-plugin-path", action="store_true", help="accepts files that other users may change"
    )


def add_plugins(commands: Commands) -> None:
    """The command `plugins`."""
    command = commands.add_parser("plugins", help="lists components and recipes")
    with_plugins(command)
    command.add_argument("--verbose", action="store_true", help="a line per key, and what each component asks for")
    command.add_argument("--hash", action="store_true", help="prints pins instead")
    command.add_argument("--json", action="store_true", help="prints one JSON object instead")
    command.set_defaults(run=run_plugins)


def run_plugins(arguments: argparse.Namespace) -> int:
    """Lists what is on offer."""
    plugins = Plugins(*arguments.plugin, allow_unsafe_path=arguments.allow_unsafe_plugin_path)
    if arguments.json:
        print(json.dumps(plugins.describe(), ensure_ascii=False))
        return 0
    for line in plugins.pins() if arguments.hash else plugins.lines(arguments.verbose):
        print(line)
    return 0


def add_replay(commands: Commands) -> None:
    """The command `replay`."""
    command = commands.add_parser("replay", help="runs masks and weights over recorded batches")
    with_plugins(command)
    command.add_argument(
        "--config",
        metavar="FILE",
        help="settings as TOML, of which `[[mask]]` and `[[weight]]` count; without it, the plugin's recipe",
    )
    command.add_argument(
        "--device", default="cpu", help="`cpu`, or `cuda:N`, whose memory the large arrays are copied to"
    )
    command.add_argument(
        "--dtype", default="f32", help="what features are rounded to on a CUDA device: `f32`, `bf16` or `f16`"
    )
    command.add_argument(
        "--out", required=True, metavar="DIR", help="where the results go: one file per batch, named like it"
    )
    command.add_argument("batches", nargs="+", metavar="BATCH", help="batch files, in order")
    command.set_defaults(run=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    """Runs masks and weights, and prints a line for each batch."""
    plugins = Plugins(*arguments.plugin, allow_unsafe_path=arguments.allow_unsafe_plugin_path)
    for _, line in steps(
        arguments.batches, arguments.config, plugins, arguments.out, arguments.device, arguments.dtype
    ):
        print(line)
    return 0


def run_check(arguments: list[str]) -> int:
    """Becomes `host check`; returns only where there is no `host`."""
    host = shutil.which("host")
    # There is a program of this name in many systems, which looks up internet addresses.
    if host is None or not is_capo(host):
        print(
            "error: `check` runs `host check`, and no `host` of capo was found on `PATH` (build it with "
            "`cargo build --release -p host`, and name its folder in `PATH`)",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    os.execv(host, [host, "check", *arguments])


def is_capo(host: str) -> bool:
    """Whether this program is the trainer."""
    said = subprocess.run([host, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return said.returncode == 0 and said.stdout.startswith("host ")


if __name__ == "__main__":
    sys.exit(main())
