"""What ``run.json`` says of the ranks of a run, whose entries people edit and other tools write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def objects(values: object) -> list[dict[str, Any]]:
    """Return the objects in a list of JSON; none of what is no list.

    >>> objects([{"rank": 0}, None, 3]), objects("no list")
    ([{'rank': 0}], [])
    """
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def rank_entries(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the ranks in the contents of ``run.json``."""
    return objects(metadata.get("ranks"))
