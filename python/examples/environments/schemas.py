"""Schemas of Python functions, key for key as transformers' `get_json_schema` writes them, which TRL shows to a model for `tools`."""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

TYPES = {
    **{int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"},
    **{list: "array", tuple: "array", dict: "object"},
}
ARGUMENT = r"[ \t]*(\w+)(?:[ \t]*\([^()\n]*\))?:\s*"


def of_type(hint: Any) -> dict[str, Any]:
    """The schema of a type.

    Raises:
        TypeError: For a type that JSON does not have.
    """
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in TYPES:
        return {"type": TYPES[hint]}
    if origin is typing.Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        values = list(inside) or [member.value for member in hint]
        kinds = list(dict.fromkeys(TYPES[type(value)] for value in values))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}
    if origin in (typing.Union, types.UnionType):
        schemas = [of_type(each) for each in inside if each is not type(None)]
        if len(schemas) == 1:
            [schema] = schemas
        elif all(each.keys() == {"type"} and isinstance(each["type"], str) for each in schemas):
            names = sorted({each["type"] for each in schemas})
            schema = {"type": names[0] if len(names) == 1 else names}
        else:
            schema = {"anyOf": schemas}
        return schema | ({"nullable": True} if type(None) in inside else {})
    if origin is list:
        return {"type": "array", "items": of_type(inside[0])}
    if origin is tuple and ... not in inside and len(inside) > 1:
        return {"type": "array", "prefixItems": [of_type(each) for each in inside]}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(inside[1])}
    raise TypeError(
        f"`{hint}` has no schema (use int, float, str, bool, list, dict, Literal, Enum, or a union of them)"
    )


def of_arguments(text: str) -> dict[str, str]:
    """What the `Args:` of a docstring say of each name: lines up to the next name that is indented as deep as the first."""
    found = re.search(r"\n\s*Args:\n(.*?)\s*(?:\n\s*(?:Returns|Raises):|\Z)", text, re.DOTALL)
    lines = [line for line in found[1].split("\n") if line.strip()] if found else []
    depth = lambda line: len(line) - len(line.lstrip())
    said: dict[str, str] = {}
    for line in lines:
        name = re.match(ARGUMENT, line) if depth(line) <= depth(lines[0]) else None
        if name:
            last = name[1]
            said[last] = line[name.end() :].strip()
        elif said:
            said[last] = f"{said[last]} {line.strip()}".strip()
    return said


def of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function or a bound method.

    Raises:
        TypeError: Where the docstring, the type of an argument or its description is missing, or a type has no schema.
    """
    name, text = function.__name__, (inspect.getdoc(function) or "").strip()
    if not text:
        raise TypeError(f"`{name}` has no docstring (say what it does, and under `Args:` what its arguments are)")
    hints, said, properties, required = typing.get_type_hints(function), of_arguments(text), {}, []
    for argument in inspect.signature(function).parameters.values():
        missing = "type" if argument.name not in hints else "description" if argument.name not in said else None
        if missing:
            raise TypeError(f"the argument `{argument.name}` of `{name}` has no {missing} (a model needs both)")
        schema, description = of_type(hints[argument.name]), said[argument.name]
        choices = re.search(r"\(choices:\s*(.*?)\)\s*$", description, re.IGNORECASE)
        if choices:
            schema["enum"], description = json.loads(choices[1]), description[: choices.start()].strip()
        properties[argument.name] = schema | {"description": description}
        if argument.default is argument.empty:
            required.append(argument.name)
    parameters = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    about = re.split(r"\n\s*(?:Args|Returns|Raises):", text)[0].strip()
    whole = {"name": name, "description": about, "parameters": parameters}
    try:
        whole["return"] = of_type(hints["return"])
    except (KeyError, TypeError):
        return {"type": "function", "function": whole}
    returns = re.search(r"\n\s*Returns:\n\s*(.*?)\s*(?:\n\s*Raises:|\Z)", text, re.DOTALL)
    if returns:
        whole["return"]["description"] = returns[1]
    return {"type": "function", "function": whole}
