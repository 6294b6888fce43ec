"""Masks and weights over recorded batches."""

from __future__ import annotations

import os
from typing import Iterable, Optional, Union

import numpy as np

from . import _native
from .plugins import PathLike, Source, opened


def replay(
    files: Union[PathLike, Iterable[PathLike]],
    config: Optional[PathLike] = None,
    plugin: Source = None,
    *,
    out: Optional[PathLike] = None,
    device: str = "cpu",
    dtype: str = "f32",
) -> list[dict[str, Union[np.ndarray, float]]]:
    """Runs masks and weights over batch files in order, with their state, to try thresholds without training: what ``host replay`` does.

    ``config`` is a TOML file, of which the ``[[mask]]`` and ``[[weight]]`` tables count; without it, they are those of the one recipe that ``plugin``
    carries. ``plugin`` is as for ``Mask``. With ``out``, a file per batch, named like it, is written to that folder. ``device`` may be ``"cuda:0"``, whose
    memory the large arrays are copied to, with features rounded to ``dtype``: ``f32``, ``bf16`` or ``f16``.

    For each file a dict of what ``host replay`` writes: ``keep`` (uint8), ``weights`` (float32) where there are any, each ``[B, T]``, and all that was reported under
    ``id/name``, ``[B, T]`` or one number.

    Raises ``FileNotFoundError``, and ``CapoError`` for a file that is no batch, a component's own sentence, a device that fails.
    """
    return [result for result, _ in steps(files, config, plugin, out, device, dtype)]


def steps(
    files: Union[PathLike, Iterable[PathLike]],
    config: Optional[PathLike],
    plugin: Source,
    out: Optional[PathLike],
    device: str,
    dtype: str,
) -> list[tuple[dict[str, Union[np.ndarray, float]], str]]:
    """The same with a line for a person beside each."""
    paths = [files] if isinstance(files, (str, os.PathLike)) else files
    config = None if config is None else os.fspath(config)
    out = None if out is None else os.fspath(out)
    return _native.replay(opened(plugin)._native, [os.fspath(path) for path in paths], config, device, dtype, out)
