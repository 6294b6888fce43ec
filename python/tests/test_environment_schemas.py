"""Schemas of Python functions as tools of an environment, compared with those of transformers."""

import json
from enum import Enum
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Literal, Optional, Union

import pytest

from conftest import ROOT


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def plain(a: int, b: float = 1.0, c: str = "", d: bool = False):
    """One line.

    Args:
        a: The first.
        b (float, *optional*): The second: with a colon,
            and a second line.
        c: The third (choices: ["x", "y"])
        d: The fourth.
    """


def nested(a: list[int], b: dict[str, float], c: tuple[int, str], d: list[Literal["p", "q"]], e: Colour, f: list, g: dict) -> dict[str, int]:
    """Two lines
    of them.

    And a paragraph.

    Args:
        a: A.
        b: B.

        c: C.
        d: D.
        e: E.
        f: F.
        g: G.

    Returns:
        What there is,
        in two lines.

    Raises:
        ValueError: Never.
    """


def unions(a: Optional[int], b: Union[int, str], c: int | None = None, d: Union[list[int], str, None] = None, e: Literal[1, "x"] = 1, f: Any = None) -> str:  # noqa: UP007, UP045
    """Unions.

    Args:
        a: A.
        b: B.
        c: C.
        d: D.
        e: E.
        f: F.
    """


def nothing() -> None:
    """Takes nothing."""


def test_schemas_equal_those_of_transformers():
    get_json_schema = pytest.importorskip("transformers.utils", reason="transformers is not installed").get_json_schema
    spec = spec_from_file_location("schemas", ROOT / "python/examples/environments/schemas.py")
    schemas = module_from_spec(spec)
    spec.loader.exec_module(schemas)
    for function in (plain, nested, unions, nothing):
        ours, theirs = schemas.of_function(function), get_json_schema(function)
        assert json.dumps(ours) == json.dumps(theirs), function.__name__
