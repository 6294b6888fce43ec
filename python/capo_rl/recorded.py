"""Masks and weights over recorded batches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from . import _native
from .plugins import PathLike, Source, opened


def replay(
    files: PathLike | Iterable[PathLike],
    config: PathLike | None = None,
    plugin: Source = None,
    *,
    out: PathLike | None = None,
    device: str = "cpu",
    dtype: str = "f32",
) -> list[dict[str, NDArray[Any] | float]]:
    """Runs masks and weights over batch files in order, with their state: what `host replay` does.

    Thresholds can be tried with it without training.

    Args:
        files: Batch files, in the order of their steps.
        config: A TOML file with `[[mask]]` and `[[weight]]` tables; its other tables are not used. Without a file, the
            tables are those of the one recipe that `plugin` carries.
        plugin: As for `Mask`.
        out: A folder for the results: one file per batch, with the batch's name.
        device: `cpu`, or a CUDA device such as `cuda:0`, to whose memory the large arrays are copied.
        dtype: Type to which features are rounded on a CUDA device: `f32`, `bf16` or `f16`.

    Returns:
        For each file a dict of what `host replay` writes: `token_mask` (uint8) and, where there are any, `weights`
        (float32), each `[B, T]`; and all that was reported under `id/name`, `[B, T]` or one number.

    Raises:
        FileNotFoundError: A file is missing.
        CapoError: A file is not a batch, a component fails, or a device fails.
    """
    return [result for result, _ in steps(files, config, plugin, out, device, dtype)]


def steps(
    files: PathLike | Iterable[PathLike],
    config: PathLike | None,
    plugin: Source,
    out: PathLike | None,
    device: str,
    dtype: str,
) -> list[tuple[dict[str, NDArray[Any] | float], str]]:
    """The results of `replay`, each with a line for a person."""
    paths = [files] if isinstance(files, (str, os.PathLike)) else files
    config = None if config is None else os.fspath(config)
    out = None if out is None else os.fspath(out)
    return _native.replay(opened(plugin)._native, [os.fspath(path) for path in paths], config, device, dtype, out)
