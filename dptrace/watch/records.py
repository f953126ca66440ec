"""The files of a watch: two per rank, of fixed-size records behind a header of 4 KiB, only ever appended to.

``rank0003.steps`` has a record for each step, ``rank0003.calls`` one for each collective and each send or receive. Both
are little-endian and have no padding. The header is JSON, filled up with spaces; ``numpy.fromfile(path, dtype,
offset=4096)`` reads the rest, up to the last whole record. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dptrace.errors import DptraceError

STAGES = ("data", "forward", "backward", "optimizer", "other")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(5)
COLLECTIVE, SEND, RECEIVE, GROUP, ONE_WAY, DEVICE = range(1, 7)
"""Kinds of calls. GROUP introduces a group; a ONE_WAY collective (broadcast, gather …) lets some ranks leave early; a
DEVICE has the device time of a step's stages in the place of own times."""
PROFILED, TOKENS = 1, 2
"""Flags of a step: the profiler recorded it; its items are tokens."""
CORE_WAIT_BITS = 8
"""Above these bits of the flags: for how many thousandths of the time the thread that trains has waited for a core."""

FORMAT, HEADER = "dptrace-watch 1", 4096
STEP = struct.Struct("<IIqq5q5qqq")
CALL = struct.Struct("<BBHIIiqqq5q")
STEP_TYPE = np.dtype(
    [
        *(("step", "<u4"), ("flags", "<u4"), ("begin_ns", "<i8"), ("end_ns", "<i8")),
        *((f"{stage}_ns", "<i8") for stage in STAGES),
        *((f"{stage}_waiting_ns", "<i8") for stage in STAGES),
        *(("memory", "<i8"), ("items", "<i8")),
    ]
)
"""A step: when it began and ended on the rank's own clock; its own time in each stage, and what it was blocked there in
collectives, sends and receives; bytes of memory, -1 unless known; samples or tokens."""
CALL_TYPE = np.dtype(
    [
        *(("kind", "u1"), ("stage", "u1"), ("group", "<u2"), ("step", "<u4"), ("sequence", "<u4"), ("peer", "<i4")),
        *(("arrival_ns", "<i8"), ("waits_ns", "<i8"), ("end_ns", "<i8"), ("own_ns", "<i8", 5)),
    ]
)
"""A call: when the rank called, when it began to wait for the result, and when it went on; *own_ns* is the own time of
the rank in each stage from its start to the call. Of a GROUP, *sequence* is the number of ranks."""

_MOST_MEMORY, _MOST_ITEMS = 1 << 47, 1 << 40
"""A record with more bytes of memory, or more samples or tokens, is damaged."""
_TIMES = tuple(f"{stage}{kind}_ns" for kind in ("", "_waiting") for stage in STAGES)
assert STEP.size == STEP_TYPE.itemsize
assert CALL.size == CALL_TYPE.itemsize

Records = npt.NDArray[np.void]


class Appended:
    """A file that grows by whole records. After an error it takes nothing more: a full disk must not end a training."""

    def __init__(self, path: Path, header: dict[str, Any], limit: int | None = None) -> None:
        self.path, self.size, self.error = path, HEADER, ""
        self._header, self._limit, self._file = header, limit, -1
        self._open()

    def _open(self) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file, self.size = os.open(self.path, flags, 0o644), HEADER
            os.write(self._file, json.dumps(self._header).encode().ljust(HEADER - 1) + b"\n")
        except OSError as error:
            self.fail(error)

    def write(self, records: bytes | bytearray) -> None:
        """Append records. A file that has a limit is renamed when it is full, and begins anew."""
        if self.error:
            return
        try:
            self.size += os.write(self._file, records)
            if self._limit is not None and self.size >= self._limit:
                os.replace(self.path, self.path.with_suffix(f".before{self.path.suffix}"))
                os.close(self._file)
                self._open()
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """Take nothing more."""
        self.error = f"{self.path}: {error.strerror or error}"
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1


class RankFile(msgspec.Struct, frozen=True):
    """What the header of a rank's files says."""

    rank: int
    world_size: int
    host: str
    unix_ns: int
    clock_ns: int
    """The rank's clock, in which all times are, at the time *unix_ns*."""
    process: int
    started: int
    """How often the ranks had been restarted."""
    record: list[Any]
    """The type of the records, as numpy describes it."""


def rank_path(folder: Path, rank: int, kind: str) -> Path:
    """Return the file of a rank; *kind* is ``steps`` or ``calls``."""
    return folder / f"rank{rank:04d}.{kind}"


def rank_files(folder: Path) -> tuple[dict[int, RankFile], list[str]]:
    """Return the ranks whose files are in a folder, and in a sentence each what is wrong with the files of others."""
    found: dict[int, RankFile] = {}
    damaged = []
    for path in sorted(folder.glob("rank*.steps")):
        if not re.fullmatch(r"rank\d{4,}\.steps", path.name):
            continue
        try:
            file, calls = header(path), header(path.with_suffix(".calls"))
            if {path} != {rank_path(folder, one.rank, "steps") for one in (file, calls)}:
                raise DptraceError(f"{path.name} and its .calls say they are of rank {file.rank} and {calls.rank}")
            if found and (size := next(iter(found.values())).world_size) != file.world_size:
                raise DptraceError(f"{path.name} is of a job of {file.world_size} ranks, others here are of {size}")
            found[file.rank] = file
        except DptraceError as error:
            damaged.append(str(error))
    return found, damaged


def header(path: Path) -> RankFile:
    """Return the header of a file.

    Raises:
        DptraceError: it is no file of a watch, or not whole.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER)
    except OSError as error:
        raise DptraceError(f"{path.name}: {error.strerror or error}") from None
    if len(head) < HEADER:
        raise DptraceError(f"{path.name} ends in its header, after {len(head):,} of {HEADER:,} bytes")
    try:
        content = json.loads(head)
        if content["format"] != FORMAT:
            raise DptraceError(f"{path.name} is of another version of dptrace watch ({str(content['format'])[:40]})")
        found = msgspec.convert(content, RankFile)
    except (ValueError, TypeError, KeyError):  # msgspec's errors are a ValueError
        raise DptraceError(f"{path.name} has no header of dptrace watch") from None
    if found.record != json.loads(json.dumps(_kind(path).descr)):
        raise DptraceError(f"{path.name} has other records than this version of dptrace reads")
    return found


def _kind(path: Path) -> np.dtype[np.void]:
    return CALL_TYPE if path.suffix == ".calls" else STEP_TYPE


def read(path: Path) -> Records:
    """Return the whole records of a file."""
    return np.fromfile(path, _kind(path), offset=HEADER)


class Tail:
    """Reads what has been appended to a file since the last call, also if that was renamed meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path, self._done, self._file = path, 0, -1
        old = path.with_suffix(f".before{path.suffix}")
        self._parts = [old, path] if old.exists() else [path]
        self._kind, self._count, self._last = _kind(path), 0, -1
        self._before: tuple[float, float] | None = None
        """When the last call arrived, and the rank's own time then."""
        self.problem = ""
        """What is wrong with a record; nothing is read from it on."""

    def read(self, most: int = 1 << 20) -> Records:
        """Return the next whole records, at most so many, up to one that none can be."""
        parts = [] if self.problem else list(self._read(most))
        records = np.concatenate(parts) if parts else np.empty(0, self._kind)
        wrong = self._wrong_calls(records) if self._kind is CALL_TYPE else self._wrong_steps(records)
        if wrong.any():
            records = records[: wrong.argmax()]
            self.problem = f"{self.path.name} is damaged after {self._count + len(records):,} whole records"
        self._count += len(records)
        if len(records):
            self._last = int(records["step"][-1])
        return records

    def _wrong_steps(self, records: Records) -> npt.NDArray[np.bool_]:
        """Steps follow one another; their times lie in them and add up: on a clock that drifts, nearly.

        Memory and items are what there can be.
        """
        before = self._last if self._count or not len(records) else int(records["step"][0]) - 1
        length = records["end_ns"] - records["begin_ns"]
        times = np.stack([records[name].astype(np.float64) for name in _TIMES])
        leeway = 1000 + 1e-3 * length
        follows = np.diff(records["step"].astype(np.int64), prepend=before) == 1
        wrong: npt.NDArray[np.bool_] = ~follows | (np.abs(times.sum(0) - length) > leeway)
        wrong |= (times.min(0) < -leeway) | (times.max(0) > length + leeway)
        wrong |= (records["memory"] < -1) | (records["memory"] > _MOST_MEMORY)
        wrong |= (records["items"] < 0) | (records["items"] > _MOST_ITEMS)
        return wrong

    def _wrong_calls(self, records: Records) -> npt.NDArray[np.bool_]:
        """The times of a call are in order, and a rank's own time grows from arrival to arrival, at most as they do.

        Calls are in the order in which they were waited for, so the next one may have arrived earlier.
        """
        wrong: npt.NDArray[np.bool_] = (records["kind"] - 1 >= DEVICE) | (records["stage"] >= len(STAGES))
        wrong |= (records["waits_ns"] < records["arrival_ns"]) | (records["end_ns"] < records["waits_ns"])
        at = np.flatnonzero(~np.isin(records["kind"], (GROUP, DEVICE)))
        if len(at):
            arrival, own = records["arrival_ns"][at].astype(np.float64), records["own_ns"][at].astype(np.float64).sum(1)
            before = self._before or (arrival[0], own[0])
            passed, grown = np.diff(arrival, prepend=before[0]), np.diff(own, prepend=before[1])
            wrong[at] |= (np.abs(grown) > np.abs(passed) + 1000) | (grown * np.sign(passed) < -1000)
            self._before = arrival[-1], own[-1]
        return wrong

    def _read(self, most: int) -> Iterator[Records]:
        size = self._kind.itemsize
        while most > 0:
            if self._file < 0:
                try:
                    self._file, self._done = os.open(self._parts[0], os.O_RDONLY | os.O_CLOEXEC), 0
                except OSError:
                    return
            whole = min(most, max(0, (os.fstat(self._file).st_size - HEADER) // size - self._done))
            if whole:
                text = os.pread(self._file, whole * size, HEADER + self._done * size)
                whole = len(text) // size
                self._done += whole
                most -= whole
                yield np.frombuffer(text[: whole * size], self._kind)
                continue
            if len(self._parts) > 1:
                del self._parts[0]
            elif not self._was_replaced():
                return
            os.close(self._file)
            self._file = -1

    def _was_replaced(self) -> bool:
        """Return whether the open file was renamed, and another one begun in its place."""
        try:
            return os.stat(self.path).st_ino != os.fstat(self._file).st_ino
        except OSError:
            return False
