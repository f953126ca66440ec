"""Statements that hold of every answer, and what is well-formed in JSON that people edit and other tools write.

Where a statement does not hold, the answer is unknown; in tests, it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

raises = False
"""Whether a statement that does not hold is an error; tests set it."""


def holds(condition: object, what: str) -> bool:
    """Return whether a statement holds.

    Args:
        condition: whether it does.
        what: the statement, for the error.

    Raises:
        AssertionError: it does not, in a test.
    """
    if raises and not condition:
        raise AssertionError(f"not so: {what}")
    return bool(condition)


def objects(values: object) -> list[dict[str, Any]]:
    """Return the objects in a list of JSON; none of what is no list.

    >>> objects([{"rank": 0}, None, 3]), objects("no list")
    ([{'rank': 0}], [])
    """
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def rank_entries(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the ranks in the contents of ``run.json``."""
    return objects(metadata.get("ranks"))


def rank_memory(metadata: Mapping[str, Any], key: str) -> list[int]:
    """Return an amount of bytes in ``run.json``, of each rank that has it among its memory."""
    held = objects([entry.get("memory") for entry in rank_entries(metadata)])
    return [value for value in (memory.get(key) for memory in held) if type(value) is int and value >= 0]
