"""The stopwatch of steps, torch's profiler over a window of them, and what it prints."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record import distributed, record  # noqa: E402
from dptrace.record.gloo import gloo_threads  # noqa: E402
from dptrace.record.messages import LauncherSettings  # noqa: E402
from dptrace.record.profiler import AlignedProfile, Stopwatch, WindowProfiler, device_of, quiet_stderr  # noqa: E402
from dptrace.record.script_profiler import install  # noqa: E402
from dptrace.record.windows import Purpose, Window  # noqa: E402


@pytest.mark.heavy
def test_a_lap_is_as_long_as_what_happens_in_it() -> None:
    """A step takes at least the time slept, in whole ns; the time between steps is not counted."""
    watch, laps, outer_durations = Stopwatch(torch.device("cpu")), [], []
    for seconds in (0.02, 0.0):
        start = time.perf_counter_ns()
        watch.begin()
        time.sleep(seconds)
        laps.append(watch.end())
        outer_durations.append(time.perf_counter_ns() - start)
        time.sleep(0.05)

    first, second = watch.durations_ns(laps)
    assert 20_000_000 <= first <= outer_durations[0]
    assert 0 <= second <= outer_durations[1]


def test_a_profiler_that_ends_in_its_warm_up_waits_for_no_rank() -> None:
    """torch starts it to end it; the other ranks do not start theirs then."""
    barriers: list[str] = []
    store = SimpleNamespace(barrier=lambda name, timeout: barriers.append(name))
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = AlignedProfile(store, Window(Purpose.RECORDED, 0, 2, 3, 1), activities=activities)  # type: ignore[arg-type]
    with install().ours():
        profiler.start()
        profiler.step()
        profiler.finish()

    assert [] == barriers


def test_training_is_where_its_parameters_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU script on a machine with GPUs is on CPU; without parameters, the use of CUDA decides."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    cpu, gpu = torch.zeros(1), SimpleNamespace(device=torch.device("cuda", 3))

    assert torch.device("cpu") == device_of([cpu])
    assert torch.device("cuda", 3) == device_of([cpu, gpu])  # type: ignore[list-item]
    assert torch.device("cuda", 1) == device_of([])
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert torch.device("cpu") == device_of([])


def test_on_a_gpu_the_events_are_those_of_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that never calls set_device may train on a device that is not the current one."""
    events: list[str] = []
    event = SimpleNamespace(record=events.append, elapsed_time=lambda end: 1.5)
    monkeypatch.setattr("torch.cuda.Event", lambda enable_timing: event)
    monkeypatch.setattr("torch.cuda.device", nullcontext)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: events.append(f"waited for {device}"))
    watch = Stopwatch(torch.device("cuda", 2))
    watch.begin()
    lap = watch.end()

    assert [1_500_000] == watch.durations_ns([lap])
    assert ["stream of cuda:2", "stream of cuda:2", "waited for cuda:2"] == events


# torch's profiler over one window of steps.


@pytest.mark.parametrize(
    ("device", "backends", "shapes", "expected"),
    [
        ("cpu", "cpu:gloo,cuda:gloo", False, ({"CPU"}, True)),
        ("cuda:1", "cuda:nccl", False, ({"CPU", "CUDA"}, False)),
        ("cuda:1", "cuda:nccl", True, ({"CPU", "CUDA"}, True)),
        ("cuda:1", "cpu:gloo,cuda:gloo", False, ({"CPU", "CUDA"}, True)),
    ],
)
def test_what_is_recorded_fits_where_training_is(
    device: str,
    backends: str,
    shapes: bool,
    expected: tuple[set[str], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPU work is recorded only if parameters are on a GPU; shapes only if gloo's sizes or the user need them."""
    asked: dict[str, Any] = {}

    class Profile:
        def __init__(self, rank_store: object, window: object, **settings: Any) -> None:
            asked.update(settings)

        def start(self) -> None: ...

        def finish(self) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr("dptrace.record.profiler.AlignedProfile", Profile)
    monkeypatch.setattr("dptrace.record.recording.Stopwatch.begin", lambda self: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: backends)
    recording = record("x", steps=1, warmup=2, wait=0, shapes=shapes)
    recording.set_parameters([SimpleNamespace(device=torch.device(device), numel=lambda: 7)])  # type: ignore[list-item]
    with recording:
        pass

    assert expected == ({activity.name for activity in asked["activities"]}, asked["record_shapes"])
    assert 7 == recording.parameters


# Ranks that agree when to record.


def _ranks(monkeypatch: pytest.MonkeyPatch, *seen: bool) -> list[WindowProfiler]:
    """Return the profiler of each of two ranks that share a store; *seen*: whose script profiles itself."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(distributed, "_store", lambda: store)
    monkeypatch.setattr("dptrace.record.messages.world_size", lambda: 2)
    ranks = []
    for own in seen:
        rank = WindowProfiler(distributed.RankStore("1"), LauncherSettings("", ""), lambda: None, None)
        monkeypatch.setattr(rank, "_guard", SimpleNamespace(foreign_seen=own, foreign_busy=lambda: False))
        ranks.append(rank)
    return ranks


def test_without_a_profiler_of_the_script_no_rank_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank decides alone, although the other never asks."""
    ranks = _ranks(monkeypatch, False, False)

    assert not ranks[0].blocked(3)


def test_one_rank_that_cannot_record_blocks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks get the same answer at the same step."""
    ranks = _ranks(monkeypatch, True, False)
    ranks[0].announce()

    with ThreadPoolExecutor(2) as pool:
        for step, lost in ((3, [True, False]), (4, [False, False])):
            answers = list(pool.map(lambda rank, own, step=step: rank.blocked(step, own), ranks, lost))
            assert [any(lost)] * 2 == answers


def test_the_others_know_when_a_script_starts_its_own_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the rank ends its step: one that learns it while it asks would wait for others that never do."""
    _ranks(monkeypatch, False, True)
    start = install().on_foreign_start

    assert start is not None
    assert not distributed.RankStore("1").is_published("script_profiler")
    start()
    assert distributed.RankStore("1").is_published("script_profiler")


def test_a_rank_that_no_one_answers_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once, not at each step."""
    monkeypatch.setattr("dptrace.record.profiler.BARRIER_TIMEOUT", timedelta(milliseconds=50))
    rank, _ = _ranks(monkeypatch, True, False)

    assert [True, False] == [rank.blocked(3, True), rank.blocked(4)]


# The ids of gloo's threads.


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
