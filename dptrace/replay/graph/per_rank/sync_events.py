"""Recorded synchronizations: which stream a call lets wait for which, where CUPTI was asked to say so.

torch.profiler writes them with ``_ExperimentalConfig(enable_cuda_sync_events=True)``. Figures do not need them, so they
are read in a separate pass.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dptrace.core.intervals import EMPTY, Int64
from dptrace.readers.kineto.columns import EventSink
from dptrace.readers.kineto.event_schema import as_count
from dptrace.readers.source import Source

__all__ = ["NOT_RECORDED", "SyncEvents", "read_sync_events"]

NOT_RECORDED = -1
_NONE = EMPTY[0]


class SyncEvents(msgspec.Struct, frozen=True):
    """The synchronizations of one file; one entry per event in each column."""

    correlation: Int64 = msgspec.field(default_factory=lambda: _NONE)
    """Id of the call that made it."""
    device: Int64 = msgspec.field(default_factory=lambda: _NONE)
    stream: Int64 = msgspec.field(default_factory=lambda: _NONE)
    """The stream that waits, or that the host waits for; NOT_RECORDED without one."""
    wait_on_stream: Int64 = msgspec.field(default_factory=lambda: _NONE)
    """The stream that it waits for, or NOT_RECORDED."""
    record: Int64 = msgspec.field(default_factory=lambda: _NONE)
    """Id of the call that recorded the event, or NOT_RECORDED."""

    def __len__(self) -> int:
        return len(self.correlation)


class _Args(msgspec.Struct, frozen=True, gc=False):
    # Of any type: an odd argument counts as absent.
    correlation: Any = None
    device: Any = None
    stream: Any = None
    wait_on_stream: Any = None
    wait_on_cuda_event_record_corr_id: Any = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    cat: Any = None
    args: _Args | None = None


_EVENTS = msgspec.json.Decoder(list[_Event])
_MARK = b"cuda_sync"


class _SyncColumns(EventSink):
    """Collects the synchronizations of a file; text without any is not decoded."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def decode(self, text: bytes) -> None:
        if _MARK not in text:
            return
        for event in _EVENTS.decode(text):
            if event.cat == "cuda_sync" and event.args is not None:
                numbers = (as_count(getattr(event.args, name)) for name in _Args.__struct_fields__)
                self.rows.append(tuple(NOT_RECORDED if number is None else number for number in numbers))


def read_sync_events(source: Source) -> SyncEvents:
    """Read the recorded synchronizations of a file; none in most."""
    # Few commands read a file again.
    from dptrace.readers.kineto.reader import read_into

    columns = _SyncColumns()
    read_into(source, columns)
    return SyncEvents(*np.array(columns.rows, np.int64).reshape(-1, len(_Args.__struct_fields__)).T.copy())
