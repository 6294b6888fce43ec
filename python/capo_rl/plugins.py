"""Plugins: libraries that are found, trusted and opened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from . import _native

PathLike = str | os.PathLike[str]


class Plugins:
    """Open plugins.

    **A plugin is native code and runs with your rights: open only what you trust.**

    `Plugins("libmine.so")` takes paths, and names that are looked up in `./`, in the folders of `CAPO_PLUGIN_PATH`, in
    this package and in `~/.local/share/capo/plugins`; `LIB@sha256:HEX` takes that one file and no other. `Plugins()`
    are those that came with this package.

    A file that another user or a group may change, or replace in a folder above it, is refused unless
    `allow_unsafe_path` is set. Files that are open already are not opened again, and none is ever closed.

    Args:
        *paths: Files and names.
        allow_unsafe_path: Takes files that other users may change.

    Raises:
        CapoError: Where one is not found, not trusted or no plugin.
    """

    def __init__(self, *paths: PathLike, allow_unsafe_path: bool = False) -> None:
        self._native = _native.Registry([os.fspath(path) for path in paths], allow_unsafe_path)

    def lines(self, verbose: bool = False) -> list[str]:
        """The offered components as lines for a person, as `host plugins` prints them."""
        return self._native.lines(verbose)

    def pins(self) -> list[str]:
        """A line per plugin: its file as `LIB@sha256:HEX`, and what is in it."""
        return self._native.pins()

    def describe(self) -> dict[str, Any]:
        """The offered components, as `host plugins --json` prints them; docs/distribution.md explains the fields."""
        described: dict[str, Any] = json.loads(self._native.json())
        return described


Source = PathLike | Iterable[PathLike] | Plugins | None


def opened(plugin: Source) -> Plugins:
    """The plugins that an argument `plugin` names."""
    if isinstance(plugin, Plugins):
        return plugin
    if plugin is None:
        return Plugins()
    if isinstance(plugin, (str, os.PathLike)):
        return Plugins(plugin)
    return Plugins(*plugin)
