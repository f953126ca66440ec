"""What a recording lacks is examined once, named, and limits the figures that need it, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import PHASES
from dptrace.core.notes import LABELS, LAUNCHES, LENGTHS, MARKS, OPERATORS, RECORDS
from dptrace.run.cross_rank import MeanStep, mean_step
from dptrace.timeline.model import Timeline
from tests.support.evidence import REMOVALS, answers
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.real_traces import REAL, needs_real_traces


def recording(steps: int = 3, rank: int = 0) -> KinetoFile:
    """Return steps of 100 ms, with work for 60 of them."""
    file = KinetoFile(rank)
    for step in range(steps):
        training_step(file, step, 100 * step)
    for event in file.events:
        event |= {"ts": 1000 * event["ts"], "dur": 1000 * event["dur"]}
        if event["cat"] == "cuda_runtime":
            event["dur"] = 5
    return file


def opened(file: KinetoFile, folder: Path, name: str = "rank0.json") -> tuple[Timeline, MeanStep]:
    """Return the timeline of a recording, and its mean step."""
    run = dptrace.open(file.write(folder / name))
    found = mean_step(run.cross_rank)
    assert found is not None
    return run.timelines[0], found


def test_a_whole_recording_lacks_nothing(tmp_path: Path) -> None:
    """All figures are known, none is a bound, and nothing is said."""
    timeline, found = opened(recording(), tmp_path)

    assert () == timeline.lacks
    assert ({}, {}, ()) == (found.unknown, found.bounds, found.limits)


@pytest.mark.heavy
def test_what_is_missing_is_named_and_limits_what_needs_it(tmp_path: Path) -> None:
    """Figures without it are null, others stay; the first sentence says so."""
    for removal, lacks, unknown in (
        ("launches", (LAUNCHES,), {*PHASES, *CAUSES}),
        ("ids of launches", (LAUNCHES,), {*PHASES, *CAUSES}),
        ("labels", (MARKS, LABELS), {*PHASES}),
        ("operators", (OPERATORS,), {*PHASES}),
        ("50 % of kernels", (RECORDS,), {*CAUSES, "exposed_comm_ns", "exposed_memory_ns"}),
        ("times of kernels", (RECORDS,), {*CAUSES, "exposed_comm_ns", "exposed_memory_ns"}),
        ("marks", (MARKS,), set()),
    ):
        file = recording()
        file.events = REMOVALS[removal](file.events)
        timeline, found = opened(file, tmp_path)
        assert {*lacks} == {*timeline.lacks}
        assert unknown == {*found.unknown}
        assert (MARKS not in lacks) == found.marked
        assert {name for name, ns in found.figures_ns.items() if ns is None} == unknown - {*CAUSES}
        assert bool(unknown) == bool(found.limits)


@pytest.mark.heavy
def test_no_figure_is_another_number_without_evidence(tmp_path: Path) -> None:
    """Of each kind: equal to the whole recording's, unknown, or a bound that holds."""
    file = recording(4)
    document: dict[str, Any] = {**file.head, "traceEvents": file.events, **file.tail}
    found = list(answers(document, tmp_path))

    assert {name: [] for name in REMOVALS} == {name: wrong for name, _, _, wrong in found}
    assert sum(equal for _, equal, _, _ in found) > 100


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("name", ["straggler_v100_4ranks/21148.pt.trace.json.gz", "odd/gloo_cpu_rank34of300.json.gz"])
def test_no_figure_of_a_real_recording_is_another_number(name: str, tmp_path: Path) -> None:
    """As above; ``benchmarks/evidence.py`` does it with any files."""
    from tests.support.evidence import read

    assert [] == [(removal, wrong) for removal, _, _, wrong in answers(read(REAL / name), tmp_path) if wrong]


@pytest.mark.parametrize("length", [0, 0.5])
def test_a_last_mark_that_has_not_ended_is_no_step(length: float, tmp_path: Path) -> None:
    """Whether its step went on or it holds none; the steps before keep their figures."""
    file = recording(4)
    marks = [event for event in file.events if event["name"].startswith("ProfilerStep")]
    marks[-1]["dur"] = length
    timeline, found = opened(file, tmp_path)

    assert 3 == len(timeline.windows)
    assert 100.0 == pytest.approx(found.wall_ns / 1e6)
    assert ["ProfilerStep#3 left out"] == [note.numbers[0] + " left out" for note in timeline.notes if note.numbers]


def test_of_two_profilers_marks_those_with_most_work_count(tmp_path: Path) -> None:
    """They cut no step in two; the note names them."""
    file = recording()
    for step in range(2):
        file.label(f"ProfilerStep#{40 + step}", 1000 * (100 * step + 35), 1000 * (100 * step + 135))
    timeline, found = opened(file, tmp_path)

    assert ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2") == timeline.windows.names
    assert 100.0 == pytest.approx(found.wall_ns / 1e6)
    assert "ProfilerStep#0 to ProfilerStep#2" in str(timeline.notes[0])


def test_work_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    """It begins before its launch, or lasts seconds beyond all else or over later work."""
    file = recording()
    file.kernel("early", -5e6, -4.9e6, 20_000).kernel("endless", 299_000, 9e6, 298_000)
    file.kernel("ncclDevKernel_Broadcast_x", 1_000, 4e6, 500, stream=20)
    timeline, found = opened(file, tmp_path)

    assert (RECORDS,) == timeline.lacks
    assert 100.0 == pytest.approx(found.wall_ns / 1e6)
    assert {"early", "endless", "ncclDevKernel_Broadcast_x"}.isdisjoint(timeline.names[name] for name in timeline.name)


def test_a_few_long_events_that_were_cut_do_not_limit_figures(tmp_path: Path) -> None:
    """Of much of the time they do: compute is then at most what is shown."""
    lacks = []
    for rest in (1, 1000):
        file = KinetoFile()
        for at in range(12):
            file.kernel(f"k{at}", 10 * at + 1, 10 * at + 9, 10 * at)
        file.events[1] |= {"dur": 95}
        file.kernel("rest", 200, 200 + 10 * rest, 199)
        lacks.append(LENGTHS in opened(file, tmp_path, f"rank{rest}.json")[0].lacks)

    assert [True, False] == lacks


def test_a_rank_without_marks_is_not_in_the_mean_step(tmp_path: Path) -> None:
    """The note names it, and the headline is of the others."""
    recording(rank=0).write(tmp_path / "rank0.json")
    file = recording(rank=1)
    file.events = REMOVALS["marks"](file.events)
    file.write(tmp_path / "rank1.json")
    run = dptrace.open(tmp_path)
    found = mean_step(run.cross_rank)

    assert found is not None
    assert 100.0 == pytest.approx(found.wall_ns / 1e6)
    (note,) = (note for note in run.cross_rank.notes if note.startswith("Rank 1 is not in the mean step"))
    assert "what findings count" in note  # they may be about rank 1


def test_work_that_waits_beyond_the_files_end_is_not_lost(tmp_path: Path) -> None:
    """Only a pause of the device shows that all which was launched before has run."""
    file = recording()
    for _ in range(5):
        file.event("cuda_runtime", "cudaLaunchKernel", 283_000, 283_005, correlation=9_000 + _)

    assert () == opened(file, tmp_path)[0].lacks


def test_steps_of_an_inference_engine_are_those_of_its_labels(tmp_path: Path) -> None:
    """As SGLang and vLLM write them; the note says so."""
    file = KinetoFile()
    for step in range(4):
        at = 1000 * step
        file.label(f"step[DECODE bs={step}]", at, at + 900).op("aten::mm", at + 10, at + 50)
        file.kernel("gemm", at + 60, at + 500, at + 20)
    timeline, found = opened(file, tmp_path)

    assert (4, True) == (len(timeline.windows), found.marked)
    assert any("inferred from the ranges" in str(note) for note in timeline.notes)


def test_marks_that_hold_no_work_are_no_steps(tmp_path: Path) -> None:
    """Marks of another clock leave the whole recording, which is not idle; a note says so."""
    file = recording()
    for event in file.events:
        event["ts"] += 1e7 * event["name"].startswith("ProfilerStep#")
    timeline, found = opened(file, tmp_path)

    assert (MARKS,) == timeline.lacks
    assert not found.marked
    assert 0.5 * found.wall_ns > (found.figures_ns["idle_ns"] or 0)


def test_work_without_a_length_is_lost(tmp_path: Path) -> None:
    """Collectives, or kernels, of duration 0 are no sign of an idle device; a single one may round to nothing."""
    for chosen in ("nccl", ""):
        file = recording()
        work = [event for event in file.events if event["cat"] == "kernel" and chosen in event["name"]]
        work[0]["dur"] = 0
        assert () == opened(file, tmp_path)[0].lacks

        for event in work[: len(work) // 2 + 1]:
            event["dur"] = 0
        timeline, found = opened(file, tmp_path)
        assert (RECORDS,) == timeline.lacks
        assert found.figures_ns["exposed_comm_ns"] is None
        assert "at most" == found.bounds["idle_ns"]


def test_only_ranks_in_the_mean_step_wait_in_it(tmp_path: Path) -> None:
    """Rank 1 has no marks: its waiting for rank 0 is not said of rank 0."""
    for rank in (0, 1):
        file = recording(rank=rank)
        file.head["distributedInfo"]["world_size"] = 2
        if rank:
            file.events = REMOVALS["marks"](file.events)
        for event in file.events:
            if event["cat"] == "kernel" and "nccl" in event["name"] and not rank:
                event |= {"ts": event["ts"] + 20_000, "dur": event["dur"] - 20_000}
        file.write(tmp_path / f"rank{rank}.json")
    found = mean_step(dptrace.open(tmp_path).cross_rank)

    assert found is not None
    assert () == found.waits_for


def test_a_step_whose_mark_was_lost_is_between_its_neighbours(tmp_path: Path) -> None:
    """Its time does not lengthen the step before."""
    file = recording(4)
    file.events = [event for event in file.events if event["name"] != "ProfilerStep#2"]
    timeline, found = opened(file, tmp_path)

    assert tuple(f"ProfilerStep#{number}" for number in range(4)) == timeline.windows.names
    assert 100.0 == pytest.approx(found.wall_ns / 1e6)
    assert "ProfilerStep#2 is missing" in str(timeline.notes[0])
