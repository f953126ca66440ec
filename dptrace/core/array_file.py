"""Value classes with arrays as bytes: the arrays are aligned in one block, so that a file of them can be memory-mapped.

::

    magic · CRC-32 of what follows · length of the head │ head: the values, arrays by offset │ arrays …
"""

from __future__ import annotations

import base64
import math
import mmap
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from numpy.lib import format as numpy_format
from numpy.typing import NDArray

from dptrace.core.files import open_part

Value = TypeVar("Value")

_MAGIC = b"dptrace\x01"
_START = struct.Struct("<8sIxxxxQ")
_ALIGN = 64
"""Bytes that each array begins at a multiple of: a line of a processor's cache."""


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


@cache
def _entry_type(kind: Any) -> np.dtype[Any]:
    """Return the type of the entries of an annotation such as ``NDArray[np.int64]``."""
    (entry,) = get_args(get_args(kind)[1])
    dtype: np.dtype[Any] = np.dtype(entry)
    return dtype


def loads(data: bytes | memoryview | mmap.mmap, type: type[Value], copied: bool = False) -> Value:
    """Return the value that was written; its arrays are read-only views of *data*.

    Args:
        copied: they are views of a copy of the arrays, and *data* is not kept.

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
        if copied:
            arrays = memoryview(bytes(arrays))

        def in_place(kind: Any, header: tuple[str, int, list[int]]) -> NDArray[Any]:
            name, offset, shape = header
            dtype = np.dtype(name)
            if dtype != _entry_type(kind) or min(shape) < 0:
                raise CorruptArrayFile(f"it holds {name} of shape {shape} where {kind} is expected")
            count = math.prod(shape)
            array = np.frombuffer(arrays, dtype, count, offset) if count else np.empty(0, dtype)
            if array.flags.writeable:
                array.flags.writeable = False
            return array if len(shape) == 1 else array.reshape(shape)

        return msgspec.msgpack.decode(head, type=type, dec_hook=in_place)
    except (struct.error, msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise CorruptArrayFile(str(error)) from None


def load(path: Path, type: type[Value], mapped: bool = True) -> Value:
    """Map a file of such bytes; after the checksum, only what is accessed is read.

    Args:
        mapped: otherwise, copy the arrays to memory. That is done, too, where files use up the descriptors that a
            process may have.

    Raises:
        CorruptArrayFile: as :func:`loads`.
        OSError: the file can't be read, or is a pipe or a device.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a file")
        try:
            if not mapped or file.fileno() > _most_descriptors() // 2:
                return loads(file.read(), type, copied=True)
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            value = loads(pages, type)
        except ValueError as error:  # an empty file can't be mapped
            raise CorruptArrayFile(str(error)) from None
    _drop(pages)  # the checksum has read all
    return value


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory of the mapped file that an array is in, whose arrays remain valid; else do nothing.

    What is accessed again is read again, from the file or from what the system keeps of it. A loop over the mapped
    files of many ranks calls this after each: its memory is that of one rank.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap):
        _drop(base.obj)


def _drop(pages: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _most_descriptors() -> int:
    """Return how many files this process may have open, of which each mapping is one."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _sum(parts: Iterable[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


# A file of arrays that is written array by array and mapped whole, for more data than fits in memory.
#
# ::
#
#     array · array · … │ head: the caller's bytes and each array's type, shape and place │ length and CRC-32 of the
#     head

_MAPPED_MAGIC = b"dptrace\x02"
_END = struct.Struct("<QIxxxx8s")
_MAPPED_ALIGN = 4096
"""Bytes of a page of memory."""
_MAX_ROOM = 64 << 20
"""Most bytes that are reserved at once for arrays to come."""


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
        self._room: NDArray[np.uint8] = np.empty(0, np.uint8)

    def allocate(self, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array in the file, to be filled.

        Raises:
            OSError: there is no room for it.
        """
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if size > len(self._room):
            self._reserve(size)
        self._arrays.append((numpy_format.dtype_to_descr(dtype), list(shape), self._size))
        if not size:
            return np.empty(shape, dtype)
        array: NDArray[Any] = self._room[:size].view(dtype).reshape(shape)
        taken = -(-size // _MAPPED_ALIGN) * _MAPPED_ALIGN
        self._room, self._size = self._room[taken:], self._size + taken
        return array

    def _reserve(self, size: int) -> None:
        """Map room for *size* bytes and more: a mapping for each array would use up the descriptors of a process."""
        size = max(-(-size // _MAPPED_ALIGN) * _MAPPED_ALIGN, min(self._size, _MAX_ROOM))
        if hasattr(os, "posix_fallocate"):
            # Without room reserved, writing to the mapped file would end the process.
            os.posix_fallocate(self._file.fileno(), self._size, size)
        else:
            self._file.truncate(self._size + size)
        self._room = np.memmap(self._file, np.uint8, "r+", self._size, (size,))

    def finish(self, about: bytes) -> None:
        """Write the head, and move the file to its place."""
        head = msgspec.json.encode(_Head(self._arrays, base64.b64encode(about).decode("ascii")))
        self._file.seek(self._size)
        self._file.write(head + _END.pack(len(head), zlib.crc32(head), _MAPPED_MAGIC))
        self._file.truncate()
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
        if magic != _MAPPED_MAGIC or begin < 0 or zlib.crc32(mapped[begin : begin + length]) != checksum:
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
