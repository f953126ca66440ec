"""The lanes of a chart with their indices, and what else a server must know; in a mapped file or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.names import shortened
from dptrace.core.array_file import ArrayWriter, CorruptArrayFile, MappedArrays, open_arrays
from dptrace.core.intervals import unique
from dptrace.viewers.gantt.chart import Chart, Role
from dptrace.viewers.gantt.chart import Lane as ChartLane
from dptrace.viewers.gantt.tiles.index import Allocate, Grid, Lane, LaneColumns, LaneIndex, index_lane, make_grids

STREAM = "stream"
"""Role of the lanes of streams, which are made on demand."""
RECORDED = (Role.COMPUTE.value, Role.COLLECTIVES.value, Role.MEMORY.value)
"""Roles of the lanes of recorded intervals."""
EXTRA = ("exposed_ns", "wait_ns", "waits_for")
"""Columns of collectives."""


@dataclass(frozen=True, slots=True)
class StoredLane:
    """A lane of a track, its grids, and its further columns by name."""

    track: int
    role: str
    lane: Lane
    grids: list[Grid]
    extra: dict[str, NDArray[np.int64]]


class _About(msgspec.Struct):
    """What a store knows besides its arrays."""

    file: str
    """Name of the file, so that a copy of another entry is not read."""
    names: list[str]
    collectives: list[Any]
    streams: list[int]
    bounds: list[list[int]]
    """Of each track: start of each step and end of the last one."""
    lanes: list[tuple[int, str, int, list[int], list[int], list[str]]] = []
    """Of each lane: track, role, number of intervals, categories, levels of its grids, names of its further columns."""
    files: list[str] = []
    """Names of the files."""


@dataclass(frozen=True)
class TileStore:
    """All lanes of a chart; the first ones are those of the page, in its order."""

    lanes: list[StoredLane]
    about: _About
    ahead: Callable[[NDArray[Any]], None] = field(default=lambda array: None)
    """Reads a part of an array that will be needed soon."""
    files: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    """What else is kept with the lanes, by name."""

    @property
    def names(self) -> list[str]:
        """Names of kernels and labels, by number."""
        return self.about.names

    @cached_property
    def shorts(self) -> dict[int, str]:
        """Short names of kernels by number, where they differ from the names."""
        return shortened(self.names)

    def of_role(self, role: str) -> Iterator[StoredLane]:
        """Yield the lanes of a role, track by track."""
        return (lane for lane in self.lanes if lane.role == role)


Files: TypeAlias = Callable[[TileStore], Mapping[str, bytes]]
"""Returns what is kept with a store, by name, from its lanes."""


def _no_files(store: TileStore) -> Mapping[str, bytes]:
    return {}


def build(
    chart: Chart,
    collectives: list[Any],
    files: Files = _no_files,
    allocate: Allocate = lambda kind, shape: np.empty(shape, kind),
) -> TileStore:
    """Index all lanes of a chart.

    Args:
        collectives: the chart's collectives as the page's data has them.
        files: what else to keep.
    """
    ids = unique(np.concatenate([np.zeros(0, np.int64), *(unique(lane.stream) for lane in chart.lanes)]))
    bounds = [track.bounds_ns.tolist() for track in chart.tracks]
    about = _About("", list(chart.names), collectives, ids.tolist(), bounds)
    lanes = [_indexed(lane, np.searchsorted(ids, lane.stream), allocate) for lane in chart.lanes]
    store = TileStore(lanes, about)
    for name, content in files(store).items():
        store.files[name] = allocate(np.uint8, (len(content),))
        store.files[name][:] = np.frombuffer(content, np.uint8)
    return store


def _indexed(lane: ChartLane, stream: NDArray[np.intp], allocate: Allocate) -> StoredLane:
    columns = LaneColumns(lane.start_ns, lane.duration_ns, lane.category, lane.name, stream)
    asked = Lane(index_lane(columns, allocate))
    grids = make_grids(asked, allocate)
    extra = {}
    if lane.role is Role.COLLECTIVES:
        for name in EXTRA:
            extra[name] = allocate(np.int64, (len(lane),))
            extra[name][:] = getattr(lane, name)
    return StoredLane(lane.track, lane.role.value, asked, grids, extra)


def save(path: Path, chart: Chart, collectives: list[Any], files: Files = _no_files) -> None:
    """Write the store of a chart to a file, which :func:`open_store` maps.

    Raises:
        OSError: the file can't be written, or there is no room for it.
    """
    with ArrayWriter(path) as writer:
        store = build(chart, collectives, files, writer.allocate)
        store.about.file, store.about.files = path.name, list(store.files)
        store.about.lanes = [
            (
                *(lane.track, lane.role, lane.lane.count, list(lane.lane.categories)),
                *([grid.level for grid in lane.grids], list(lane.extra)),
            )
            for lane in store.lanes
        ]
        writer.finish(msgspec.json.encode(store.about))


def open_store(path: Path) -> TileStore:
    """Map a file of :func:`save`.

    Raises:
        CorruptArrayFile: it is cut off, changed, or of another kind.
        OSError: it can't be read.
    """
    mapped = open_arrays(path)
    try:
        about = msgspec.json.decode(mapped.about, type=_About)
        if about.file != path.name:
            raise CorruptArrayFile(f"it is {about.file}")
        arrays = iter(mapped.arrays)
        lanes = [_mapped(entry, arrays, mapped) for entry in about.lanes]
        files = {name: next(arrays) for name in about.files}
    except (msgspec.MsgspecError, StopIteration, ValueError, IndexError) as error:
        raise CorruptArrayFile(str(error)) from None
    return TileStore(lanes, about, mapped.read_ahead, files)


def _mapped(entry: tuple[Any, ...], arrays: Iterator[NDArray[Any]], mapped: MappedArrays) -> StoredLane:
    track, role, count, categories, levels, extra = entry
    heads, blocks = next(arrays), next(arrays)
    lane = Lane(LaneIndex(count, tuple(categories), heads, blocks))
    grids = [Grid(level, next(arrays)) for level in levels]
    for array in (heads, *(grid.cover_ns for grid in grids)):
        mapped.read_ahead(array)
    return StoredLane(track, role, lane, grids, {name: next(arrays) for name in extra})


# Keep the index of a chart in a file, so that the next time it is only mapped.


def kept_store(entry: Path | None, contents: Callable[[], tuple[Chart, list[Any], Files]]) -> TileStore:
    """Return the store of a chart: from a file, written first if it is missing or damaged; else in memory.

    Args:
        entry: the file; None for none. Where it can't be written, memory holds the store.
        contents: makes what :func:`build` takes; not called where the file exists.
    """
    if entry is not None:
        with suppress(OSError, CorruptArrayFile):
            return open_store(entry)
    made = contents()
    if entry is not None:
        with suppress(OSError, CorruptArrayFile):
            save(entry, *made)
            return open_store(entry)
    return build(*made)
