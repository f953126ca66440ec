"""Dataclasses with arrays as bytes and back: the arrays lie aligned in one block, so that a file of it can be mapped.

::

    magic · CRC-32 of all that follows · length of the head │ head: the values, arrays by place │ arrays …
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["CorruptArrayFile", "dumps", "load", "loads"]

Value = TypeVar("Value")

_MAGIC = b"dptrace\x01"
_START = struct.Struct("<8sIxxxxQ")
_ALIGN = 64


class CorruptArrayFile(Exception):
    """The bytes are not those that were packed."""


def dumps(value: object) -> list[bytes | memoryview]:
    """Give the parts of the bytes that stand for *value*, to be written one after the other.

    Args:
        value: a dataclass, or containers of them, of plain values and NumPy arrays.
    """
    arrays: list[NDArray[Any]] = []
    place = 0

    def by_place(item: object) -> tuple[str, int, tuple[int, ...]]:
        nonlocal place
        if isinstance(item, np.generic):
            raise TypeError(f"{item!r} is a NumPy scalar; make it an int")
        assert isinstance(item, np.ndarray), type(item)
        array = np.ascontiguousarray(item)
        header = (array.dtype.str, place, array.shape)
        arrays.append(array)
        place += -(-array.nbytes // _ALIGN) * _ALIGN
        return header

    head = msgspec.msgpack.encode(value, enc_hook=by_place)
    padding = bytes(-(_START.size + len(head)) % _ALIGN)
    parts: list[bytes | memoryview] = [head, padding]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGN)]
    return [_START.pack(_MAGIC, _sum(parts), len(head)), *parts]


def loads(data: bytes | memoryview | mmap.mmap, type: type[Value]) -> Value:
    """Give back what was packed; its arrays lie in *data* and can't be written to.

    Raises:
        Damaged: the bytes are others than those packed, or stand for something else.
    """
    view = memoryview(data)
    try:
        magic, checksum, length = _START.unpack_from(view)
        if magic != _MAGIC or checksum != _sum([view[_START.size :]]):
            raise CorruptArrayFile("the bytes were changed")
        head = view[_START.size : _START.size + length]
        arrays = view[-(-(_START.size + length) // _ALIGN) * _ALIGN :]

        def in_place(kind: Any, header: tuple[str, int, list[int]]) -> NDArray[Any]:
            dtype, place, shape = header
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(arrays, np.dtype(dtype), count, place) if count else np.empty(0, np.dtype(dtype))
            array.flags.writeable = False
            return array.reshape(shape)

        return msgspec.msgpack.decode(head, type=type, dec_hook=in_place)
    except (struct.error, msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptArrayFile(str(error)) from None


def load(path: Path, type: type[Value]) -> Value:
    """Map a file of packed bytes; what is not looked at is not read, once the sum over it was.

    Raises:
        Damaged: as :func:`loads`.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        try:
            return loads(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), type)
        except ValueError as error:  # an empty file can't be mapped
            raise CorruptArrayFile(str(error)) from None


def _sum(parts: Iterable[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
