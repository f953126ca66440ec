"""What a trace file says of its run in its first bytes: its rank of how many, and when it begins."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

from dptrace.errors import TraceError
from dptrace.readers.formats import DATABASE_SUFFIXES
from dptrace.readers.nsight_export import work_in
from dptrace.readers.source import Source, rank_in_name
from dptrace.readers.storage import DAMAGE
from dptrace.readers.stream import open_decompressed

_HEAD = 1 << 18
"""Bytes of a trace in which its rank and its first time are; of a machine with many GPUs, these come first."""
_RANK_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{(.{0,400})', re.DOTALL)
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_FIRST_TIME = re.compile(rb'"ts"\s*:\s*"?(\d{1,19}(?:\.\d{1,9})?)')
_EPOCH_NS = 10**18
"""Times below this, of the year 2001, count from something else."""


class Stated(msgspec.Struct, frozen=True):
    """What a trace file says of its run; None and 0 where it does not."""

    file: Source
    rank: int | None = None
    world_size: int = 0
    begin_ns: int = 0
    end_ns: int = 0


def head(source: Source, size: int = _HEAD) -> bytes:
    """Return the first bytes of a file, decompressed; as many as can be read."""
    start = b""
    with suppress(OSError, TraceError, *DAMAGE), open_decompressed(source) as stream:
        while len(start) < size and (part := stream.read1(size - len(start))):
            start += part
    return start


def stated(file: Source) -> Stated:
    """Return what a file says of its run."""
    rank = rank_in_name(file.address)
    if file.name.lower().endswith(DATABASE_SUFFIXES):
        work = work_in(file)
        return Stated(file, rank) if work is None else Stated(file, rank, 0, work.begin_ns, work.end_ns)
    start = head(file)
    info = _RANK_INFO.search(start)
    numbers = (
        {key: re.search(rb'"%s"\s*:\s*(\d{1,7})\b' % key, info[1]) for key in (b"rank", b"world_size")} if info else {}
    )
    if own := numbers.get(b"rank"):
        rank = int(own[1])
    size = numbers.get(b"world_size")
    base, first = _BASE.search(start), _FIRST_TIME.search(start)
    ns = round(float(first[1]) * 1000) + (int(base[1]) if base else 0) if first else 0
    ns = ns if ns > _EPOCH_NS else 0
    return Stated(file, rank, int(size[1]) if size else 0, ns, ns)
