"""How a rank's file is kept: in the cache, and in memory beside those of the other ranks.

The ranks of a job have the same names, labels and groups. A group lists thousands of ranks, and each collective of it
has the list: it is stored once a file, and in memory one object stands for all that are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.notes import Note
from dptrace.core.units import sanitize
from dptrace.readers.trace import Trace
from dptrace.timeline.model import Collective, Timeline

Value = TypeVar("Value")


class RankFile(msgspec.Struct, frozen=True):
    """One file with its timelines and figures, small enough to be sent between processes."""

    path: str
    rank: int | None
    """From the file itself; None where the file does not contain it."""
    world_size: int
    devices: tuple[DeviceFigures, ...]
    damage: tuple[Note, ...] = ()
    """What was truncated, repaired or dropped while reading, a sentence each."""
    digest: bytes = b""
    """Of its rank and events: a copy has the same."""
    further: dict[str, Any] = {}
    """What else was read in the same pass and is not in the cache, by the name of its reading; it is not stored."""

    def with_path(self, address: str) -> RankFile:
        """Return a copy with the path that the user gave in this call."""
        path = sanitize(address)
        return replace(self._each(lambda timeline: replace(timeline, path=path)), path=path)

    def only_communication(self) -> RankFile:
        """Drop all intervals that are not communication."""
        return replace(self, devices=tuple(device.only_communication() for device in self.devices))

    def _each(self, change: Callable[[Timeline], Timeline]) -> RankFile:
        devices = tuple(replace(device, timeline=change(device.timeline)) for device in self.devices)
        return replace(self, devices=devices)


def digest_of(trace: Trace) -> bytes:
    """Return what two files share only where they hold the same events of one rank."""
    digest = blake2b(repr((trace.rank, trace.names)).encode("utf-8", "surrogateescape"), digest_size=16)
    for column in (trace.start_ns, trace.end_ns, trace.name):
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()


class StoredFile(msgspec.Struct, frozen=True):
    """A file as it is written: its collectives without the ranks of their groups, and these."""

    file: RankFile
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group."""
    group: tuple[NDArray[np.int32], ...]
    """Of each device: the index of the group of each collective."""

    @classmethod
    def of(cls, file: RankFile) -> StoredFile:
        """Return a file in the form in which it is written."""
        groups, numbers = dict[tuple[int, ...], int](), list[NDArray[np.int32]]()
        by_id: dict[int, int] = {}

        def without_ranks(timeline: Timeline) -> Timeline:
            lists = [collective.ranks for collective in timeline.collectives]
            for ranks in lists:
                if id(ranks) not in by_id:
                    by_id[id(ranks)] = groups.setdefault(ranks, len(groups))
            numbers.append(np.array([by_id[id(ranks)] for ranks in lists], np.int32))
            return replace(timeline, collectives=tuple(replace(c, ranks=()) for c in timeline.collectives))

        bare = replace(file._each(without_ranks), further={})
        return cls(bare, tuple(groups), tuple(numbers))

    def whole(self) -> RankFile:
        """Return the file."""
        numbers = iter(self.group)

        def with_ranks(timeline: Timeline) -> Timeline:
            pairs = zip(timeline.collectives, next(numbers).tolist(), strict=True)
            return replace(timeline, collectives=tuple(replace(c, ranks=self.groups[group]) for c, group in pairs))

        return self.file._each(with_ranks)


class SharedValues:
    """Replaces what is equal in the files of several ranks by one object; call it with each file."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, file: RankFile) -> RankFile:
        """Return an equal file."""
        return file._each(self._timeline)

    def _timeline(self, timeline: Timeline) -> Timeline:
        host = timeline.host
        return replace(
            timeline,
            names=self._one(tuple(map(self._one, timeline.names))),
            collectives=self._collectives(timeline.collectives),
            windows=replace(timeline.windows, names=self._one(timeline.windows.names)),
            host=replace(host, labels=tuple(map(self._one, host.labels))),
            gpu=self._one(timeline.gpu),
        )

    def _one(self, value: Value) -> Value:
        one: Value = self._known.setdefault(value, value)
        return one

    def _collectives(self, collectives: tuple[Collective, ...]) -> tuple[Collective, ...]:
        """Share collectives and their lists of ranks, each of which is hashed once: it may be long."""
        lists = {id(collective.ranks): collective.ranks for collective in collectives}
        ranks_of = {number: self._one(ranks) for number, ranks in lists.items()}
        shared = []
        for collective in collectives:
            ranks = ranks_of[id(collective.ranks)]
            key = (id(ranks), replace(collective, ranks=()))
            if key not in self._known:
                self._known[key] = replace(collective, ranks=ranks)
            shared.append(self._known[key])
        return tuple(shared)
