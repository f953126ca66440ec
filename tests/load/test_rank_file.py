"""One rank's file, read."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from dptrace.core.array_file import dumps, loads
from dptrace.errors import TraceError
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile, load_rank_file
from dptrace.readers.source import Source
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source.of(training_step(KinetoFile(rank=3, world_size=4), 1, 0).write(tmp_path / "t.json"))


def test_a_file_is_its_devices_rank_and_world(source: Source) -> None:
    """It has the file's devices, rank and world size, and comes back from bytes."""
    file = load_rank_file(source, ReadOptions(cache=False))[0]
    back = loads(b"".join(dumps(file)), RankFile)

    assert (3, 4, 1, ()) == (file.rank, file.world_size, len(file.devices), file.damage)
    assert file.devices[0].split.total() == back.devices[0].split.total()
    assert file.devices[0].timeline.collectives == back.devices[0].timeline.collectives


@pytest.mark.heavy
def test_reading_starts_no_search_for_cycles(source: Source) -> None:
    """It would take a tenth of the time, and find none."""
    searches: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, info: searches.append(phase))
    try:
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        load_rank_file(source, ReadOptions(cache=False))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()

    assert len(searches) < 100


def test_a_file_goes_by_the_name_it_has_today(source: Source) -> None:
    """Found again under another address, messages use that."""
    moved = load_rank_file(source, ReadOptions(cache=False))[0].with_path("elsewhere/t.json")

    assert ("elsewhere/t.json", "elsewhere/t.json") == (moved.path, moved.devices[0].timeline.path)


def test_a_damaged_file_is_refused_when_strict(source: Source, tmp_path: Path) -> None:
    """Otherwise it is read, and the damage is described."""
    text = (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(text.replace('"dur": 20', '"dur": "x"', 1))

    assert 1 == len(load_rank_file(source, ReadOptions(cache=False))[0].damage)
    with pytest.raises(TraceError, match=r"t\.json: .*--strict.*1 event"):
        load_rank_file(source, ReadOptions(strict=True, cache=False))
