"""Dataclasses with arrays as bytes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dptrace.core.array_file import ArrayWriter, CorruptArrayFile, dumps, let_go, load, loads, open_arrays
from dptrace.core.intervals import Int64


@dataclass(frozen=True)
class Inner:
    times: Int64
    flags: NDArray[np.uint8]


@dataclass(frozen=True)
class Outer:
    name: str
    number: int | None
    inner: tuple[Inner, ...]
    by_name: dict[str, Int64]


def outer(times: list[int]) -> Outer:
    flags = np.arange(len(times), dtype=np.uint8)
    inner = Inner(np.array(times, np.int64), flags)
    return Outer("rank \udcfc µ".encode("utf-8", "replace").decode(), None, (inner, inner), {"a": inner.times[::2]})


def same(left: Outer, right: Outer) -> bool:
    def arrays(value: Outer) -> list[NDArray[Any]]:
        return [value.by_name["a"], *(array for inner in value.inner for array in (inner.times, inner.flags))]

    return (left.name, left.number) == (right.name, right.number) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(arrays(left), arrays(right), strict=True)
    )


@pytest.mark.heavy
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_what_is_packed_comes_back(times: list[int]) -> None:
    """Values, names and arrays of any length round-trip; the arrays are read-only."""
    value = outer(times)

    back = loads(b"".join(dumps(value)), Outer)

    assert same(value, back)
    assert not back.inner[0].times.flags.writeable


def _mapped_kb() -> int:
    """Return how much of mapped files this process has in memory."""
    status = Path("/proc/self/status")
    found = re.search(r"RssFile:\s+(\d+)", status.read_text() if status.exists() else "")
    return int(found[1]) if found else pytest.skip("the system does not say what is in memory")


@pytest.mark.heavy
def test_what_is_let_go_takes_no_memory_and_is_still_there(tmp_path: Path) -> None:
    """Neither the checksum of a mapped file nor arrays that were read keep it in memory; a copy has no file."""
    (tmp_path / "big").write_bytes(b"".join(dumps({"a": np.arange(4_000_000)})))
    before = _mapped_kb()

    mapped = load(tmp_path / "big", dict[str, Int64])["a"]

    opened, total = _mapped_kb(), mapped.sum()
    read = _mapped_kb()
    let_go(mapped[::2])
    assert before + 8_000 > opened
    assert before + 24_000 < read
    assert before + 8_000 > _mapped_kb()
    copied = load(tmp_path / "big", dict[str, Int64], mapped=False)["a"]
    let_go(copied)
    assert total == mapped.sum() == copied.sum()


def test_a_file_is_mapped(tmp_path: Path) -> None:
    """A mapped file gives the same value, even after it was deleted."""
    value, path = outer([3, 1, 2]), tmp_path / "x"
    path.write_bytes(b"".join(dumps(value)))

    back = load(path, Outer)
    path.unlink()

    assert same(value, back)


def test_no_changed_byte_is_believed() -> None:
    """One wrong bit anywhere is an error."""
    for position in (0, 9, 17, 30, 70, 130, 200, -1):
        data = bytearray(b"".join(dumps(outer([1, 2, 3]))))
        data[position] ^= 4
        with pytest.raises(CorruptArrayFile):
            loads(bytes(data), Outer)


@dataclass(frozen=True)
class Wide:
    times: NDArray[np.float64]
    flags: NDArray[np.uint8]


def test_arrays_of_another_type_are_damaged(tmp_path: Path) -> None:
    """Entries that would be taken for other numbers are an error, though the checksum is right; so are cut bytes."""
    data = b"".join(dumps(Wide(np.zeros(3), np.zeros(3, np.uint8))))

    assert 3 == len(loads(data, Wide).times)
    with pytest.raises(CorruptArrayFile, match="f8"):
        loads(data, Inner)
    for cut in (0, 5, 24, 100):
        with pytest.raises(CorruptArrayFile):
            loads(data[:cut], Wide)
    (tmp_path / "empty").touch()
    with pytest.raises(CorruptArrayFile):
        load(tmp_path / "empty", Wide)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
@pytest.mark.parametrize("device", ["/dev/zero", ""])
def test_a_pipe_or_a_device_is_not_read(device: str, tmp_path: Path) -> None:
    """Reading one would wait for a writer, or never end."""
    path = tmp_path / "x"
    if device:
        path.symlink_to(device)
    else:
        os.mkfifo(path)

    with pytest.raises(OSError, match="not a file"):
        load(path, Outer)


# Files of arrays that are written piece by piece and mapped.

RECORD = np.dtype([("time", "<i8"), ("parts", "<u4", (3,)), ("kind", "u1")])


def written(path: Path) -> Path:
    with ArrayWriter(path) as writer:
        writer.allocate(np.int64, (2, 3))[:] = [[1, 2, 3], [4, 5, 6]]
        writer.allocate(np.uint8, (0, 5))
        records = writer.allocate(RECORD, (5000,))
        records["time"], records["parts"] = np.arange(5000), np.arange(15_000).reshape(5000, 3)
        writer.finish(b"about \xff")
    return path


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list descriptors")
def test_arrays_of_thousands_of_lanes_use_few_descriptors(tmp_path: Path) -> None:
    """A process may have 1,024: a chart of more than 25 ranks could not be written."""
    before = len(os.listdir("/proc/self/fd"))
    with ArrayWriter(tmp_path / "file") as writer:
        arrays = [writer.allocate(np.int64, (600,)) for _ in range(1500)]
        opened = len(os.listdir("/proc/self/fd"))
        for number, array in enumerate(arrays):
            array[:] = number
        writer.finish(b"")

    assert opened < before + 50
    assert [[number] * 600 for number in range(1500)] == [a.tolist() for a in open_arrays(tmp_path / "file").arrays]


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


def test_a_damaged_file_is_recognized(tmp_path: Path) -> None:
    """Cut off at any place, or with another head."""
    for cut in (0, 1, 20, 100, 5000):
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
