"""Bytes of answers: shares of columns in one byte each, and columns of integers as byte planes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Message", "compressed", "quantized"]

_LEVEL = 1
"""Of zlib: higher ones take several times as long and save little."""
_GZIP = 31


def quantized(cover_ns: NDArray[np.float64], column_ns: float) -> NDArray[np.uint8]:
    """Return the shares of columns as 0 to 255 from the cover before their edges.

    The running sums are rounded, not the shares, so that errors do not add up over columns. Half is rounded up and the
    result clipped: 256 of a full column would be 0 in a byte. A column with any time has at least 1.
    """
    shares = np.diff(np.floor(cover_ns * (255 / column_ns) + 0.5))
    some = np.diff(cover_ns) > 1e-6 * column_ns
    return np.clip(shares, some, 255).astype(np.uint8)


def compressed(body: bytes) -> bytes:
    """Compress with gzip. Always worth it: a connection through a tunnel looks like one on the machine."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return deflate.compress(body) + deflate.flush()


class Message:
    """A head in JSON and arrays after it, whose types and lengths follow from the head."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, values: NDArray[Any], kind: str) -> None:
        """Append an array as planes of bytes, which compress better: all first bytes, then all second ones, ..."""
        array = np.ascontiguousarray(values.astype(kind))
        planes = array.view(np.uint8).reshape(-1, array.itemsize)
        self._parts.append(np.ascontiguousarray(planes.T).tobytes())

    def encode(self, head: Any) -> bytes:
        """Return length of the head, head, arrays."""
        text = json.dumps(head, separators=(",", ":")).encode()
        return b"".join((len(text).to_bytes(4, "little"), text, *self._parts))
