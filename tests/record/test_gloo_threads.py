"""The ids of gloo's threads."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dptrace.record.profiler import gloo_threads, quiet_stderr

LAST_ID = Path("/proc/sys/kernel/ns_last_pid")
LARGEST_ID = Path("/proc/sys/kernel/pid_max")


def _threads_in_order(count: int) -> tuple[list[int], list[int]]:
    """Start threads that are named as gloo's, one after the other; return their ids, and what is found of them."""
    ids: list[int] = []
    end = threading.Event()

    def run(named: threading.Event) -> None:
        number = threading.get_native_id()
        Path(f"/proc/self/task/{number}/comm").write_text("pt_gloo_runloop")
        ids.append(number)
        named.set()
        end.wait()

    threads = []
    for _ in range(count):
        threads.append(threading.Thread(target=run, args=[named := threading.Event()]))
        threads[-1].start()
        named.wait()
    found = [thread for thread in gloo_threads() if thread in ids]  # other tests of this process may have left some
    end.set()
    for thread in threads:
        thread.join()
    return ids, found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_threads_come_in_the_order_of_their_creation() -> None:
    """Threads of one hundredth of a second stay in order, also when their ids begin again at the smallest."""
    for _ in range(20):
        with suppress(OSError):  # only root may choose the next id
            LAST_ID.write_text(str(int(LARGEST_ID.read_text()) - 4))
        ids, found = _threads_in_order(8)
        assert ids == found
        if ids != sorted(ids):
            return
    pytest.skip("ids cannot be made to begin again here")


def test_other_and_unreadable_threads_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not gloo's, has ended meanwhile or has no number; the order is that of the system's list."""
    names = {"9": "pt_gloo_runloop", "6": "python3", "self": "pt_gloo_runloop", "7": "pt_gloo_runloop"}
    for thread, name in names.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "comm").write_text(f"{name}\n")
    monkeypatch.setattr("os.listdir", lambda folder: [*names, "10"] if folder == tmp_path else [])

    assert [9, 7] == gloo_threads(tmp_path)


def test_a_system_that_does_not_show_has_none(tmp_path: Path) -> None:
    """Only Linux lists threads as files; elsewhere the result is empty."""
    assert [] == gloo_threads(tmp_path / "absent")


# Nothing but chatter is kept from the terminal.


NO_GPU = b"ERROR:2026-11-24 11:04:17 13766:13766 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code 35\n"
USDT = b"USDT:2026-11-22 10:11:03 27867:27867 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
GLOO = b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
NCCL = b"host:12:34 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE\n"
ERROR = b"ERROR:2026-11-22 10:11:03 1:1 CuptiActivityProfiler.cpp:9] CUPTI initialization failed\n"
NCCL_WARNING = b"host:12:34 [0] enqueue.cc:1 NCCL WARN Cuda failure 2 'out of memory'\n"


def test_chatter_is_held_back_and_errors_are_not(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Errors of Kineto and NCCL appear in their order, chatter is in the log, and a line without an end is kept."""
    with quiet_stderr(tmp_path / "log"):
        for line in (USDT, NO_GPU, ERROR, GLOO, NCCL, NCCL_WARNING, b"no end"):
            os.write(2, line)
        assert "" == capfd.readouterr().err
    os.write(2, b"after\n")

    assert (ERROR + NCCL_WARNING + b"no endafter\n").decode() == capfd.readouterr().err
    assert USDT + NO_GPU + GLOO + NCCL == (tmp_path / "log").read_bytes()


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
