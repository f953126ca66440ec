"""Impossible events are dropped or shortened and reported; unusual ones are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.analysis.per_gpu.split import FIGURES, split
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.build import build_timelines
from tests.support.kineto_files import BASE_NS, KinetoFile, training_step
from tests.support.real_traces import REAL, needs_real_traces


def read(file: KinetoFile, folder: Path) -> Trace:
    return read_trace(file.write(folder / "t.json"))


def kernels(trace: Trace) -> list[tuple[float, float]]:
    chosen = trace.category == Category.KERNEL
    times = np.stack((trace.start_ns[chosen], trace.end_ns[chosen]))
    return [(begin, end) for begin, end in ((times - BASE_NS) / 1000).T.tolist()]


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("path", sorted(REAL.rglob("*.json.gz")), ids=lambda path: path.name)
def test_real_recordings_are_not_touched(path: Path) -> None:
    """No event of a real file is dropped, cut or repaired: dependent launches really overlap on a stream."""
    assert () == read_trace(path).damage


def test_negative_durations_are_left_out(tmp_path: Path) -> None:
    """pytorch/kineto#646: an end that was never set."""
    trace = read(KinetoFile().kernel("a", 5, 6, 4).kernel("b", 9, 2, 7), tmp_path)

    assert [(5, 6)] == kernels(trace)
    (damage,) = trace.damage
    assert "t.json: 1 event left out with a negative duration" in damage


def test_times_that_were_never_set_are_left_out(tmp_path: Path) -> None:
    """pytorch#188481: half of the events at 0 with no duration, the others where they belong."""
    file = KinetoFile(base=False)
    for k in range(9):
        file.op("good", 1e15 + k, 1e15 + k + 0.5).op("bad", 0, 0).op("worse", 0, 0)
    trace = read(file, tmp_path)

    assert ({"good"}, 9) == ({trace.names[i] for i in trace.name}, len(trace))
    (damage,) = trace.damage
    assert "t.json: 18 events left out" in damage


def test_a_long_event_and_a_short_recording_at_zero_are_no_damage(tmp_path: Path) -> None:
    """A day apart is too far; hours are not, and a file may count from 0."""
    assert () == read(KinetoFile().op("a", 0, 0).op("b", 1, 3.6e9), tmp_path).damage


def test_events_without_times_are_reported(tmp_path: Path) -> None:
    """Events without a start are dropped; a missing or invalid duration counts as 0; numbers may be text."""
    file = KinetoFile().op("start", 1, 2).op("length", 3, 4).op("none", 5, 6).op("text", 7, 8)
    del file.events[0]["ts"]
    del file.events[1]["dur"]
    file.events[2]["dur"] = float("nan")
    file.events[3] |= {"ts": "7.001", "dur": "1.5"}
    trace = read(file, tmp_path)

    assert [3_000, 5_000, 7_001] == (trace.start_ns - BASE_NS).tolist()
    assert [0, 0, 1_500] == (trace.end_ns - trace.start_ns).tolist()
    repaired, missing_start, missing_duration = trace.damage
    assert "1 event repaired" in repaired
    assert "1 event left out" in missing_start
    assert "2 events without a duration" in missing_duration


def test_repeated_device_events_count_once(tmp_path: Path) -> None:
    """Equal name, times, stream and correlation are one kernel. A copy with another id, or on the CPU, is kept."""
    file = KinetoFile()
    for _ in range(3):
        file.event("kernel", "twice", 5, 9, stream=7, device=0, correlation=3)
    file.event("kernel", "twice", 5, 9, stream=7, device=0, correlation=4)
    file.event("kernel", "twice", 5, 9, stream=8, device=0, correlation=3).op("op", 1, 2).op("op", 1, 2)
    trace = read(file, tmp_path)

    assert (3, 5) == (len(kernels(trace)), len(trace))
    (damage,) = trace.damage
    assert "t.json: 2 events left out" in damage


def test_repeated_collectives_of_gloo_count_once(tmp_path: Path) -> None:
    """Their bytes and times would count twice, too."""
    file = KinetoFile().op("aten::mm", 0, 50)
    for _ in range(2):
        file.label("gloo:all_reduce", 10, 90, tid=9, **{"Input Dims": [[8]], "Input type": ["float"]})
    (timeline,) = build_timelines(read(file, tmp_path), 0)

    assert 1 == len(timeline.collectives)


def overrunning(correlation: int | None = None, name: str = "fmha_bwd") -> KinetoFile:
    """A kernel of 10 µs recorded with 2 s, on a stream where 20 others follow."""
    file = training_step(KinetoFile(), 1, 0)
    file.kernel(name, 200, 2_000_200, 190, stream=7)
    for k in range(20):
        file.kernel("gemm", 210 + 10 * k, 218 + 10 * k, 195 + k, stream=7)
    if correlation is not None:
        for event in file.events[-42:]:
            event["args"]["correlation"] = correlation
    return file


def test_an_overrun_is_cut_where_the_next_on_its_stream_begins(tmp_path: Path) -> None:
    """TraceLens#669: on ROCm some durations extend over later kernels, by seconds."""
    trace = read(overrunning(), tmp_path)

    assert (200, 210) in kernels(trace)
    assert "1 event on a GPU cut short" in trace.damage[0]
    (timeline,) = build_timelines(trace, 0)
    assert split(timeline).total()["wall_ns"] < 1_000_000


@pytest.mark.parametrize(
    "file", [overrunning(correlation=5), overrunning(name="ncclDevKernel_AllReduce")], ids=["graph", "collective"]
)
def test_what_may_overlap_by_right_is_not_cut(file: KinetoFile, tmp_path: Path) -> None:
    """Branches of a graph run concurrently, and a collective waits for its peers."""
    trace = read(file, tmp_path)

    assert (200, 2_000_200) in kernels(trace)
    assert () == trace.damage


def test_neighbours_may_overlap(tmp_path: Path) -> None:
    """A dependent kernel starts before the previous one ends; each instant counts once."""
    file = KinetoFile()
    for k in range(50):
        file.kernel("k", 10 * k, 10 * k + 12, 10 * k - 5)
    trace = read(file, tmp_path)
    (timeline,) = build_timelines(trace, 0)
    figures = split(timeline).total()

    assert () == trace.damage
    assert (
        502_000 == figures["wall_ns"] == sum(figures[f] for f in FIGURES if f not in ("wall_ns", "overlapped_comm_ns"))
    )


def test_two_kernels_inside_a_third_on_one_stream_are_left_as_they_are(tmp_path: Path) -> None:
    """Two might be clock jitter; the figures count each instant once anyway."""
    file = KinetoFile().kernel("a", 0, 100, -5).kernel("b", 10, 20, -4).kernel("c", 30, 40, -3).kernel("d", 200, 210, 4)
    trace = read(file, tmp_path)

    assert (0, 100) in kernels(trace)
    assert np.all(trace.end_ns >= trace.start_ns)
