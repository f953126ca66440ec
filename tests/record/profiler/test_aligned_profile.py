"""The stopwatch of steps."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.profiler.aligned_profile import AlignedProfile, Stopwatch, device_of  # noqa: E402
from dptrace.record.script_profiler.guard import install  # noqa: E402
from dptrace.record.windows.plan import Purpose, Window  # noqa: E402


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
