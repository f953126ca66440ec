"""``dptrace schema``: the JSON schema of a verb's answer, from its shape in :mod:`dptrace.commands.answers`."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

from dptrace.commands.shared.output import emit, json_text
from dptrace.core.table import Column
from dptrace.core.units import listed
from dptrace.errors import UsageError

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_COLUMN_TYPES: dict[str, Any] = {
    "int": int,
    "Int64": int | None,
    "float": float | None,
    "str": str,
    "string": str | None,
    "bool": bool,
    "list": list[str],
    "dict": dict[str, object],
    "tuple of int": list[int],
}
"""The types of :class:`dptrace.core.table.Column`: a missing number is null, as NaN is in JSON."""


@click.command()
@click.argument("verb", required=False)
def command(verb: str | None) -> None:
    """Print the JSON schema of what VERB prints with --json; without VERB, list the verbs that have one.

    \b
    Examples:
      dptrace schema
      dptrace schema analyze > analyze.schema.json
    """
    from dptrace.commands.answers import ANSWERS

    if verb is None:
        click.echo("\n".join(ANSWERS))
        return
    if verb not in ANSWERS:
        raise UsageError(f"{verb}: has no JSON. Verbs that have: {listed([*ANSWERS], len(ANSWERS))}.")
    emit(json_text(schema_of(verb)), None)


def schema_of(verb: str) -> dict[str, Any]:
    """Return the JSON schema of a verb's answer."""
    from dptrace.commands.answers import ANSWERS

    return {"$schema": _DIALECT, "title": f"dptrace {verb} --json", **json_schema(ANSWERS[verb])}


def json_schema(shape: Any) -> dict[str, Any]:
    """Return the JSON schema of a shape.

    Args:
        shape: a type; a constant; a tuple of alternatives; a list with the shape of its elements; ``{str: shape}`` for
            an object with any keys; a Column; or an object's shapes by its keys: several in one text share a shape,
            and one that ends in a question mark may be missing. No other key is allowed.
    """
    if isinstance(shape, Column):
        return {**json_schema(_COLUMN_TYPES[shape.dtype]), "description": shape.doc}
    if isinstance(shape, tuple):
        kinds = [json_schema(one) for one in shape]
        plain = all(kind.keys() == {"type"} for kind in kinds)
        return {"type": [kind["type"] for kind in kinds]} if plain else {"anyOf": kinds}
    if isinstance(shape, list):
        return {"type": "array", "items": json_schema(shape[0])}
    if isinstance(shape, dict):
        return _object(shape)
    if shape is object:
        return {}
    if isinstance(shape, type) and shape in _TYPES:
        return {"type": _TYPES[shape]}
    return _of_type(shape) if get_origin(shape) or is_dataclass(shape) else {"const": shape}


def _object(shape: Mapping[Any, Any]) -> dict[str, Any]:
    if str in shape:
        return {"type": "object", "additionalProperties": json_schema(shape[str])}
    keys = {key: one for names, one in shape.items() for key in names.split()}
    return {
        "type": "object",
        "properties": {key.rstrip("?"): json_schema(one) for key, one in keys.items()},
        "required": [key for key in keys if not key.endswith("?")],
        "additionalProperties": False,
    }


def _of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a dataclass or of a type with arguments: a union, a list, a tuple, a dictionary."""
    if is_dataclass(hint):
        return json_schema(get_type_hints(hint))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return json_schema(arguments)
    if origin is dict:
        return json_schema({str: arguments[1]})
    if origin in (list, tuple):
        return json_schema([arguments[0]])
    return {"enum": list(arguments)}  # Literal
