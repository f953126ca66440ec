"""Read a file of CIFAR-10's Python form, which is a pickle, without running anything that is in it.

A pickle is a program that calls what it names. Here its instructions are checked before any is carried out, and the
names from which NumPy's arrays are made stand for objects that keep the bytes: NumPy itself is never called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

__all__ = ["PickledArray", "read_pickle"]


class _RefusedError(ValueError):
    """A pickle asks for what CIFAR-10's files do not need."""


_INSTRUCTIONS = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    }
)
"""What dictionaries, lists, texts, bytes, numbers and arrays consist of, in pickles of protocol 2 to 5."""
_MOST_TUPLES = 100
"""An array takes six. A tuple in a tuple in a tuple … would overflow the interpreter's stack when it is compared."""


class PickledArray:
    """An array as its pickle holds it."""

    __slots__ = ("content", "in_fortran_order", "kind", "shape")

    def __init__(self, shape: Any = (), kind: Any = None, content: Any = b"", in_fortran_order: Any = False) -> None:
        self.shape, self.kind, self.content, self.in_fortran_order = shape, kind, content, in_fortran_order

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, self.in_fortran_order, self.content = state

    def is_bytes(self, *shape: int) -> bool:
        """Return whether it holds bytes, row by row, in a shape of this size; -1 stands for any size."""
        same = isinstance(self.shape, tuple) and len(self.shape) == len(shape)
        if not same or not all(isinstance(size, int) and size >= 0 for size in self.shape):
            return False
        size = 1
        for wanted, got in zip(shape, self.shape, strict=True):
            size *= got
            same = same and wanted in (-1, got)
        is_bytes = isinstance(self.kind, _Kind) and self.kind.name in ("u1", b"u1", "|u1", b"|u1")
        plain = isinstance(self.content, bytes | bytearray) and len(self.content) == size
        return same and is_bytes and plain and not self.in_fortran_order


class _Kind:
    """An array's number type: its name."""

    __slots__ = ("name",)

    def __init__(self, name: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order: a byte has none."""


class _Name:
    """What a pickle may call. It has no attributes that a pickle could set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object] | None) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> object:
        if self._make is None:
            raise _RefusedError("it calls something that is not a function")
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise _RefusedError("it changes a function")


def _array_of_buffer(content: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    return PickledArray(shape, kind, content, order != "C")


def _encoded(text: Any, encoding: Any) -> bytes:
    """Return bytes as Python 3 writes them in protocol 2: a text in Latin-1."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _RefusedError("it encodes a text in another way than pickles do")
    return text.encode("latin1")


_NUMPY = {
    "_reconstruct": _Name(lambda *_: PickledArray()),
    "_frombuffer": _Name(_array_of_buffer),
    "ndarray": _Name(None),
    "dtype": _Name(lambda name, *_: _Kind(name)),
}
_NAMES: Mapping[tuple[str, str], _Name] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _NUMPY["_reconstruct"] for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _NUMPY["_frombuffer"] for core in ("core", "_core")},
    **{("numpy", name): _NUMPY[name] for name in ("ndarray", "dtype")},
    ("_codecs", "encode"): _Name(_encoded),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name; no module is imported."""
        try:
            return _NAMES[module, name]
        except KeyError:
            raise _RefusedError(f"it names {module}.{name}") from None


def read_pickle(content: bytes) -> Any:
    """Return what a pickle of dictionaries, lists, texts, bytes, integers and arrays holds; texts of Python 2 as bytes.

    Raises:
        ValueError: it is damaged, or asks for anything else; the message is a reason that follows a colon.
    """
    try:
        _check(content)
        return _Reader(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError:
        raise
    except Exception as error:  # damaged pickles fail in many ways
        raise ValueError(f"it is damaged ({type(error).__name__})") from None


def _check(content: bytes) -> None:
    """Check the instructions of a pickle.

    Raises:
        _RefusedError: one is not among those that CIFAR-10's files need, or it would take much memory.
    """
    tuples = end = 0
    for count, (instruction, argument, position) in enumerate(pickletools.genops(content)):
        name, end = instruction.name, position or 0
        if name not in _INSTRUCTIONS:
            raise _RefusedError(f"it holds other things than texts, numbers and arrays of bytes ({name})")
        # The table of remembered objects is as long as its largest number.
        if name in ("BINPUT", "LONG_BINPUT") and (argument or 0) > count:
            raise _RefusedError("it numbers its objects in another way than pickles do")
        tuples += "TUPLE" in name
    if tuples > _MOST_TUPLES:
        raise _RefusedError(f"it holds {tuples:,} tuples")
    if end + 1 != len(content):
        raise _RefusedError(f"{len(content) - end - 1:,} bytes follow its end")
