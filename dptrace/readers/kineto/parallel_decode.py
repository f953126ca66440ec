"""Decoding of a huge file on several cores: this process splits its text into pieces, others turn them into columns.

::

    this process    gunzip, split ─► pieces in shared memory          columns joined, in the order of the file
                                        │                                        ▲
    the others                          └──► decode, reduce to arrays ──► pipe ──┘
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import IO

from dptrace.core.subprocess_pool import PythonProcess, serve
from dptrace.errors import DptraceError
from dptrace.readers import stream as byte_stream
from dptrace.readers.kineto.columns import Columns, DecodedPart, IdMap
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

__all__ = ["ParallelDecoder", "is_worthwhile"]

_MIN_TEXT_BYTES = 400 << 20
"""Bytes of text from which several processes pay off: one process decodes half of it while they start."""
_GZIP_RATIO = 14
"""Approximate compression ratio of a gzipped trace."""
_MAX_PROCESSES = 6
"""Number of processes that decode as fast as one decompresses and splits."""
_PIECES_PER_PROCESS = 3
"""Pieces queued per process, so that the next is ready when one is done."""


def is_worthwhile(source: Source, jobs: int) -> bool:
    """Return whether *jobs* processes would read the file faster; False for a pipe, whose size is unknown."""
    identity = file_identity(source) if jobs > 1 and hasattr(os, "fork") else None
    size = identity[1] if identity is not None else 0
    assert isinstance(size, int)
    return size * (_GZIP_RATIO if source.name.endswith(".gz") else 1) >= _MIN_TEXT_BYTES


class ParallelDecoder:
    """Processes that decode pieces of one file; a context manager that ends them."""

    def __init__(self, source: Source, columns: Columns, jobs: int) -> None:
        self.source, self.columns = source, columns
        self.count = max(1, min(jobs, _MAX_PROCESSES))
        self.workers: list[_DecoderProcess] = []
        self.slot = 2 * byte_stream.CHUNK
        self.free = deque(range(_PIECES_PER_PROCESS * self.count))
        self.sent = self.joined = 0
        self.early: dict[int, tuple[DecodedPart, _DecoderProcess]] = {}
        """Parts that arrived before earlier ones, by index."""

    def __enter__(self) -> ParallelDecoder:
        # Shared by its descriptor and without a name, so that nothing is left behind.
        with _anonymous_file() as file:
            os.truncate(file.fileno(), self.slot * len(self.free))
            self.memory = mmap.mmap(file.fileno(), 0)
            try:
                for _ in range(self.count):
                    self.workers.append(_DecoderProcess(file.fileno()))
            except BaseException as error:
                self.__exit__()
                if isinstance(error, OSError):
                    raise DptraceError(f"can't start another process: {error}; use --jobs 1.") from None
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        self.memory.close()

    def add(self, text: bytes, between: bytes) -> None:
        """Queue a piece; pieces come in the order of the file."""
        while not self.free:
            self._wait()
        worker = min(self.workers, key=lambda worker: len(worker.pending))
        slot: int | None = None
        place: slice | bytes = text
        if len(text) <= self.slot:
            slot = self.free.popleft()
            place = slice(slot * self.slot, slot * self.slot + len(text))
            self.memory[place] = text
        else:
            # Through the connection, which is free once the process has sent all its results.
            while worker.pending:
                self._wait()
        worker.pending.append((self.sent, slot))
        self.sent += 1
        with self._report_loss(worker):
            worker.connection.send((place, between))

    def finish(self) -> None:
        """Wait until all pieces are decoded."""
        while self.joined < self.sent:
            self._wait()

    def _wait(self) -> None:
        """Receive the results of at least one process."""
        busy = [worker for worker in self.workers if worker.pending]
        ready = wait([worker.connection for worker in busy])
        for worker in busy:
            if worker.connection in ready:
                self._take(worker)

    def _take(self, worker: _DecoderProcess) -> None:
        with self._report_loss(worker):
            answer = worker.connection.recv()
        if isinstance(answer, BaseException):
            raise DptraceError(
                f"{self.source.address}: a process that read a part of it failed ({answer!r}); try --jobs 1."
            )
        place, slot = worker.pending.popleft()
        if slot is not None:
            self.free.append(slot)
        self.early[place] = (answer, worker)
        while self.joined in self.early:
            part, sender = self.early.pop(self.joined)
            self.columns.add(part, sender.ids)
            self.joined += 1

    @contextmanager
    def _report_loss(self, worker: _DecoderProcess) -> Iterator[None]:
        """Turn the death of a process into a DptraceError."""
        try:
            yield
        except (EOFError, OSError):
            code = worker.process.wait()
            why = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with exit code {code}"
            raise DptraceError(
                f"{self.source.address}: a process that read a part of it {why}; try --jobs 1."
            ) from None


class _DecoderProcess(PythonProcess):
    """One process, with the pieces that it has not answered yet."""

    def __init__(self, memory: int) -> None:
        super().__init__("dptrace.readers.kineto.parallel_decode:serve_pieces", memory)
        self.pending: deque[tuple[int, int | None]] = deque()
        """Index and slot of each piece."""
        self.ids = IdMap()


def _anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("dptrace"), "r+b")
    return tempfile.TemporaryFile()


def serve_pieces(connection: int, memory: int) -> None:
    """Receive positions of pieces and send their columns, until the parent process has gone.

    Args:
        memory: descriptor of the memory that holds the pieces.
    """
    from dptrace.readers.kineto.decode import add_piece

    columns = Columns()
    with mmap.mmap(memory, 0, access=mmap.ACCESS_READ) as texts:

        def decode(message: tuple[slice | bytes, bytes]) -> DecodedPart:
            place, between = message
            add_piece(texts[place] if isinstance(place, slice) else place, between, columns)
            return columns.part()

        serve(connection, decode)
