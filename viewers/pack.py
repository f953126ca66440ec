"""Columns of integers as compact text, for a page that must be one file."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np

from dptrace.intervals import Int64

__all__ = ["pack", "unpack"]

_TYPES: tuple[tuple[str, type[np.unsignedinteger[Any]]], ...] = (
    ("Uint8", np.uint8),
    ("Uint16", np.uint16),
    ("Uint32", np.uint32),
)
_ESCAPE = 2**32 - 1
"""A gap or duration of 4.29 s and more does not fit 32 bits of nanoseconds: it stands in a list of its own."""


def pack(values: Int64) -> dict[str, Any]:
    """Pack integers of 0 and more into the narrowest unsigned type, gzipped, as base64.

    Gives ``type`` (the name of JavaScript's typed array, less "Array"), ``data``, and ``escapes``: index and value
    of what no 32 bits hold.
    """
    large = np.flatnonzero(values >= _ESCAPE)
    escapes = [[int(index), int(values[index])] for index in large]
    fitting = np.minimum(values, _ESCAPE)
    top = int(fitting.max(initial=0))
    name, dtype = next((name, dtype) for name, dtype in _TYPES if top <= np.iinfo(dtype).max)
    # Level 1 packs to 0.61 of the size and level 6 to 0.59, at a sixth of the speed; no time stamp in the file,
    # so that a run gives the same page twice.
    packed = gzip.compress(fitting.astype(np.dtype(dtype).newbyteorder("<")).tobytes(), 1, mtime=0)
    return {"type": name, "data": base64.b64encode(packed).decode("ascii"), "escapes": escapes}


def unpack(column: dict[str, Any]) -> Int64:
    """Undo :func:`pack`: what the page does in columns.js."""
    dtype = np.dtype(dict(_TYPES)[column["type"]]).newbyteorder("<")
    values = np.frombuffer(gzip.decompress(base64.b64decode(column["data"])), dtype).astype(np.int64)
    for index, value in column["escapes"]:
        values[index] = value
    return values
