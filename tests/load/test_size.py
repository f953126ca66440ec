"""Which runs are small enough for a second reading."""

from __future__ import annotations

from pathlib import Path

from dptrace.load.size import is_small
from dptrace.readers.source import Source


def file_of(folder: Path, name: str, size: int) -> Source:
    """Write a file of a size."""
    path = folder / name
    with path.open("wb") as file:
        file.truncate(size)
    return Source(str(path))


def test_small_files_are_small_together(tmp_path: Path) -> None:
    """Bytes of all files count, those of compressed ones ten times."""
    assert is_small([file_of(tmp_path, "a.json", 5_000_000), file_of(tmp_path, "b.json.gz", 400_000)])
    assert not is_small([file_of(tmp_path, "c.json", 20_000_000), file_of(tmp_path, "d.json.gz", 2_400_000)])


def test_what_is_not_on_this_machine_is_not_small(tmp_path: Path) -> None:
    """A URL, standard input and a file that is missing are never small."""
    assert not is_small([Source.of("https://example.org/rank0.json")])
    assert not is_small([Source.of("-")])
    assert not is_small([Source(str(tmp_path / "missing.json"))])
