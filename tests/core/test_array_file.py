"""Dataclasses with arrays as bytes."""

from __future__ import annotations

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
