"""The cache of parsed files."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from dptrace.core.files import cache_folder, open_part
from dptrace.core.intervals import Int64
from dptrace.load import cache
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity

VALUE = {"a": np.arange(1000)}
Kind = dict[str, Int64]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "t.json").write_text("1")
    return Source.of(tmp_path / "t.json")


def stored(source: Source, *how: object) -> Path | None:
    return cache.store(source, how, VALUE, file_identity(source))


def test_what_is_stored_is_found_for_the_same_file_and_way_only(source: Source, tmp_path: Path) -> None:
    """Another file, another way of reading, or the file written again: nothing is found."""
    entry = stored(source, "pattern")

    found, place = cache.fetch(source, ("pattern",), Kind)
    assert found is not None
    assert np.array_equal(VALUE["a"], found["a"])
    assert entry == place
    assert (None, None) == cache.fetch(source, ("other",), Kind)
    os.utime(tmp_path / "t.json", ns=(1, 1))
    assert (None, None) == cache.fetch(source, ("pattern",), Kind)


def test_a_damaged_entry_is_dropped(source: Source) -> None:
    """It is not found, and gone."""
    entry = stored(source)
    assert entry is not None
    entry.write_bytes(entry.read_bytes()[:-70])

    assert (None, None) == cache.fetch(source, (), Kind)
    assert not entry.exists()


def test_another_version_of_dptrace_finds_nothing(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that other code computed are not used."""
    stored(source)
    monkeypatch.setattr(cache, "_code", lambda: "newer")

    assert (None, None) == cache.fetch(source, (), Kind)


def test_a_file_that_changed_while_it_was_read_is_not_kept(source: Source, tmp_path: Path) -> None:
    """Its figures may belong to neither version."""
    before = file_identity(source)
    (tmp_path / "t.json").write_text("22")

    assert cache.store(source, (), VALUE, before) is None


def test_where_nothing_can_be_written_nothing_is_wrong(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that cannot be created only disables the cache."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "t.json" / "cache"))

    assert stored(source) is None
    assert (None, None) == cache.fetch(source, (), Kind)


def test_the_oldest_go_when_there_is_no_room(source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries stay below the limit: the most recently used stay, and abandoned partial files are removed."""
    first, second = stored(source, 1), stored(source, 2)
    assert first is not None
    assert second is not None
    os.utime(first, (time.time() - 100,) * 2)
    os.utime(second, (time.time() - 50,) * 2)
    (folder / f".dptrace.{'0' * 16}.part").write_text("")
    cache.fetch(source, (1,), Kind)
    monkeypatch.setattr(cache, "_LIMIT", 2 * first.stat().st_size)

    third = stored(source, 3)

    assert {first, third} == set(folder.iterdir())


def test_the_summary_counts_traces_and_pages(source: Source, folder: Path) -> None:
    """Files, and their bytes; a folder that does not exist yet is empty."""
    assert cache.CacheSummary(folder) == cache.cache_summary()
    first, second = stored(source, 1), stored(source, 2)
    assert first is not None
    assert second is not None
    (folder / "pages").mkdir()
    (folder / "pages" / "ddp-0123abcd.html").write_text("page")

    found = cache.cache_summary()

    assert (2, 1, 4) == (found.traces, found.pages, found.page_bytes)
    assert first.stat().st_size + second.stat().st_size == found.trace_bytes == found.total_bytes - 4


def test_clearing_removes_only_dptraces_files(source: Source, folder: Path) -> None:
    """Entries, pages and abandoned partial files go; other files, links and files being written stay."""
    entry = stored(source)
    assert entry is not None
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

    with open_part(folder)[1] as written:
        removed = cache.cache_summary(remove=True)
        assert Path(written.name).exists()
    Path(written.name).unlink()

    assert (1, 1, folder) == (removed.traces, removed.pages, removed.folder)
    assert not any(path.exists() for path in (entry, page, *parts))
    assert all((folder / name).read_text() == "mine" for name in mine)
    assert link.is_symlink()
    assert cache.CacheSummary(folder) == cache.cache_summary()


def test_names_are_those_of_what_is_written(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and pages have the names that clearing looks for."""
    from dptrace.commands.view import _cached_page_path

    entry, page = stored(source), _cached_page_path(("runs/ddp",))
    page.write_text("page")

    assert entry is not None
    assert re.fullmatch(r"[0-9a-f]{32}\.rank", entry.name)
    assert (1, 1) == (cache.cache_summary().traces, cache.cache_summary().pages)


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without DPTRACE_CACHE it is the system's folder for caches."""
    monkeypatch.delenv("DPTRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder().is_relative_to(tmp_path)
    assert "dptrace" in cache_folder().parts


def test_an_entry_stands_for_no_other(source: Source) -> None:
    """Renamed or copied over another, it is not used."""
    first, second = stored(source, 1), stored(source, 2)
    assert first is not None
    assert second is not None
    second.write_bytes(first.read_bytes())

    assert (None, None) == cache.fetch(source, (2,), Kind)


def test_a_file_rewritten_in_place_with_its_old_time_is_another(source: Source, tmp_path: Path) -> None:
    """Size and modification time can be made the same; the change time cannot."""
    status = (tmp_path / "t.json").stat()
    stored(source)
    (tmp_path / "t.json").write_text("2")
    os.utime(tmp_path / "t.json", ns=(status.st_atime_ns, status.st_mtime_ns))

    assert (None, None) == cache.fetch(source, (), Kind)


def test_an_entry_of_other_arrays_is_read_again(source: Source) -> None:
    """Its checksum is right, and its numbers have another type."""
    cache.store(source, (), {"a": VALUE["a"].astype(np.float32)}, file_identity(source))

    assert (None, None) == cache.fetch(source, (), Kind)
    stored(source)
    assert cache.fetch(source, (), Kind)[0] is not None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_in_the_place_of_an_entry_is_ignored(source: Source) -> None:
    """It is not waited for, and gives way to the next entry."""
    entry = stored(source)
    assert entry is not None
    entry.unlink()
    os.mkfifo(entry)

    assert (None, None) == cache.fetch(source, (), Kind)
    stored(source)
    assert cache.fetch(source, (), Kind)[0] is not None


def test_an_index_has_one_place_for_the_same_files_read_the_same_way(source: Source, tmp_path: Path) -> None:
    """Another file, another way, or the file written again: another place."""
    (tmp_path / "u.json").write_text("2")
    other = Source.of(tmp_path / "u.json")
    place = cache.index_entry([source], ("all",))
    assert place is not None
    assert place == cache.index_entry([source], ("all",))
    assert place.parent.is_dir()
    assert 4 == len(
        {place, *(cache.index_entry(files, ("all",)) for files in ([source, other], [other, source], [other]))}
    )
    assert place != cache.index_entry([source], ("ranks 0",))
    os.utime(tmp_path / "t.json", ns=(1, 1))
    assert place != cache.index_entry([source], ("all",))


def test_an_index_of_a_stream_has_no_place(source: Source) -> None:
    """What standard input holds is not known before it is read."""
    assert cache.index_entry([source, Source.of("-")], ()) is None


def test_an_index_counts_as_a_part_of_the_cache(source: Source) -> None:
    """It is counted, removed, and makes room like any entry."""
    place = cache.index_entry([source], ())
    assert place is not None
    place.write_bytes(bytes(1000))
    assert 1000 == cache.cache_summary().trace_bytes
    cache.cache_summary(remove=True)
    assert not place.exists()
