"""What a page may ask for; anything else is refused before it costs anything."""

from __future__ import annotations

import json
import zlib
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.errors import DptraceError

MAX_BODY = 1 << 20
"""Bytes of a request at most."""
MAX_CELLS = 1 << 24
"""Lanes times columns of an answer at most."""

_Time = Annotated[float, msgspec.Meta(ge=-(2.0**62), le=2.0**62)]
_Length = Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Width = Annotated[int, msgspec.Meta(ge=1, le=1 << 15)]
_Lanes = Annotated[list[_Lane], msgspec.Meta(max_length=1 << 14)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class BadRequest(DptraceError):
    """The page asked for something that does not exist."""


class TilesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Shares of columns of 2**level ns; each run is a lane and its first and last tile."""

    level: Annotated[int, msgspec.Meta(ge=0, le=50)]
    runs: Annotated[
        list[tuple[_Lane, Annotated[int, msgspec.Meta(ge=0, le=2**50)], Annotated[int, msgspec.Meta(ge=0, le=2**50)]]],
        msgspec.Meta(max_length=1 << 14),
    ]


class Window(msgspec.Struct, forbid_unknown_fields=True):
    """A range of time."""

    start: _Time
    end: _Time

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        if not self.start < self.end:
            raise ValueError("the range is empty")


class ViewRequest(Window, forbid_unknown_fields=True):
    """Shares of the pixel columns of some lanes, and intervals of some."""

    width: _Width
    columns: _Lanes
    raw: _Lanes
    shortest: _Length

    def __post_init__(self) -> None:
        """Refuse an answer that no screen can show."""
        super().__post_init__()
        if self.width * len(self.columns) > MAX_CELLS:
            raise ValueError("there are too many columns")


class IntervalAtRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The interval of a lane at a time, or within *slack* ns of it."""

    lane: _Lane
    time: _Time
    slack: _Length


class RowsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Intervals by lane and position."""

    places: Annotated[
        list[tuple[_Lane, Annotated[int, msgspec.Meta(ge=0, le=2**40)]]], msgspec.Meta(max_length=1 << 14)
    ]


class BusyRequest(Window, forbid_unknown_fields=True):
    """The time that each category of a lane covers in a range."""

    lane: _Lane


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Intervals of the lanes of some roles, by the numbers of their names or of their categories."""

    roles: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)]
    field: Literal["name", "category"]
    keys: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31)], ...], msgspec.Meta(max_length=1 << 14)]


class SearchRequest(Window, forbid_unknown_fields=True):
    """Intervals whose name contains a text, or those *wanted*: columns of some lanes, number and time in the range."""

    width: _Width
    lanes: _Lanes
    text: _Text = ""
    wanted: Wanted | None = None

    def __post_init__(self) -> None:
        """Refuse a search for nothing."""
        super().__post_init__()
        if not self.text and self.wanted is None:
            raise ValueError("there is nothing to search for")


class NextHitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The hit of a text after a time and interval, or with direction -1 the one before."""

    text: _Text
    start: _Time
    number: Annotated[int, msgspec.Meta(ge=-1, le=2**60)]
    direction: Annotated[int, msgspec.Meta(ge=-1, le=1)]


class CallsRequest(Window, forbid_unknown_fields=True):
    """The intervals of a range, of one kernel or with a text in their names, by name, rank, start or duration."""

    by: Literal["name", "rank", "start", "duration"]
    down: bool
    kernel: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    text: Annotated[str, msgspec.Meta(max_length=200)] = ""


class StreamsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The streams of a track."""

    track: _Lane


Request = TypeVar("Request")


def decoded(body: bytes, kind: type[Request]) -> Request:
    """Return a request.

    Raises:
        BadRequest: it is none of this kind.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(str(error)) from None


# Bytes of answers: shares of columns in one byte each, and columns of integers as byte planes.


_LEVEL = 1
"""Of zlib: higher ones take several times as long and save little."""
_GZIP = 31
"""zlib's code for the largest window, in a gzip wrapper."""


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
