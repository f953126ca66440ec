"""Parts of a run: how ranks and steps are given, and that a part keeps its figures of the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.table import step_number
from dptrace.errors import DptraceError, UsageError
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.run.selection import ranks_of, steps_of
from tests.support.builders import TimelineBuilder
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.planted import Plant, planted_job
from tests.support.synthetic import training_run


def test_chosen_steps_keep_their_figures() -> None:
    """All nine, and every collective's, to the nanosecond."""
    run = training_run(3_000, ranks=2, steps=5)
    part = run.select(steps=(5, 7))
    for whole, cut in zip(run.splits, part.splits, strict=True):
        assert ("ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7") == cut.names
        for figure in FIGURES:
            assert whole.figures[figure][1:4].tolist() == cut.figures[figure].tolist()
        for column in ("count", "bytes", "exposed_ns", "overlapped_ns"):
            expected = getattr(whole.comm["all_reduce"], column)[1:4]
            assert expected.tolist() == getattr(cut.comm["all_reduce"], column).tolist()
    assert len(part.timelines[0]) < len(run.timelines[0])
    assert np.all(part.timelines[0].step < 3)


def test_chosen_ranks_are_whole() -> None:
    """The others are gone, and the world is as large as before."""
    run = training_run(900, ranks=3)
    part = run.select(ranks={0, 2})

    assert [0, 2] == [timeline.rank for timeline in part.timelines]
    assert (3, run.splits[2].total()) == (part.world_size, part.splits[1].total())


def test_nothing_left_says_what_there_is() -> None:
    """The message lists the ranks, or the steps, of the run."""
    run = training_run(900)
    unnamed = Run("x", (TimelineBuilder(0).compute(0, 9).build(),))
    with pytest.raises(DptraceError, match=r"runs/synthetic: .* 0, 1\."):
        run.select(ranks={7})
    with pytest.raises(DptraceError, match=r"from 9 to 12\..* ProfilerStep#4 to ProfilerStep#6\."):
        run.select(steps=(9, 12))
    with pytest.raises(DptraceError, match=r"one step: ProfilerStep#0\."):
        unnamed.select(steps=(9, 12))
    with pytest.raises(DptraceError, match="no steps"):
        Run("x", (TimelineBuilder(0, bounds=()).compute(0, 9).build(),)).select(steps=(9, 12))


def test_a_collective_that_runs_into_the_next_step_keeps_its_own_figures() -> None:
    """The compute that hides it there is kept, so that its exposed and overlapped time do not change."""
    build = TimelineBuilder(bounds=(0, 100, 300)).compute(0, 10).all_reduce(20, 200).compute(110, 160)
    run = Run("x", (build.build(),))
    columns = ["exposed_ns", "overlapped_ns"]

    assert run.collectives()[columns].values.tolist() == run.select(steps=(0, 0)).collectives()[columns].values.tolist()


def test_names_of_steps_from_strangers_are_no_error() -> None:
    """A sign that only looks like a digit, or more digits than Python reads, is no number."""
    assert [4, 12] == [step_number(name) for name in ("ProfilerStep#4", "step 12")]
    assert [None] * 3 == [step_number(name) for name in ("ProfilerStep#²", f"ProfilerStep#{'9' * 5000}", "x")]


# Selected ranks keep what the analysis of all ranks found of them.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = planted_job(tmp_path_factory.mktemp("job"), [Plant(2, "python", 4), Plant(1, "kernel", 2, layer=5)])
    return dptrace.open(folder, cache=False)


@pytest.mark.heavy
def test_waits_and_lateness_are_those_among_all_ranks(run: Run) -> None:
    """Rows of the kept ranks are the rows of the whole, in steps, collectives, clocks and stragglers."""
    for ranks in ({0}, {2}, {1, 3}, {0, 1, 2, 3}):
        part = run.select(ranks=ranks)
        for name, columns in (
            ("steps", ["step", "exposed_wait_ns", "exposed_unmatched_ns"]),
            ("matched_collectives", ["kind", "step", "complete", "transfer_ns", "wait_ns", "late_ns"]),
            ("stragglers", ["step", "late_ns", "waited_ns"]),
            ("clock_offsets", ["at_ns", "uncertainty_ns", "corrected"]),
        ):
            whole, cut = (getattr(one, name)().astype(object).fillna(-1) for one in (run, part))
            expected = whole[whole["rank"].isin(ranks)][["rank", *columns]]
            assert expected.to_dict("list") == cut[["rank", *columns]].to_dict("list"), name


@pytest.mark.heavy
def test_findings_are_those_of_the_selection(run: Run) -> None:
    """A late rank that is left out is none of them; the waiting for it stays a figure."""
    part, late = run.select(ranks={0}), run.select(ranks={2})

    assert [2] == [f.evidence.rank for f in findings_of(late) if f.kind == "straggler" and not f.is_minor]
    assert not [f for f in findings_of(part) if f.kind == "straggler"]
    assert 0 == len(part.stragglers())
    assert part.steps()["exposed_wait_ns"].sum() > 0


def test_steps_and_ranks_together(run: Run) -> None:
    """Steps are selected on all ranks first."""
    part = run.select(ranks={0}, steps=(1, 2))

    assert ["ProfilerStep#1", "ProfilerStep#2"] == part.steps()["step"].tolist()
    assert part.steps()["exposed_wait_ns"].notna().all()
    part.to_dict()


def test_without_alignment_a_selection_is_analyzed_as_the_whole(run: Run, tmp_path: Path) -> None:
    """The waits need no common clock."""
    raw = run.select(ranks={0, 3}).on_own_clocks().cross_rank

    assert not raw.clocks.corrected.any()
    assert [w.total() for w in raw.exposed_waits] == [run.cross_rank.exposed_waits[i].total() for i in (0, 3)]


# Ranks and steps to keep, as text and as numbers.


def test_ranks_are_read_or_refused() -> None:
    """Text as on the command line, one number, or several."""
    taken: list[tuple[Any, set[int]]] = [
        *(("0", {0}), ("0,2", {0, 2}), ("0-2, 5", {0, 1, 2, 5}), (3, {3}), (np.int64(3), {3})),
        *(([0, 2, 2], {0, 2}), (range(2), {0, 1}), (np.array([4]), {4}), ((), set())),
    ]
    for given, ranks in taken:
        assert ranks == ranks_of(given)
    # A range of more ranks than there are in any job is not built.
    refused: list[Any] = ["", "a", "1,", "-1", "1:2", "3-1", "0-9999999", "²", 1.5, True, [0.5], ["0"], -1]
    for given in refused:
        with pytest.raises(UsageError, match="--ranks"):
            ranks_of(given)


def test_steps_are_read_or_refused() -> None:
    """One, or the first and the last; the message has the option."""
    taken: list[Any] = ["4", 4, [np.int64(4), 4], " 4:6 ", (4, 6)]
    assert [(4, 4)] * 3 + [(4, 6)] * 2 == [steps_of(given) for given in taken]
    refused: list[Any] = ["", "a", "6:4", "4-6", ":", "4:", "4,6", 1.5, True, -1]
    for given in [*refused, (6, 4), (4,), [4, 5, 6], {4, 6}, ("4", "6")]:
        with pytest.raises(UsageError, match="--before-steps"):
            steps_of(given, "--before-steps")


@pytest.fixture(scope="module")
def selection_run(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    """Two ranks of steps 8 to 11."""
    folder = tmp_path_factory.mktemp("selection")
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2)
        for step in range(8, 12):
            training_step(file, step, 100 * step)
        file.write(folder / f"rank{rank}.json")
    return dptrace.open(folder)


def test_python_selects_as_the_command_line_does(selection_run: dptrace.Run) -> None:
    """Texts and numbers select the same part, of which the critical path can be found, too."""
    part = selection_run.select(ranks="0", steps="10:11")

    assert ((0,), ["ProfilerStep#10", "ProfilerStep#11"]) == (part.ranks, part.steps()["step"].tolist())
    assert part.steps().equals(selection_run.select(ranks=0, steps=(10, 11)).steps())
    assert ["ProfilerStep#10"] * 3 == [selection_run.critical_path(step).step for step in (10, "10", "ProfilerStep#10")]


def test_what_is_not_there_can_not_be_selected(selection_run: dptrace.Run) -> None:
    """Neither ranks nor steps that the run lacks, nor what is none."""
    absent: list[dict[str, Any]] = [{"ranks": "2"}, {"ranks": []}, {"ranks": "x"}, {"steps": "77"}, {"steps": "11:8"}]
    for selection in absent:
        with pytest.raises(UsageError, match=r"rank|step"):
            selection_run.select(**selection)


def test_one_pattern_of_communication_is_one(tmp_path: Path) -> None:
    """A text is not taken for its letters."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    one, listed, none = (dptrace.open(path, comm_patterns=given).steps() for given in ("gemm_b", ("gemm_b",), ()))

    assert one.equals(listed)
    assert not one.equals(none)
