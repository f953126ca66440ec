"""The store of a chart: in memory, in a file, and kept in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.core.array_file import CorruptArrayFile
from dptrace.viewers.gantt.chart import Chart, Role, chart
from dptrace.viewers.gantt.page.data import collective_entries
from dptrace.viewers.gantt.tiles import store as tiles_store
from dptrace.viewers.gantt.tiles.store import Files, TileStore, build, kept_store, open_store, save
from tests.support.synthetic import training_run

CHART = chart(training_run(2_000, ranks=2))
ENTRIES = collective_entries(CHART)


def made() -> tuple[Chart, list[Any], Files]:
    """Return what a store is made from."""
    return CHART, ENTRIES, lambda store: {"lanes": str(len(store.lanes)).encode(), "nothing": b""}


def contents(store: TileStore) -> list[object]:
    """Return all that a store holds about its lanes."""
    rows = [(stored, stored.lane.rows_of_blocks(np.arange(len(stored.lane.first)))) for stored in store.lanes]
    files = [{name: file.tobytes() for name, file in store.files.items()}]
    return files + [
        (
            *(stored.track, stored.role, row.start_ns.tolist(), row.category.tolist(), row.stream.tolist()),
            *((name, column.tolist()) for name, column in stored.extra.items()),
        )
        for stored, row in rows
    ]


def test_the_lanes_are_those_of_the_chart() -> None:
    """In its order, with all intervals."""
    store = build(CHART, ENTRIES)
    for lane, stored in zip(CHART.lanes, store.lanes, strict=True):
        rows = stored.lane.rows_of_blocks(np.arange(len(stored.lane.first)))
        assert (lane.track, lane.role.value) == (stored.track, stored.role)
        assert lane.start_ns.tolist() == rows.start_ns.tolist()
        assert lane.name.tolist() == rows.name.tolist()
        assert lane.stream.tolist() == [store.about.streams[stream] for stream in rows.stream]
        if lane.role is Role.COLLECTIVES:
            assert lane.exposed_ns.tolist() == stored.extra["exposed_ns"].tolist()


def test_a_file_holds_the_same(tmp_path: Path) -> None:
    """All lanes, and what else is known."""
    save(tmp_path / "a.tiles", CHART, ENTRIES)
    store, expected = open_store(tmp_path / "a.tiles"), build(CHART, ENTRIES)

    assert contents(expected) == contents(store)
    assert (expected.names, expected.about.bounds) == (store.names, store.about.bounds)
    assert ["a.tiles"] == [path.name for path in tmp_path.iterdir()]


def test_a_copy_under_another_name_is_not_read(tmp_path: Path) -> None:
    """It may be the entry of another run."""
    save(tmp_path / "a.tiles", CHART, ENTRIES)
    (tmp_path / "a.tiles").rename(tmp_path / "b.tiles")

    with pytest.raises(CorruptArrayFile):
        open_store(tmp_path / "b.tiles")


def test_an_entry_is_written_once_and_a_damaged_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it is mapped only."""
    entry, expected = tmp_path / "a.tiles", contents(build(*made()))
    assert expected == contents(kept_store(entry, made))
    with monkeypatch.context() as patched:
        patched.delattr(tiles_store, "save")
        assert expected == contents(kept_store(entry, made))
    entry.write_bytes(entry.read_bytes()[:-1000])
    assert expected == contents(kept_store(entry, made))
    assert expected == contents(open_store(entry))


def test_without_a_place_memory_holds_the_store(tmp_path: Path) -> None:
    """No entry, or a folder that does not exist."""
    expected = contents(build(*made()))

    assert expected == contents(kept_store(None, made))
    assert expected == contents(kept_store(tmp_path / "missing" / "a.tiles", made))
