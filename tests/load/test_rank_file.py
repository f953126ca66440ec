"""One rank's file, read."""

from __future__ import annotations

import gc
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dptrace.core import files
from dptrace.core.files import open_part
from dptrace.core.intervals import Int64
from dptrace.load import rank_file
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import FileRereader, load_rank_file
from dptrace.readers.kineto import reader
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, HostCalls, host_calls
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source.of(training_step(KinetoFile(rank=3, world_size=4), 1, 0).write(tmp_path / "t.json"))


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


# The cache of parsed files.

VALUE = {"a": np.arange(1000)}
Kind = dict[str, Int64]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cache_source(tmp_path: Path) -> Source:
    (tmp_path / "t.json").write_text("1")
    return Source.of(tmp_path / "t.json")


def stored(source: Source, *how: object) -> Path | None:
    return rank_file.store(source, how, VALUE, file_identity(source))


@pytest.mark.usefixtures("folder")
def test_what_is_stored_is_found_for_the_same_file_and_way_only(
    cache_source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another way, the file written again, other code: nothing; what changed while it was read is not kept."""
    entry = stored(cache_source, "pattern")

    found = rank_file.fetch(file_identity(cache_source), ("pattern",), Kind)
    assert found is not None
    assert np.array_equal(VALUE["a"], found["a"])
    assert entry is not None
    assert None is rank_file.fetch(file_identity(cache_source), ("other",), Kind)
    before = file_identity(cache_source)
    os.utime(tmp_path / "t.json", ns=(1, 1))
    assert None is rank_file.fetch(file_identity(cache_source), ("pattern",), Kind)
    assert rank_file.store(cache_source, (), VALUE, before) is None
    stored(cache_source)
    monkeypatch.setattr(rank_file, "_code", lambda: "newer")
    assert None is rank_file.fetch(file_identity(cache_source), (), Kind)


def _rewrite_in_place(source: Source) -> None:
    """Change a file but neither its size nor its modification time."""
    status = os.stat(source.address)
    Path(source.address).write_text("2")
    os.utime(source.address, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace_by_a_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda source, entry: entry.write_bytes(entry.read_bytes()[:-70]),
        lambda source, entry: shutil.copy(stored(source, "another") or "", entry),
        lambda source, entry: rank_file.store(source, (), {"a": np.zeros(5, np.float32)}, file_identity(source)),
        lambda source, entry: _replace_by_a_pipe(entry),
        lambda source, entry: _rewrite_in_place(source),
    ],
    ids=["cut", "copied", "other arrays", "pipe", "rewritten file"],
)
def test_what_is_not_the_entry_of_a_file_gives_way_to_it(
    spoil: Callable[[Source, Path], object], cache_source: Source
) -> None:
    """It is not used or waited for, and written anew."""
    entry = stored(cache_source)
    assert entry is not None
    spoil(cache_source, entry)

    assert None is rank_file.fetch(file_identity(cache_source), (), Kind)
    stored(cache_source)
    assert rank_file.fetch(file_identity(cache_source), (), Kind) is not None


@pytest.mark.usefixtures("folder")
def test_where_nothing_can_be_written_nothing_is_wrong(
    cache_source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that cannot be created only disables the cache."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "t.json" / "cache"))

    assert stored(cache_source) is None
    assert None is rank_file.fetch(file_identity(cache_source), (), Kind)


@pytest.mark.usefixtures("folder")
def test_the_oldest_go_when_there_is_no_room(
    cache_source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries stay below the limit: the most recently used stay, and abandoned partial files are removed."""
    first, second = stored(cache_source, 1), stored(cache_source, 2)
    assert first is not None
    assert second is not None
    os.utime(first, (time.time() - 100,) * 2)
    os.utime(second, (time.time() - 50,) * 2)
    (folder / f".dptrace.{'0' * 16}.part").write_text("")
    files._remove_stale_parts.cache_clear()  # as of the next process
    rank_file.fetch(file_identity(cache_source), (1,), Kind)
    monkeypatch.setattr(rank_file, "_LIMIT", 2 * first.stat().st_size)

    third = stored(cache_source, 3)

    assert {first, third} == set(folder.iterdir())


@pytest.mark.usefixtures("folder")
def test_clearing_removes_only_dptraces_files(cache_source: Source, folder: Path) -> None:
    """Entries, indices, pages and abandoned parts are counted and go; other files, links and what is written stay."""
    assert rank_file.CacheSummary(folder) == rank_file.cache_summary()
    entry, index = stored(cache_source), rank_file.index_entry([cache_source], ())
    assert entry is not None
    assert index is not None
    index.write_bytes(bytes(1000))
    (folder / "pages").mkdir()
    page = folder / "pages" / "ddp-0123abcd.html"
    parts = [place / f".dptrace.{'0' * 16}.part" for place in (folder, folder / "pages")]
    for path in (page, *parts):
        path.write_text("x")
    mine = ("notes.txt", "a.rank", "report.html", ".mine.part", "pages/index.html", ".dptrace.9.part")
    for name in mine:
        (folder / name).write_text("mine")
    (folder / "folder").mkdir()
    link = folder / ("0" * 32 + ".rank")
    link.symlink_to(folder / "notes.txt")

    assert entry.stat().st_size + 1000 + 3 == rank_file.cache_summary().total_bytes
    with open_part(folder)[1] as written:
        removed = rank_file.cache_summary(remove=True)
        assert Path(written.name).exists()
    Path(written.name).unlink()

    assert (1, 1, folder) == (removed.traces, removed.pages, removed.folder)
    assert not any(path.exists() for path in (entry, index, page, *parts))
    assert all((folder / name).read_text() == "mine" for name in mine)
    assert link.is_symlink()
    assert rank_file.CacheSummary(folder) == rank_file.cache_summary()


@pytest.mark.usefixtures("folder")
def test_names_are_those_of_what_is_written(cache_source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and pages have the names that clearing looks for."""
    from dptrace.commands.view import _cached_page_path

    entry, page = stored(cache_source), _cached_page_path(("runs/ddp",))
    page.write_text("page")

    assert entry is not None
    assert re.fullmatch(r"[0-9a-f]{32}\.rank", entry.name)
    assert (1, 1) == (rank_file.cache_summary().traces, rank_file.cache_summary().pages)


@pytest.mark.usefixtures("folder")
def test_an_index_has_one_place_for_the_same_files_read_the_same_way(cache_source: Source, tmp_path: Path) -> None:
    """Another file, another way, or the file written again: another place; none for a stream."""
    (tmp_path / "u.json").write_text("2")
    other = Source.of(tmp_path / "u.json")
    assert rank_file.index_entry([cache_source, Source.of("-")], ()) is None
    place = rank_file.index_entry([cache_source], ("all",))
    assert place is not None
    assert place == rank_file.index_entry([cache_source], ("all",))
    assert place.parent.is_dir()
    sets = ([cache_source], [cache_source, other], [other, cache_source], [other])
    assert 4 == len({rank_file.index_entry(files, ("all",)) for files in sets})
    assert place != rank_file.index_entry([cache_source], ("ranks 0",))
    os.utime(tmp_path / "t.json", ns=(1, 1))
    assert place != rank_file.index_entry([cache_source], ("all",))


# Host calls are read from a run's files on request, cached, and absent where a file can't be read again.


def two_ranks(folder: Path) -> Run:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        for step in range(2 + rank):
            training_step(file, step, 100 * step)
        file.write(folder / f"rank{rank}.json")
    return open_run([str(folder)])


def read(run: Run, number: int) -> HostCalls:
    calls = run.read_again(run.timelines[number], HOST_CALLS)
    assert calls is not None
    return calls


def test_each_rank_has_the_calls_of_its_file(tmp_path: Path) -> None:
    """In any order, and also after ranks and steps were selected."""
    run = two_ranks(tmp_path)
    expected = [host_calls(read_trace(tmp_path / f"rank{rank}.json", detailed=True)) for rank in (0, 1)]

    assert [len(expected[1]), len(expected[0])] == [len(read(run, 1)), len(read(run, 0))]
    assert len(expected[1]) == len(read(run.select(ranks=[1], steps=(1, 1)), 0))


def test_a_second_look_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal in every column; the file is not decoded again."""
    first = read(two_ranks(tmp_path), 0)
    run = open_run([str(tmp_path)])
    monkeypatch.setattr(reader, "read_trace", None)
    second = read(run, 0)

    assert first is not second
    for column in HostCalls.__struct_fields__:
        assert np.array_equal(getattr(first, column), getattr(second, column)), column


def test_a_file_that_is_gone_has_no_calls(tmp_path: Path) -> None:
    """The page is drawn without them."""
    options = ReadOptions(cache=False)
    run = two_ranks(tmp_path)
    assert run.sources is not None
    (tmp_path / "rank0.json").unlink()

    assert FileRereader(run.sources.files, options)(run.timelines[0].path, HOST_CALLS) is None
    assert FileRereader(run.sources.files, options)(run.timelines[1].path, HOST_CALLS) is not None
