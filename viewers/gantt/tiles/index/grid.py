"""The time that categories cover before regular times, for views in which a pixel holds very many intervals.

The finest grid has about a column per block; coarser ones keep every eighth of its times. Running sums nest, so that
they are exact at the times of every grid, and columns of any coarser power of two are a stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.viewers.gantt.tiles.index.blocks import Allocate
from dptrace.viewers.gantt.tiles.index.lane import Lane

__all__ = ["FINER", "Grid", "column_cover", "make_grids", "nested_cover"]

FINER = 32
"""Columns of a grid in a pixel from which a view interpolates; an edge is then off by at most a quarter column."""
_LEAST_BLOCKS = 2048
"""Lanes with fewer blocks have no grid."""
_COARSER = 3
"""Binary logarithm of the ratio of two successive grids."""
_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class Grid:
    """What each category covers before the multiples of 2**level ns from 0 on."""

    level: int
    cover_ns: NDArray[np.int64]
    """Shape (categories, times)."""


def make_grids(lane: Lane, allocate: Allocate = lambda kind, shape: np.empty(shape, kind)) -> list[Grid]:
    """Compute the grids of a lane, finest first."""
    blocks = len(lane.first)
    if blocks < _LEAST_BLOCKS:
        return []
    end = int(lane.reach[-1])
    level = max(0, int(np.log2(max(end, 1) / blocks)))
    count = (end >> level) + 2
    cover = allocate(np.int64, (len(lane.categories), count))
    for low in range(0, count, _AT_ONCE):
        edges = np.arange(low, min(low + _AT_ONCE, count)) << level
        cover[:, low : low + _AT_ONCE] = lane.cover(edges.astype(np.float64))
    grids = [Grid(level, cover)]
    while grids[-1].cover_ns.shape[1] > _LEAST_BLOCKS:
        finer = grids[-1]
        level = finer.level + _COARSER
        # The last time of a grid is after the end of the lane, so what it covers does not change any more.
        times = np.minimum(np.arange((end >> level) + 2) << _COARSER, finer.cover_ns.shape[1] - 1)
        kept = allocate(np.int64, (len(lane.categories), len(times)))
        kept[:] = finer.cover_ns[:, times]
        grids.append(Grid(level, kept))
    return grids


def nested_cover(lane: Lane, grids: list[Grid], level: int, first: int, count: int) -> NDArray[np.float64]:
    """Return the exact cover before the multiples *first* to *first* + *count* of 2**level ns."""
    times = first + np.arange(count + 1)
    fitting = [grid for grid in grids if grid.level <= level]
    if not fitting:
        return lane.cover((times << level).astype(np.float64))
    grid = fitting[-1]
    index = np.minimum(times << (level - grid.level), grid.cover_ns.shape[1] - 1)
    return grid.cover_ns[:, index].astype(np.float64)


def column_cover(lane: Lane, grids: list[Grid], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cover before a view's evenly spaced pixel edges, by a grid where it is fine enough, else exactly."""
    pixel = (edges[-1] - edges[0]) / max(len(edges) - 1, 1)
    fitting = [grid for grid in grids if FINER << grid.level <= pixel]
    if not fitting or edges[0] < 0:
        inside = int(np.searchsorted(edges, 0)) if fitting else len(edges)
        outside = lane.cover(edges[:inside]) if inside else np.zeros((len(lane.categories), 0))
        return outside if inside == len(edges) else np.hstack((outside, _interpolated(fitting[-1], edges[inside:])))
    return _interpolated(fitting[-1], edges)


def _interpolated(grid: Grid, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    size = 1 << grid.level
    times = np.clip(edges / size, 0, grid.cover_ns.shape[1] - 1.000001)
    index = times.astype(np.int64)
    low = grid.cover_ns[:, index]
    between: NDArray[np.float64] = low + (grid.cover_ns[:, index + 1] - low) * (times - index)
    return between
