"""How a rank's file is kept: in the cache, and in memory beside those of the other ranks.

The ranks of a job have the same names, labels and groups, and most collectives of a rank are alike. A group lists
thousands of ranks, and each collective of it has the list: both are stored once a file, and in memory one object stands
for all that are equal.
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
    """A file as it is written: without its collectives, of which the different ones, and the ranks of their groups."""

    file: RankFile
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group."""
    different: tuple[Collective, ...]
    """The collectives that differ, without ranks."""
    group: NDArray[np.int32]
    """Of each of these: the index of its group."""
    collective: tuple[NDArray[np.int32], ...]
    """Of each device: the index of each of its collectives among these."""

    @classmethod
    def of(cls, file: RankFile) -> StoredFile:
        """Return a file in the form in which it is written."""
        groups, different = dict[tuple[int, ...], int](), dict[tuple[Collective, int], int]()
        by_id: dict[int, int] = {}
        numbers = list[NDArray[np.int32]]()

        def without_collectives(timeline: Timeline) -> Timeline:
            own = []
            for collective in timeline.collectives:
                ranks = collective.ranks
                if id(ranks) not in by_id:
                    by_id[id(ranks)] = groups.setdefault(ranks, len(groups))
                key = replace(collective, ranks=()), by_id[id(ranks)]
                own.append(different.setdefault(key, len(different)))
            numbers.append(np.array(own, np.int32))
            return replace(timeline, collectives=())

        bare = replace(file._each(without_collectives), further={})
        group = np.array([group for _, group in different], np.int32)
        return cls(bare, tuple(groups), tuple(collective for collective, _ in different), group, tuple(numbers))

    def whole(self) -> RankFile:
        """Return the file."""
        pairs, numbers = zip(self.different, self.group.tolist(), strict=True), iter(self.collective)
        each = [replace(collective, ranks=self.groups[group]) for collective, group in pairs]

        def with_collectives(timeline: Timeline) -> Timeline:
            return replace(timeline, collectives=tuple(each[number] for number in next(numbers).tolist()))

        return self.file._each(with_collectives)


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
        different = {id(collective): collective for collective in collectives}
        lists = {id(collective.ranks): collective.ranks for collective in different.values()}
        ranks_of = {number: self._one(ranks) for number, ranks in lists.items()}
        shared = {}
        for number, collective in different.items():
            ranks = ranks_of[id(collective.ranks)]
            key = (id(ranks), replace(collective, ranks=()))
            if key not in self._known:
                self._known[key] = replace(collective, ranks=ranks)
            shared[number] = self._known[key]
        return tuple(shared[id(collective)] for collective in collectives)
