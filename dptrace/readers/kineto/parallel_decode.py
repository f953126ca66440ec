"""One huge file decoded on several cores: this process cuts its text into pieces, others turn these into columns.

::

    this process    gunzip, cut ──► pieces in shared memory          columns joined, in the order of the file
                                        │                                        ▲
    the others                          └──► decode, reduce to arrays ──► pipe ──┘
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import struct
import tempfile
from collections import deque
from contextlib import suppress
from typing import IO, Any

from dptrace.core.subprocess_pool import start_python
from dptrace.errors import DptraceError
from dptrace.readers import stream as byte_stream
from dptrace.readers.kineto.columns import Columns, DecodedPart, IdMap
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

__all__ = ["ParallelDecoder", "is_worthwhile"]

_MIN_TEXT_BYTES = 400 << 20
"""Bytes of text from which on several processes pay: they start in the time in which one decodes half of it."""
_GZIP_RATIO = 14
"""How many times smaller a trace is gzipped, about."""
_MAX_PROCESSES = 6
"""Processes that decode as fast as one unpacks and cuts."""
_PIECES_PER_PROCESS = 3
"""Pieces given to a process at a time, so that it has another one when it is done with the first."""


def is_worthwhile(source: Source, jobs: int) -> bool:
    """Tell whether reading the file with *jobs* processes would be faster; nothing is known of a pipe's size."""
    identity = file_identity(source) if jobs > 1 and hasattr(os, "fork") else None
    size = identity[1] if identity is not None else 0
    assert isinstance(size, int)
    return size * (_GZIP_RATIO if source.name.endswith(".gz") else 1) >= _MIN_TEXT_BYTES


class ParallelDecoder:
    """Processes that decode pieces of one file; use it as a context, at whose end they are gone."""

    def __init__(self, source: Source, columns: Columns, jobs: int) -> None:
        self.source, self.columns = source, columns
        self.count = max(1, min(jobs, _MAX_PROCESSES))
        self.helpers: list[_DecoderProcess] = []
        self.slot = 2 * byte_stream.CHUNK
        self.free = deque(range(_PIECES_PER_PROCESS * self.count))
        self.given = self.joined = 0
        self.early: dict[int, tuple[DecodedPart, _DecoderProcess]] = {}
        """What came before the pieces that stand before it, by its place."""

    def __enter__(self) -> ParallelDecoder:
        # Shared by its descriptor and without a name: whatever happens, nothing of it is left behind.
        with _anonymous_file() as file:
            os.truncate(file.fileno(), self.slot * len(self.free))
            self.memory = mmap.mmap(file.fileno(), 0)
            try:
                for _ in range(self.count):
                    self.helpers.append(_DecoderProcess(file.fileno()))
            except BaseException as error:
                self.__exit__()
                if isinstance(error, OSError):
                    raise DptraceError(f"No further process can be started: {error}; use --jobs 1.") from None
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self.helpers:
            helper.stop()
        self.memory.close()

    def add(self, text: bytes, between: bytes) -> None:
        """Have a piece decoded; pieces come in the order of the file."""
        while not self.free:
            self._wait()
        helper = min(self.helpers, key=lambda helper: len(helper.pending))
        slot: int | None = None
        if len(text) <= self.slot:
            slot = self.free.popleft()
            self.memory[slot * self.slot : slot * self.slot + len(text)] = text
            place: Any = (slot * self.slot, len(text))
        else:
            # Through the pipe, which is free only once the process has nothing to say.
            while helper.pending:
                self._wait()
            place = text
        helper.pending.append((self.given, slot))
        self.given += 1
        with self._report_loss(helper):
            _send(helper.questions, (place, between))

    def finish(self) -> None:
        """Wait until all is decoded."""
        while self.joined < self.given:
            self._wait()

    def _wait(self) -> None:
        """Take what the processes have to say, at least one of them."""
        busy = [helper for helper in self.helpers if helper.pending]
        ready, _, _ = select.select([helper.answers for helper in busy], [], [])
        for helper in busy:
            if helper.answers in ready:
                self._take(helper)

    def _take(self, helper: _DecoderProcess) -> None:
        with self._report_loss(helper):
            answer = _received(helper.answers.fileno())
        if isinstance(answer, BaseException):
            raise DptraceError(
                f"{self.source.address}: a process that read part of it failed ({answer!r}); --jobs 1 reads all of it "
                "in one process."
            )
        place, slot = helper.pending.popleft()
        if slot is not None:
            self.free.append(slot)
        self.early[place] = (answer, helper)
        while self.joined in self.early:
            part, sender = self.early.pop(self.joined)
            self.columns.add(part, sender.numbers)
            self.joined += 1

    def _report_loss(self, helper: _DecoderProcess) -> _ReportLostProcess:
        return _ReportLostProcess(self.source, helper)


class _ReportLostProcess:
    """Turn the loss of a process into an error that tells of it."""

    def __init__(self, source: Source, helper: _DecoderProcess) -> None:
        self.source, self.helper = source, helper

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, EOFError | OSError | pickle.UnpicklingError):
            return
        code = self.helper.process.wait()
        why = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with exit code {code}"
        raise DptraceError(
            f"{self.source.address}: a process that read part of it {why}; --jobs 1 reads all of it in one process."
        ) from None


class _DecoderProcess:
    """One process, with what it was given and has not answered."""

    def __init__(self, memory: int) -> None:
        self.process = start_python(
            f"from dptrace.readers.kineto.parallel_decode import serve; serve({memory})", (memory,)
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        self.pending: deque[tuple[int, int | None]] = deque()
        """Place and slot of each piece."""
        self.numbers = IdMap()

    def stop(self) -> None:
        """End the process, whatever it is at."""
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        for stream in (self.questions, self.answers):
            with suppress(OSError):
                stream.close()


def _anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("dptrace"), "r+b")
    return tempfile.TemporaryFile()


def _send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _received(descriptor: int) -> Any:
    # Not through a buffered stream, which would keep the beginning of the next message where select() can't see it.
    (length,) = _LENGTH.unpack(_bytes(descriptor, _LENGTH.size))
    return pickle.loads(_bytes(descriptor, length))


def _bytes(descriptor: int, count: int) -> bytearray:
    data = bytearray(count)
    filled = 0
    while filled < count:
        got = os.readv(descriptor, [memoryview(data)[filled:]])
        if not got:
            raise EOFError
        filled += got
    return data


_LENGTH = struct.Struct("<Q")


def serve(memory: int) -> None:
    """Answer on stdout each piece that stdin tells of, until it ends; run in a process of its own.

    Args:
        memory: descriptor of the memory in which the pieces lie.
    """
    from dptrace.readers.kineto.decode import add_piece

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    columns = Columns()
    with mmap.mmap(memory, 0, access=mmap.ACCESS_READ) as texts:
        while True:
            try:
                place, between = _received(0)
            except EOFError:
                return
            answer: DecodedPart | BaseException
            try:
                text = place if isinstance(place, bytes) else texts[place[0] : place[0] + place[1]]
                add_piece(text, between, columns)
                answer = columns.part()
            except Exception as error:
                answer = RuntimeError(repr(error))
            try:
                _send(answers, answer)
            except OSError:
                return  # nobody is there to hear it
