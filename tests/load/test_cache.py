"""The cache: a second look is instant, and never wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from dptrace.core.files import cache_folder
from dptrace.core.intervals import Int64
from dptrace.load import cache
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

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
    """What other code computed is another thing."""
    stored(source)
    monkeypatch.setattr(cache, "_code", lambda: "newer")

    assert (None, None) == cache.fetch(source, (), Kind)


def test_a_file_that_changed_while_it_was_read_is_not_kept(source: Source, tmp_path: Path) -> None:
    """Its figures may be those of neither."""
    before = file_identity(source)
    (tmp_path / "t.json").write_text("22")

    assert cache.store(source, (), VALUE, before) is None


def test_where_nothing_can_be_written_nothing_is_wrong(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that can't be made costs no more than the cache."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "t.json" / "cache"))

    assert stored(source) is None
    assert (None, None) == cache.fetch(source, (), Kind)


def test_the_oldest_go_when_there_is_no_room(source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries together stay below the limit; what was used last stays, and abandoned parts are swept."""
    first, second = stored(source, 1), stored(source, 2)
    assert first is not None
    assert second is not None
    os.utime(first, (time.time() - 100,) * 2)
    os.utime(second, (time.time() - 50,) * 2)
    (folder / ".x.part").write_text("")
    os.utime(folder / ".x.part", (1, 1))
    cache.fetch(source, (1,), Kind)
    monkeypatch.setattr(cache, "_LIMIT", 2 * first.stat().st_size)

    third = stored(source, 3)

    assert {first, third} == set(folder.iterdir())


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without DPTRACE_CACHE it is where the system keeps such things."""
    monkeypatch.delenv("DPTRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder().is_relative_to(tmp_path)
    assert "dptrace" in cache_folder().parts


def test_an_entry_stands_for_no_other(source: Source) -> None:
    """Renamed or copied over another, it is not believed."""
    first, second = stored(source, 1), stored(source, 2)
    assert first is not None
    assert second is not None
    second.write_bytes(first.read_bytes())

    assert (None, None) == cache.fetch(source, (2,), Kind)


def test_a_file_rewritten_in_place_with_its_old_time_is_another(source: Source, tmp_path: Path) -> None:
    """Size and time of change may be made the same; the time at which that was done is not."""
    status = (tmp_path / "t.json").stat()
    stored(source)
    (tmp_path / "t.json").write_text("2")
    os.utime(tmp_path / "t.json", ns=(status.st_atime_ns, status.st_mtime_ns))

    assert (None, None) == cache.fetch(source, (), Kind)
