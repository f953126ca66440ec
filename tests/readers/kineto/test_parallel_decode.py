"""Decoding of one file by several processes."""

from __future__ import annotations

import dataclasses
import gzip
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import dptrace.readers.stream
from dptrace.errors import DptraceError
from dptrace.readers.kineto import parallel_decode
from dptrace.readers.kineto.columns.events import Columns
from dptrace.readers.kineto.parallel_decode import ParallelDecoder, is_worthwhile
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import EventPiece
from tests.support.kineto_files import KinetoFile, training_step

TEXT = b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
EVENT = EventPiece(TEXT, b"[", b"", last=False)


@pytest.fixture
def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several processes read small files."""
    monkeypatch.setattr(parallel_decode, "_MIN_TEXT_BYTES", 1)
    monkeypatch.setattr(dptrace.readers.stream, "CHUNK", 3000)


def damaged_file(path: Path) -> Path:
    file = KinetoFile()
    for k in range(60):
        training_step(file, k, 100 * k)
    file.op("x" * 10_000, 1, 2).op("bro?ken", 3, 4)
    for k in range(60, 90):
        training_step(file, k, 100 * k)
    path.write_bytes(gzip.compress(file.text().replace("bro?ken", "bro\x01ken").encode()))
    return path


@pytest.mark.heavy
@pytest.mark.usefixtures("many_pieces")
def test_many_processes_read_what_one_reads(tmp_path: Path) -> None:
    """Every column, name, collective and note is the same, in order, even with an event longer than a piece."""
    path = damaged_file(tmp_path / "t.json.gz")

    single, parallel = read_trace(path), read_trace(path, jobs=3)

    assert single.comm
    assert single.damage
    for field in dataclasses.fields(single):
        mine, theirs = getattr(single, field.name), getattr(parallel, field.name)
        if isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs), field.name
            assert mine.dtype == theirs.dtype, field.name
        else:
            assert mine == theirs, field.name


def test_a_process_that_dies_is_reported_and_the_others_end(tmp_path: Path) -> None:
    """No hang, no orphan, and an error that names the file and a workaround."""
    with (
        pytest.raises(DptraceError, match=r"t\.json: a process .* killed by signal 9 .*--jobs 1"),
        ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 2) as decoder,
    ):
        for k in range(100):
            decoder.add(EVENT)
            if k == 5:
                os.kill(decoder.workers[0].process.pid, signal.SIGKILL)
                decoder.workers[0].process.wait()
        decoder.finish()

    assert all(worker.process.poll() is not None for worker in decoder.workers)


def test_a_process_that_fails_is_reported(tmp_path: Path) -> None:
    """A failed process does not lose events silently."""
    with (
        pytest.raises(DptraceError, match=r"t\.json: a process .* failed .*--jobs 1"),
        ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 1) as decoder,
    ):
        decoder.add(EventPiece(TEXT, b"[", None, last=False))  # type: ignore[arg-type]
        decoder.finish()


def test_processes_end_when_the_one_that_asks_is_gone(tmp_path: Path) -> None:
    """The workers end if the parent is killed."""
    with ParallelDecoder(Source.of(tmp_path / "t.json"), Columns(), 1) as decoder:
        (worker,) = decoder.workers
        decoder.add(EVENT)
        decoder.finish()
        worker.connection.close()
        until = time.monotonic() + 60
        while worker.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)

        assert 0 == worker.process.poll()
        assert 1 == decoder.columns.kept


def test_only_large_files_pay(tmp_path: Path) -> None:
    """One process reads a file that takes a second, and a pipe, whose size is unknown."""
    small, large, zipped, pipe = (tmp_path / name for name in ("a.json", "b.json", "c.json.gz", "d.json"))
    small.write_bytes(b"{}")
    for path, size in ((large, 500 << 20), (zipped, 100 << 20)):
        path.touch()
        os.truncate(path, size)
    os.mkfifo(pipe)

    worthwhile = [
        is_worthwhile(Source.of(path), jobs)
        for path, jobs in ((small, 4), (large, 4), (large, 1), (zipped, 4), (pipe, 4))
    ]
    assert [False, True, False, True, False] == worthwhile
