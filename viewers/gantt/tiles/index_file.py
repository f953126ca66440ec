"""Keep the index of a chart in a file, so that the next time it is only mapped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from dptrace.core.array_file import CorruptArrayFile
from dptrace.viewers.gantt.chart import Chart
from dptrace.viewers.gantt.tiles.store import TileStore, build, open_store, save

__all__ = ["kept_store"]


def kept_store(entry: Path | None, chart: Chart, collectives: list[Any]) -> TileStore:
    """Return the store of a chart: from a file, written first if it is missing or damaged; else in memory.

    Args:
        entry: the file; None for none. Where it can't be written, memory holds the store.
        collectives: the chart's collectives as the page's data has them.
    """
    if entry is not None:
        with suppress(OSError, CorruptArrayFile):
            return open_store(entry)
        with suppress(OSError, CorruptArrayFile):
            save(entry, chart, collectives)
            return open_store(entry)
    return build(chart, collectives)
