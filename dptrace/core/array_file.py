"""Value classes with arrays as bytes: the arrays are aligned in one block, so that a file of them can be memory-mapped.

::

    magic · CRC-32 of what follows · length of the head │ head: the values, arrays by offset │ arrays …
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["CorruptArrayFile", "dumps", "load", "loads"]

Value = TypeVar("Value")

_MAGIC = b"dptrace\x01"
_START = struct.Struct("<8sIxxxxQ")
_ALIGN = 64


class CorruptArrayFile(Exception):
    """The bytes are not those that were written."""


def dumps(value: object) -> list[bytes | memoryview]:
    """Return the bytes of *value* in parts, to be written one after the other.

    Args:
        value: a Struct or dataclass, or a container of them, of plain values and NumPy arrays.
    """
    arrays: list[NDArray[Any]] = []
    offset = 0

    def by_offset(item: object) -> tuple[str, int, tuple[int, ...]]:
        nonlocal offset
        if isinstance(item, np.generic):
            raise TypeError(f"{item!r} is a NumPy scalar; make it an int")
        assert isinstance(item, np.ndarray), type(item)
        array = np.ascontiguousarray(item)
        header = (array.dtype.str, offset, array.shape)
        arrays.append(array)
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
        return header

    head = msgspec.msgpack.encode(value, enc_hook=by_offset)
    padding = bytes(-(_START.size + len(head)) % _ALIGN)
    parts: list[bytes | memoryview] = [head, padding]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGN)]
    return [_START.pack(_MAGIC, _sum(parts), len(head)), *parts]


def loads(data: bytes | memoryview | mmap.mmap, type: type[Value]) -> Value:
    """Return the value that was written; its arrays are read-only views of *data*.

    Raises:
        CorruptArrayFile: the bytes were changed, or are those of another type.
    """
    view = memoryview(data)
    try:
        magic, checksum, length = _START.unpack_from(view)
        if magic != _MAGIC or checksum != _sum([view[_START.size :]]):
            raise CorruptArrayFile("the bytes were changed")
        head = view[_START.size : _START.size + length]
        arrays = view[-(-(_START.size + length) // _ALIGN) * _ALIGN :]

        def in_place(kind: Any, header: tuple[str, int, list[int]]) -> NDArray[Any]:
            name, offset, shape = header
            dtype = np.dtype(name)
            if dtype != _dtype_of(kind) or min(shape) < 0:
                raise CorruptArrayFile(f"it holds {name} of shape {shape} where {kind} is expected")
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(arrays, dtype, count, offset) if count else np.empty(0, dtype)
            array.flags.writeable = False
            return array.reshape(shape)

        return msgspec.msgpack.decode(head, type=type, dec_hook=in_place)
    except (struct.error, msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise CorruptArrayFile(str(error)) from None


def _dtype_of(kind: Any) -> np.dtype[Any]:
    """Return the type of an array's entries from its annotation, such as ``NDArray[np.int64]``."""
    (entry,) = get_args(get_args(kind)[1])
    dtype: np.dtype[Any] = np.dtype(entry)
    return dtype


def load(path: Path, type: type[Value]) -> Value:
    """Map a file of such bytes; after the checksum, only what is accessed is read.

    Raises:
        CorruptArrayFile: as :func:`loads`.
        OSError: the file can't be read, or is a pipe or a device.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a file")
        try:
            return loads(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), type)
        except ValueError as error:  # an empty file can't be mapped
            raise CorruptArrayFile(str(error)) from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _sum(parts: Iterable[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
