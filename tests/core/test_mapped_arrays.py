"""Files of arrays that are written piece by piece and mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.core.array_file import CorruptArrayFile
from dptrace.core.mapped_arrays import ArrayWriter, open_arrays

RECORD = np.dtype([("time", "<i8"), ("parts", "<u4", (3,)), ("kind", "u1")])


def written(path: Path) -> Path:
    with ArrayWriter(path) as writer:
        writer.allocate(np.int64, (2, 3))[:] = [[1, 2, 3], [4, 5, 6]]
        writer.allocate(np.uint8, (0, 5))
        records = writer.allocate(RECORD, (5000,))
        records["time"], records["parts"] = np.arange(5000), np.arange(15_000).reshape(5000, 3)
        writer.finish(b"about \xff")
    return path


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    """In their order, of any type and shape, empty ones included, and not to be changed."""
    found = open_arrays(written(tmp_path / "file"))
    numbers, empty, records = found.arrays
    found.read_ahead(records[10:20])

    assert b"about \xff" == found.about
    assert [[1, 2, 3], [4, 5, 6]] == numbers.tolist()
    assert (0, 5) == empty.shape
    assert (4999, [14_997, 14_998, 14_999]) == (records["time"][-1], records["parts"][-1].tolist())
    assert not numbers.flags.writeable


@pytest.mark.parametrize("cut", [0, 1, 20, 100, 5000])
def test_a_damaged_file_is_recognized(tmp_path: Path, cut: int) -> None:
    """Cut off at any place, or with another head."""
    path = written(tmp_path / "file")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] if not cut else whole[:-cut])

    with pytest.raises(CorruptArrayFile):
        open_arrays(path)
    path.write_bytes(whole[:-30] + b"x" + whole[-29:])
    with pytest.raises(CorruptArrayFile):
        open_arrays(path)


def test_an_unfinished_file_does_not_appear(tmp_path: Path) -> None:
    """After an error nothing is left."""

    def fail() -> None:
        with ArrayWriter(tmp_path / "file") as writer:
            writer.allocate(np.int64, (100,))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [] == list(tmp_path.iterdir())
