"""Where steps start and end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.model import AFTER_LAST, BEFORE_FIRST
from dptrace.timeline.steps import WHOLE_TRACE, CpuSteps, cpu_steps, device_windows
from tests.support.kineto_files import BASE_NS, KinetoFile


def steps_of(starts: list[int], end: int) -> CpuSteps:
    return CpuSteps(tuple(f"ProfilerStep#{k}" for k in range(len(starts))), np.array(starts, np.int64), end)


def windows(starts: list[int], end: int, rows: list[tuple[int, int, int]]) -> list[int]:
    """Compute windows from rows of (step that launched, start, end)."""
    start, stop = np.array([a for _, a, _ in rows], np.int64), np.array([b for _, _, b in rows], np.int64)
    step = np.array([k for k, _, _ in rows], np.int32)
    return [int(edge) for edge in device_windows(steps_of(starts, end), start, stop, step).bounds]


def test_marks_on_the_cpu_become_steps(tmp_path: Path) -> None:
    """Steps come from annotations on the CPU, not from their copies on the GPU, and have the profiler's names."""
    file = KinetoFile().label("ProfilerStep#5", 100, 190).label("ProfilerStep#4", 0, 90)
    file.event("gpu_user_annotation", "ProfilerStep#4", 20, 95, tid=7).kernel("k", 10, 20, 5)

    steps = cpu_steps(read_trace(file.write(tmp_path / "t.json")))

    assert ("ProfilerStep#4", "ProfilerStep#5") == steps.names
    assert [0, 100_000] == (steps.start_ns - BASE_NS).tolist()
    assert 190_000 == steps.end_ns - BASE_NS


def test_a_time_lies_in_the_step_that_began_last() -> None:
    """Between two marks the earlier step continues; before the first and after the last there is no step."""
    steps = steps_of([10, 20], 30)

    assert [BEFORE_FIRST, 0, 0, 1, AFTER_LAST] == steps.index_at(np.array([9, 10, 19, 29, 30])).tolist()


def test_work_that_runs_behind_the_cpu_counts_in_its_own_step() -> None:
    """Step 1 begins on the device when the work of step 0 ends, not when the CPU starts step 1."""
    assert [0, 130, 210] == windows([0, 100], 200, [(0, 10, 130), (1, 130, 210)])


def test_a_device_that_waits_begins_its_step_with_the_cpu() -> None:
    """When the device has no work left, the step starts on the CPU and the wait is idle time in it."""
    assert [0, 100, 200] == windows([0, 100], 200, [(0, 10, 50), (1, 120, 150)])


def test_early_work_of_a_step_on_another_stream_begins_it() -> None:
    """A copy of the next step that overlaps this one's tail moves the edge to its own start."""
    assert [0, 110, 200] == windows([0, 100], 200, [(0, 10, 130), (1, 110, 180)])


def test_a_step_without_device_work_is_cut_by_the_cpu() -> None:
    """A step in which nothing was launched has the CPU's edges, and the last ends with its mark."""
    assert [0, 100, 200, 300] == windows([0, 100, 200], 300, [(0, 10, 50), (2, 220, 250)])


def test_without_marks_the_whole_trace_is_one_window() -> None:
    """From the first device start to the last end."""
    cut = device_windows(steps_of([], 0), np.array([5, 7]), np.array([50, 9]), np.zeros(2, np.int32))

    assert ((WHOLE_TRACE,), [5, 50]) == (cut.names, cut.bounds.tolist())


rows = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 400), st.integers(0, 100)), min_size=1, max_size=12)


@given(rows)
def test_windows_ascend_and_the_definition_holds(raw: list[tuple[int, int, int]]) -> None:
    """Each edge equals the definition, computed one by one, and edges ascend."""
    starts, end = [0, 100, 200, 300], 390
    cut = windows(starts, end, [(k, a, a + length) for k, a, length in raw])

    previous = None
    for k, cpu_start in enumerate(starts):
        before = [a + length for step, a, length in raw if step < k]
        own = [a for step, a, _ in raw if step == k]
        edge = max([cpu_start, *before])
        edge = min([edge, *own])
        edge = edge if previous is None else max(edge, previous)
        assert edge == cut[k]
        previous = edge
    last = [a + length for step, a, length in raw if step == 3]
    assert cut[-1] >= max([end, *last])
    assert sorted(cut) == cut
