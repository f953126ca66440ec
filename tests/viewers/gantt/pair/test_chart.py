"""Two runs as one chart: every interval is at its step's place, and the figures are the runs' own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import Part
from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import OVERLAPPED, Chart, Role, chart
from dptrace.viewers.gantt.pair.chart import paired_chart, paired_scene
from tests.support.builders import TimelineBuilder
from tests.support.gantt_page import SHARE_FIGURES
from tests.support.jobs import job, run_of


def lane(drawn: Chart, track: int, role: Role) -> list[tuple[int, int, int]]:
    found = [one for one in drawn.lanes if (one.track, one.role) == (track, role)]
    return [
        row
        for one in found
        for row in zip(one.start_ns.tolist(), one.duration_ns.tolist(), one.category.tolist(), strict=True)
    ]


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_each_steps_figures_are_the_splits(steps_a: int, steps_b: int, ranks: int, by_step: bool) -> None:
    """The phases of each step, at its place, are the split's figures to the nanosecond."""
    runs = job(steps_a, ranks, noise=0.1), job(steps_b, 2, seed=1, noise=0.1, factors={"exposed": 0.3})
    aligned = align_steps(run_steps(runs[0]), run_steps(runs[1]), by_step)
    drawn, data = paired_scene(aligned)

    tracks = [(run, device) for run in (0, 1) for device in range(len(runs[run].timelines))]
    for track, (which, device) in enumerate(tracks):
        split, page = runs[which].splits[device], data["tracks"][track]
        phases = lane(drawn, track, Role.PHASES)
        for step, (begin, end) in enumerate(zip(page["bounds"], page["ends"], strict=False)):
            assert split.figures["wall_ns"][step] == end - begin
            inside = [(max(s, begin), min(s + d, end), part) for s, d, part in phases if s < end and s + d > begin]
            for part, name in SHARE_FIGURES.items():
                if part != Part.IDLE:
                    assert split.figures[name][step] == sum(e - s for s, e, p in inside if p == part)
        assert sum(d for _, d, c in lane(drawn, track, Role.EXPOSURE) if c == OVERLAPPED) == sum(
            split.figures["overlapped_comm_ns"][: len(aligned.a.names)]
        )


def test_recorded_intervals_stay_whole() -> None:
    """An interval that ends after its step keeps its length, but its pieces are cut at the step."""
    build = TimelineBuilder(0, bounds=(0, 100, 200)).compute(0, 60).all_reduce(50, 130).compute(110, 180)
    aligned = align_steps(
        run_steps(run_of([build.build()])), run_steps(run_of([TimelineBuilder(0, bounds=(0, 150, 300)).build()]))
    )
    drawn = paired_chart(aligned)

    assert [(50, 80, int(Part.EXPOSED_COMM))] == lane(drawn, 0, Role.COLLECTIVES)
    exposed = [(s, d) for s, d, c in lane(drawn, 0, Role.PHASES) if c == Part.EXPOSED_COMM]
    assert [(60, 40), (150, 10)] == exposed
    assert [(0, 60), (160, 70)] == [(s, d) for s, d, _ in lane(drawn, 0, Role.COMPUTE)]


def test_one_run_against_itself_is_drawn_as_it_is() -> None:
    """Aligned by the first step only, both halves equal the run's own chart, and no time is saved."""
    run = job()
    drawn, data = paired_scene(align_steps(run_steps(run), run_steps(run), by_step=False))
    alone = chart(run)

    assert [] == data["freed"]
    for track in (0, 1):
        for role in Role:
            if role is Role.PHASE_LABELS:
                continue
            assert lane(alone, track, role) == lane(drawn, track, role) == lane(drawn, track + 2, role), role


def test_names_are_each_runs_own() -> None:
    """B's kernels and collectives have B's names."""
    a, b = job(ranks=1), job(ranks=1, seed=1)
    other = replace(b.timelines[0], names=tuple(f"other {name}" for name in b.timelines[0].names))
    drawn = paired_chart(align_steps(run_steps(a), run_steps(Run("runs/b", (other,)))))

    for one in drawn.lanes:
        if one.role in (Role.COMPUTE, Role.COLLECTIVES):
            texts = [drawn.names[i] if one.role is Role.COMPUTE else drawn.collectives[i][0] for i in one.name.tolist()]
            assert {one.track == 1} == {text.startswith("other ") for text in texts}


def test_the_scene_names_the_runs() -> None:
    """Strips and groups have the run's name, tracks its letter; the axis ends where the longer run does."""
    a, b = job(path="runs/naive", ranks=1), job(path="runs/inter", ranks=2, seed=1, factors={"exposed": 2.0})
    aligned = align_steps(run_steps(a), run_steps(b))
    _, data = paired_scene(aligned)

    assert ["A · rank 0 · GPU 0", "B · rank 0 · GPU 0", "B · rank 1 · GPU 1"] == [t["label"] for t in data["tracks"]]
    assert ["naive", "inter"] == [strip["title"] for strip in data["strips"]]
    assert [("A · naive", [0]), ("B · inter", [1, 2])] == [(g["label"], g["tracks"]) for g in data["groups"]]
    assert aligned.slots_ns.tolist() == data["slots"]
    assert data["end"] == data["slots"][-1]
    assert {0} == {one["strip"] for one in data["freed"]}
    assert all(one["ns"] < 0 for one in data["freed"])
    assert np.sum([one["ns"] for one in data["freed"]]) == aligned.saved_ns()
