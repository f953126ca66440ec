"""A file of arrays that is written array by array and mapped whole, for more data than fits in memory.

::

    array · array · … │ head: the caller's bytes and each array's type, shape and place │ length and CRC-32 of the head
"""

from __future__ import annotations

import base64
import mmap
import os
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.lib import format as numpy_format
from numpy.typing import NDArray

from dptrace.core.array_file import CorruptArrayFile
from dptrace.core.files import open_part

__all__ = ["ArrayWriter", "MappedArrays", "open_arrays"]

_MAGIC = b"dptrace\x02"
_END = struct.Struct("<QIxxxx8s")
_ALIGN = 4096


class _Head(msgspec.Struct):
    """Each array as the bytes of its type in Python, shape and offset; and what the caller adds."""

    arrays: list[tuple[Any, list[int], int]]
    about: str


class ArrayWriter:
    """Write a file of arrays next to its final place; it appears there only when it is complete.

    ::

        with ArrayWriter(path) as writer:
            writer.allocate(np.int64, (1000,))[:] = values
            writer.finish(b"what the arrays are")
    """

    def __init__(self, path: Path) -> None:
        self._path, self._arrays = path, list[tuple[Any, list[int], int]]()
        self._temporary, self._file = open_part(path.parent)
        self._size = 0

    def allocate(self, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array in the file, to be filled.

        Raises:
            OSError: there is no room for it.
        """
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._arrays.append((numpy_format.dtype_to_descr(dtype), list(shape), self._size))
        if not size:
            return np.empty(shape, dtype)
        if hasattr(os, "posix_fallocate"):
            # Without room reserved, writing to the mapped file would end the process.
            os.posix_fallocate(self._file.fileno(), self._size, size)
        else:
            self._file.truncate(self._size + size)
        array = np.memmap(self._file, dtype, "r+", self._size, shape)
        self._size += -(-size // _ALIGN) * _ALIGN
        return array

    def finish(self, about: bytes) -> None:
        """Write the head, and move the file to its place."""
        head = msgspec.json.encode(_Head(self._arrays, base64.b64encode(about).decode("ascii")))
        self._file.seek(self._size)
        self._file.write(head + _END.pack(len(head), zlib.crc32(head), _MAGIC))
        self._file.flush()
        self._temporary.replace(self._path)

    def __enter__(self) -> ArrayWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what is not finished."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class MappedArrays:
    """The arrays of a file in the order in which they were written, read-only, and what the writer added."""

    def __init__(self, mapped: mmap.mmap, arrays: list[NDArray[Any]], about: bytes) -> None:
        self.arrays, self.about, self._mapped = arrays, about, mapped
        self._advise("MADV_RANDOM", 0, len(mapped))

    def read_ahead(self, array: NDArray[Any]) -> None:
        """Have the system read a part of an array soon and at once; page by page, each would wait for the disk."""
        if not array.size:
            return
        base = np.frombuffer(self._mapped, np.uint8).ctypes.data
        low = array.ctypes.data - base
        high = low + array.nbytes
        if 0 <= low and high <= len(self._mapped):
            self._advise("MADV_WILLNEED", low & -mmap.PAGESIZE, high - (low & -mmap.PAGESIZE))

    def _advise(self, name: str, start: int, length: int) -> None:
        # By default the system reads the neighbors of a page, too, which makes a scattered read ten times as slow.
        if hasattr(mmap, name):
            self._mapped.madvise(getattr(mmap, name), start, length)


def open_arrays(path: Path) -> MappedArrays:
    """Map a file that :class:`ArrayWriter` wrote. Only the head is checked, as the rest may be larger than the memory.

    Raises:
        CorruptArrayFile: the file is cut off, or its head was changed.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise CorruptArrayFile(str(error)) from None
    try:
        length, checksum, magic = _END.unpack_from(mapped, len(mapped) - _END.size)
        begin = len(mapped) - _END.size - length
        if magic != _MAGIC or begin < 0 or zlib.crc32(mapped[begin : begin + length]) != checksum:
            raise CorruptArrayFile("the file was cut off or changed")
        head = msgspec.json.decode(mapped[begin : begin + length], type=_Head)
        arrays = [_array(mapped, *entry) for entry in head.arrays]
        return MappedArrays(mapped, arrays, base64.b64decode(head.about))
    except (struct.error, msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptArrayFile(str(error)) from None


def _array(mapped: mmap.mmap, descr: Any, shape: list[int], offset: int) -> NDArray[Any]:
    dtype = _dtype(descr)
    count = int(np.prod(shape, dtype=np.int64))
    return (np.frombuffer(mapped, dtype, count, offset) if count * dtype.itemsize else np.empty(0, dtype)).reshape(
        shape
    )


def _dtype(descr: Any) -> np.dtype[Any]:
    """Return a type from its description, in which JSON has turned tuples into lists."""
    if isinstance(descr, str):
        return np.dtype(descr)
    fields = [
        (name, kind, *(tuple(item) if isinstance(item, list) else item for item in rest)) for name, kind, *rest in descr
    ]
    return np.dtype(fields)
