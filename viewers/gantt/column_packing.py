"""Columns of integers for a page: as compact text where it must be one file, as plain bytes where it is served."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["ColumnStore", "pack", "pack_to_store", "unpack"]

ColumnStore = dict[str, bytes]
"""Columns that stand beside a page, by the names under which it fetches them."""

_TYPES: tuple[tuple[str, type[np.unsignedinteger[Any]]], ...] = (
    ("Uint8", np.uint8),
    ("Uint16", np.uint16),
    ("Uint32", np.uint32),
)
_ESCAPE = 2**32 - 1
"""A gap or duration of 4.29 s and more does not fit 32 bits of nanoseconds: it stands in a list of its own."""


def pack(values: Int64) -> dict[str, Any]:
    """Pack integers of 0 and more into the narrowest unsigned type, all first bytes first, gzipped, as base64.

    Gives ``type`` (the name of JavaScript's typed array, less "Array"), ``data``, and ``escapes``: index and value
    of what no 32 bits hold.
    """
    name, narrow, escapes = _narrow([values])
    # Level 1 packs to 0.61 of the size and level 6 to 0.59, at a sixth of the speed; no time stamp in the file,
    # so that a run gives the same page twice.
    # The upper bytes of times differ less than the lower ones: apart from them, they pack to a fifth less.
    planes = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, narrow.itemsize).T)
    packed = gzip.compress(planes.tobytes(), 1, mtime=0)
    return {"type": name, "data": base64.b64encode(packed).decode("ascii"), "escapes": escapes}


def pack_to_store(name: str, parts: Sequence[NDArray[Any]], store: ColumnStore) -> dict[str, Any]:
    """Put a column, given in parts, into a store, as it is; and give what a page must know to fetch it from there."""
    kind, narrow, escapes = _narrow(parts)
    store[name] = narrow.tobytes()
    return {"type": kind, "from": name, "escapes": escapes}


def _narrow(parts: Sequence[NDArray[Any]]) -> tuple[str, NDArray[np.unsignedinteger[Any]], list[list[int]]]:
    """Give the parts one after the other, as little-endian integers as small as the largest of them allows."""
    top = min(max((int(part.max(initial=0)) for part in parts), default=0), _ESCAPE)
    name, dtype = next((name, dtype) for name, dtype in _TYPES if top <= np.iinfo(dtype).max)
    narrow = np.empty(sum(map(len, parts)), np.dtype(dtype).newbyteorder("<"))
    escapes, at = [], 0
    for part in parts:
        if top == _ESCAPE:
            escapes += [[at + int(index), int(part[index])] for index in np.flatnonzero(part >= _ESCAPE)]
            part = np.minimum(part, _ESCAPE)
        narrow[at : at + len(part)] = part
        at += len(part)
    return name, narrow, escapes


def unpack(column: dict[str, Any]) -> Int64:
    """Undo :func:`pack`: what the page does in columns.js."""
    dtype = np.dtype(dict(_TYPES)[column["type"]]).newbyteorder("<")
    planes = np.frombuffer(gzip.decompress(base64.b64decode(column["data"])), np.uint8).reshape(dtype.itemsize, -1)
    values = np.ascontiguousarray(planes.T).view(dtype).ravel().astype(np.int64)
    for index, value in column["escapes"]:
        values[index] = value
    return values
