"""Nothing but chatter is kept from the terminal."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dptrace.record.profiler.quiet_stderr import quiet_stderr

USDT = b"USDT:2026-11-22 10:11:03 27867:27867 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
GLOO = b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
NCCL = b"host:12:34 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE\n"
ERROR = b"ERROR:2026-11-22 10:11:03 1:1 CuptiActivityProfiler.cpp:9] CUPTI initialization failed\n"
NCCL_WARNING = b"host:12:34 [0] enqueue.cc:1 NCCL WARN Cuda failure 2 'out of memory'\n"


def test_chatter_is_held_back_and_errors_are_not(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Errors of Kineto and NCCL appear in their order, chatter is in the log, and a line without an end is kept."""
    with quiet_stderr(tmp_path / "log"):
        for line in (USDT, ERROR, GLOO, NCCL, NCCL_WARNING, b"no end"):
            os.write(2, line)
        assert "" == capfd.readouterr().err
    os.write(2, b"after\n")

    assert (ERROR + NCCL_WARNING + b"no endafter\n").decode() == capfd.readouterr().err
    assert USDT + GLOO + NCCL == (tmp_path / "log").read_bytes()


def test_an_error_inside_is_raised_and_the_lines_before_it_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard error is the terminal again."""
    with pytest.raises(RuntimeError, match="CUPTI"), quiet_stderr():
        os.write(2, ERROR)
        raise RuntimeError("CUPTI")
    os.write(2, USDT)

    assert (ERROR + USDT).decode() == capfd.readouterr().err


def test_lines_of_other_threads_and_blocks_inside_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """Threads write and open blocks of their own while one is open: every line appears once, none is torn."""
    threads, lines, start = 4, 50, threading.Barrier(4)

    def write(number: int) -> None:
        start.wait()
        for line in range(lines):
            with quiet_stderr():
                os.write(2, f"thread {number} line {line}\n".encode())
                os.write(2, USDT)

    workers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # A line that was being written as a block ended appears at the end of the next.
    with quiet_stderr():
        pass

    shown = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("USDT:")]
    assert sorted(f"thread {number} line {line}" for number in range(threads) for line in range(lines)) == sorted(shown)


def test_a_process_without_standard_error_runs_on(capfd: pytest.CaptureFixture[str]) -> None:
    """A daemon has closed it: there is nothing to hold back."""
    spare = os.dup(2)
    os.close(2)
    try:
        with quiet_stderr():
            reached = True
    finally:
        os.dup2(spare, 2)
        os.close(spare)

    assert reached
