"""Recordings of real jobs: figures of an independent program, and sums that hold for every file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.analysis.per_gpu.split import FIGURES, partition, split
from dptrace.errors import DptraceError
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from tests.support.real_traces import REAL, needs_real_traces, real, real_files

GOLDEN = json.loads((REAL / "golden.json").read_text()) if (REAL / "golden.json").exists() else {}
EVERY = [str(path.relative_to(REAL)) for path in real_files() if path.parent.parent == REAL] if GOLDEN else []
PARTS = [name for name in FIGURES if name not in ("wall_ns", "overlapped_comm_ns")]


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_figures_are_golden_to_the_nanosecond(name: str) -> None:
    """Every figure of every step equals the independent program's."""
    trace = read_trace(Path(real(name)))
    (timeline,) = build_timelines(trace, 0)
    figures = split(timeline)

    assert GOLDEN[name] == {
        step: {figure: int(figures.figures[figure][k]) for figure in FIGURES} for k, step in enumerate(figures.names)
    }


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("name", EVERY)
def test_parts_of_every_step_sum_to_its_wall_time(name: str) -> None:
    """For every real file: no gap between steps, no negative part, and parts and Gantt row sum to the wall time."""
    try:
        run = dptrace.open(real(name))
    except DptraceError as error:
        assert "the recording failed" in str(error)
        return
    for timeline, figures in zip(run.timelines, run.splits, strict=True):
        assert all((figures.figures[part] >= 0).all() for part in FIGURES)
        parts = np.sum([figures.figures[part] for part in PARTS], axis=0)
        assert figures.figures["wall_ns"].tolist() == parts.tolist()
        stretches = partition(timeline)
        assert stretches.start_ns[1:].tolist() == stretches.end_ns[:-1].tolist()
        assert figures.total()["wall_ns"] == (stretches.end_ns - stretches.start_ns).sum()


ODD = {
    "cuda_calls_but_no_kernels": (None, "the recording failed"),
    "distributed_info_not_found": (-1, "the trace has no GPU events"),
    "gloo_cpu_rank34of300": (-1, "No GPU work here"),
    "gpu_events_only_mi210": (1, "phase"),
    "old_schema_small": (0, None),
    "rank_non_gpu": (-1, "No GPU work here"),
    "rocm_mi250_tiny_train": (2, None),
}


@needs_real_traces
@pytest.mark.parametrize("name", sorted(ODD))
def test_odd_files_get_clear_words(name: str) -> None:
    """Each odd file is read with a note on what is missing, or rejected with an error that says it."""
    device, words = ODD[name]
    path = real(f"odd/{name}.json.gz")
    if device is None:
        with pytest.raises(DptraceError, match=words):
            dptrace.open(path)
        return
    run = dptrace.open(path)

    assert device == run.timelines[0].device
    assert words is None or any(words in note for note in run.notes)


@needs_real_traces
def test_old_and_rocm_files_find_their_phases() -> None:
    """The schema of 2021 and a ROCm step split into forward, backward and optimizer."""
    for name in ("old_schema_small", "rocm_mi250_tiny_train"):
        total = dptrace.open(real(f"odd/{name}.json.gz")).totals().iloc[0]
        assert all(total[part] > 0 for part in ("forward_ns", "backward_ns", "optimizer_ns"))


@pytest.mark.heavy
@needs_real_traces
def test_overlap_agrees_with_holistic_trace_analysis() -> None:
    """HTA 0.5.0, unrounded, without the last step: communication 24,289.050 µs, of it overlapped 3,585.678 µs."""
    figures = dptrace.open(real("ddp_a100_rank0of2")).splits[0].figures
    overlapped = int(figures["overlapped_comm_ns"][:2].sum())
    communication = overlapped + int(figures["exposed_comm_ns"][:2].sum())

    assert 24_289_050 == communication
    assert abs(overlapped - 3_585_678) <= 1  # HTA adds doubles
