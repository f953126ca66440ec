"""The stopwatch of steps."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record import distributed  # noqa: E402
from dptrace.record.messages import LauncherSettings  # noqa: E402
from dptrace.record.profiler import AlignedProfile, Stopwatch, WindowProfiler, device_of  # noqa: E402
from dptrace.record.script_profiler import install  # noqa: E402
from dptrace.record.windows import Purpose, Window  # noqa: E402


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
    from dptrace.record import record

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


def test_a_rank_that_no_one_answers_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once, not at each step."""
    monkeypatch.setattr("dptrace.record.profiler.BARRIER_TIMEOUT", timedelta(milliseconds=50))
    rank, _ = _ranks(monkeypatch, True, False)

    assert [True, False] == [rank.blocked(3, True), rank.blocked(4)]
