"""Pickles of CIFAR-10's Python form: read as pickle reads them, and nothing in them is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.record.cifar10.safe_pickle import PickledArray, read_pickle
from tests.support.cifar10_files import python2_batch

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)
BATCH = python2_batch(PIXELS, [1, 2, 3])


class Runs:
    """What runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_a_batch_of_python_2_is_read_as_pickle_reads_it() -> None:
    """The file of the tests is a real one: pickle makes the same array of it."""
    mine, theirs = read_pickle(BATCH), pickle.loads(BATCH, encoding="bytes")

    assert np.array_equal(PIXELS, theirs[b"data"])
    assert PIXELS.tobytes() == mine[b"data"].content
    assert mine[b"data"].is_bytes(-1, 4)
    assert [1, 2, 3] == mine[b"labels"] == theirs[b"labels"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_newer_pythons_write_is_read_too(protocol: int) -> None:
    """Protocols 2 to 5 make arrays, bytes and texts in different ways."""
    content = {"data": PIXELS, b"name": b"\x00\xff", "text": "é", "labels": [0, 300, 70_000]}
    read = read_pickle(pickle.dumps(content, protocol=protocol))

    assert (PIXELS.tobytes(), True) == (bytes(read["data"].content), read["data"].is_bytes(3, 4))
    assert (b"\x00\xff", "é", [0, 300, 70_000]) == (read[b"name"], read["text"], read["labels"])


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "bad",
    [Runs(os.mkdir, "made"), Runs(eval, "1"), Runs(np.load, "x"), Path("x"), {1, 2}, 1.5, 2**80, np.float64(1)],
    ids=["mkdir", "eval", "numpy", "path", "set", "float", "long", "scalar"],
)
def test_nothing_else_is_made(bad: Any, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that names any other function, or holds another type, is refused before anything happens."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ValueError, match="it "):
        read_pickle(pickle.dumps({b"data": bad}, protocol=protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b"\x80\x02N", "damaged"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "numbers its objects"),
        (b"\x80\x02)" + b"\x85" * 100_000 + b".", "100,001 tuples"),
        (b"\x80\x02N.N.", "2 bytes follow"),
        (b"\x80\x02cos\nsystem\n.", "os.system"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "not a function"),
        (b"\x80\x02cnumpy\ndtype\n}b.", "changes a function"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)RNb.", "damaged"),
        (b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7tR.", "encodes"),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "damaged"),
        (b"cnumpy\nndarray\n.", ""),
    ],
)
def test_programs_that_would_do_harm_are_refused(content: bytes, says: str) -> None:
    """Foreign functions, endless memory and deep nesting; the last one names a stand-in, which is harmless."""
    if not says:
        assert not isinstance(read_pickle(content), type)
        return
    with pytest.raises(ValueError, match=says):
        read_pickle(content)


@pytest.mark.parametrize(
    ("array", "right"),
    [
        (PIXELS, True),
        (PIXELS.astype(np.int8), False),
        (PIXELS.astype(np.uint16), False),
        (np.asfortranarray(PIXELS), False),
        (PIXELS.ravel(), False),
        (PIXELS.reshape(2, 6), False),
    ],
)
def test_an_array_of_another_kind_is_no_array_of_bytes(array: Any, right: bool) -> None:
    """Its type, order and shape have to be right; it may have any number of rows."""
    (read,) = read_pickle(pickle.dumps([array], protocol=2))

    assert right == read.is_bytes(-1, 4)


def test_a_shape_that_its_bytes_do_not_fill_is_refused() -> None:
    """Whatever is in the place of the shape."""
    shapes: list[Any] = [(4, 4), (-3, 4), (3.0, 4), "ab", None, (True, 12)]

    assert not any(PickledArray(shape, None, PIXELS.tobytes()).is_bytes(-1, 4) for shape in shapes)


@given(at=st.integers(0, len(BATCH) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_an_error_or_other_data(at: int, byte: int, cut: bool) -> None:
    """No cut and no changed byte leads to anything but a value or a ValueError."""
    damaged = BATCH[:at] if cut else BATCH[:at] + bytes([byte]) + BATCH[at + 1 :]
    try:
        read_pickle(damaged)
    except ValueError as error:
        assert str(error)
    else:
        assert not cut
