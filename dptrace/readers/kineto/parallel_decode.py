"""Decoding of a huge file on several cores: this process splits its text into pieces, others turn them into columns.

::

    this process    gunzip, split ─► pieces               columns joined, in the order of the file
                                        │                            ▲
    the others                          └──► decode, reduce to arrays ┘
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from dptrace.core.subprocess_pool import PythonProcess, serve
from dptrace.errors import DptraceError
from dptrace.readers.kineto.columns.events import Columns, DecodedPart, IdMap
from dptrace.readers.kineto.decode import PieceDecoder, decode_whole
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity
from dptrace.readers.stream import EventPiece

if TYPE_CHECKING:
    from concurrent.futures import Future

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
        self.serial = PieceDecoder(columns)
        """Decodes the pieces that are not whole events, in this process."""
        self.count = max(1, min(jobs, _MAX_PROCESSES))
        self.workers: list[_DecoderProcess] = []
        self.sent = 0
        self.pending: deque[tuple[_DecoderProcess, Future[object], EventPiece]] = deque()
        """The pieces whose columns are not joined yet, in the order of the file."""

    def __enter__(self) -> ParallelDecoder:
        try:
            for _ in range(self.count):
                self.workers.append(_DecoderProcess())
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise DptraceError(f"can't start another process: {error}; use --jobs 1.") from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()

    def add(self, piece: EventPiece) -> None:
        """Queue a piece; pieces come in the order of the file."""
        worker = self.workers[self.sent % self.count]
        self.sent += 1
        self.pending.append((worker, worker.thread.submit(worker.ask, (piece.text, piece.between)), piece))
        if len(self.pending) > _PIECES_PER_PROCESS * self.count:
            self._join()

    def finish(self) -> None:
        """Wait until all pieces are decoded."""
        while self.pending:
            self._join()

    def _join(self) -> None:
        """Append the columns of the next piece."""
        worker, future, piece = self.pending.popleft()
        try:
            part = future.result()
        except (EOFError, OSError):
            code = worker.process.wait()
            why = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with exit code {code}"
        else:
            if part is None:
                self.serial.add(piece)
                return
            if isinstance(part, DecodedPart) and self.serial.waits:
                self.columns.add(DecodedPart(names=part.names, threads=part.threads), worker.ids)
                self.serial.add(piece)
                return
            if isinstance(part, DecodedPart):
                self.serial.flush()
                self.columns.add(part, worker.ids)
                return
            why = f"failed ({part!r})"
        raise DptraceError(f"{self.source.address}: a process that read a part of it {why}; try --jobs 1.")


class _DecoderProcess(PythonProcess):
    """One process, and the thread that sends it pieces and receives their columns."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # few files are huge

        super().__init__("dptrace.readers.kineto.parallel_decode:serve_pieces")
        self.thread = ThreadPoolExecutor(1)
        self.ids = IdMap()

    def ask(self, piece: tuple[bytes, bytes]) -> object:
        """Return the columns of a piece, or the error that decoding it raised."""
        self.connection.send(piece)
        return self.connection.recv()

    def stop(self) -> None:
        """End the process, whatever it is doing, and the thread with it."""
        self.process.kill()
        self.thread.shutdown(cancel_futures=True)
        super().stop()


def serve_pieces(connection: int) -> None:
    """Receive pieces and send their columns, until the parent process has gone."""
    columns = Columns()

    def decode(piece: tuple[bytes, bytes]) -> DecodedPart | None:
        return columns.part() if decode_whole(*piece, columns) else None

    serve(connection, decode)
