"""Dataclasses with arrays as bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dptrace.core.array_file import CorruptArrayFile, dumps, load, loads
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


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_what_is_packed_comes_back(times: list[int]) -> None:
    """Values, names and arrays of any length round-trip; the arrays are read-only."""
    value = outer(times)

    back = loads(b"".join(dumps(value)), Outer)

    assert same(value, back)
    assert not back.inner[0].times.flags.writeable


def test_a_file_is_mapped(tmp_path: Path) -> None:
    """A mapped file gives the same value, even after it was deleted."""
    value, path = outer([3, 1, 2]), tmp_path / "x"
    path.write_bytes(b"".join(dumps(value)))

    back = load(path, Outer)
    path.unlink()

    assert same(value, back)


@pytest.mark.parametrize("position", [0, 9, 17, 30, 70, 130, 200, -1])
def test_no_changed_byte_is_believed(position: int) -> None:
    """One wrong bit anywhere is an error."""
    data = bytearray(b"".join(dumps(outer([1, 2, 3]))))
    data[position] ^= 4

    with pytest.raises(CorruptArrayFile):
        loads(bytes(data), Outer)


@pytest.mark.parametrize("length", [0, 5, 24, 100])
def test_a_cut_file_is_damaged(length: int, tmp_path: Path) -> None:
    """A truncated or empty file is an error."""
    path = tmp_path / "x"
    path.write_bytes(b"".join(dumps(outer([1, 2, 3])))[:length])

    with pytest.raises(CorruptArrayFile):
        load(path, Outer)


def test_bytes_of_another_type_are_damaged() -> None:
    """Bytes of one type are not read as another."""
    with pytest.raises(CorruptArrayFile):
        loads(b"".join(dumps(outer([1]))), Inner)


@dataclass(frozen=True)
class Wide:
    times: NDArray[np.float64]
    flags: NDArray[np.uint8]


def test_arrays_of_another_type_are_damaged() -> None:
    """Entries that would be taken for other numbers are an error, though the checksum is right."""
    data = b"".join(dumps(Wide(np.zeros(3), np.zeros(3, np.uint8))))

    assert 3 == len(loads(data, Wide).times)
    with pytest.raises(CorruptArrayFile, match="f8"):
        loads(data, Inner)


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
