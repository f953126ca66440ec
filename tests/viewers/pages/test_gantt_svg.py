"""The static Gantt chart: its areas are the split's times, and it has few shapes."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.analysis.per_gpu.split import Part, partition
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Phase, Windows
from dptrace.viewers.base import theme
from dptrace.viewers.base.svg import text_width
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.pages.gantt_svg import MAX_SHAPES, Intervals, Lod, figure_svg, frames, gantt_svg, svg_layout
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import late_run
from tests.support.paths import TRACES
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real
from tests.support.synthetic import training_run
from tests.support.view_cases import CASES, many_ranks

BOX = re.compile(r"M([\d.-]+) ([\d.-]+)h([\d.-]+)v([\d.-]+)h")


def areas(text: str, color: str, row: int = 0) -> float:
    """Sum the area that paths fill with a colour in the phases row, or below it, over the height of that row."""
    idle = re.search(rf'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" fill="{theme.IDLE}"', text)
    assert idle
    top, height, total = float(idle[1]), float(idle[2]), 0.0
    for path, filled in re.findall(r'<path d="([^"]*)" fill="([^"]*)"', text):
        if filled == color:
            boxes = BOX.findall(path)
            total += sum(float(w) * float(h) for _, y, w, h in boxes if row == (float(y) >= top + height))
    return total / height


@pytest.mark.heavy
def test_areas_are_the_times_of_the_split() -> None:
    """Each part's area in the phases row is its time, drawn whole or as shares of columns."""
    for kernels in (40, 3_000):
        run = training_run(kernels, ranks=1)
        text = gantt_svg(run)
        pieces, bounds = partition(run.timelines[0]), run.timelines[0].windows.bounds
        for part in (Part.FORWARD, Part.BACKWARD):
            mask = pieces.part == part
            share = float((pieces.end_ns[mask] - pieces.start_ns[mask]).sum()) / int(bounds[-1] - bounds[0])
            assert areas(text, theme.PART_COLORS[part]) == pytest.approx(
                share * (1400 - 24 - left_of(text)), rel=0.02
            ), kernels


def left_of(text: str) -> float:
    found = re.search(r'<polyline points="([\d.]+),', text)
    assert found
    return float(found[1])


@pytest.mark.slow
def test_shapes_are_few() -> None:
    """With many kernels and ranks, the file is small."""
    for ranks in (1, 8, 64):
        text = gantt_svg(training_run(60_000, ranks=ranks, steps=4))
        whole = sum(len(BOX.findall(path)) for path in re.findall(r'<path d="([^"]*)"', text))

        assert whole <= MAX_SHAPES * 2, ranks
        assert len(text) < 1_000_000, ranks


def test_what_matters_is_named() -> None:
    """GPUs, rows, steps with their durations, the sentence, and the hatch of exposed communication."""
    text = gantt_svg(Run("runs/two", two_rank_timelines(), world_size=2))

    rows = "rank 1 · GPU 1", "phases", "communication"
    for word in (*rows, "step 0 · 0.10 ms", "A step takes", "Exposed transfer"):
        assert word in text
    assert re.search(rf'fill="{theme.EXPOSED}"/>\n<path d="[^"]*" fill="#000"', text)
    assert "A step takes" not in gantt_svg(Run("x", two_rank_timelines()), heading=False)


def test_work_of_two_phases_at_once_is_seen_of_both() -> None:
    """Of 80 ns of forward, 40 ns of backward on another stream take half of the row's height."""
    both = TimelineBuilder(0).compute(0, 80).compute(20, 60, Phase.BACKWARD, lane=8).build()
    text = gantt_svg(Run("x", (both,), world_size=1))

    forward, backward = (areas(text, theme.PART_COLORS[part], 1) for part in (Part.FORWARD, Part.BACKWARD))
    assert 3 == pytest.approx(forward / backward, rel=0.02)


def test_no_label_stands_over_idle_time() -> None:
    """A phase is named where its colour fills the place, with its time if idle time does not interrupt it."""
    build = TimelineBuilder(0, bounds=(0, 10_000_000))
    build.compute(0, 4_000_000, Phase.FORWARD, "gemm")
    for i in range(40):
        build.compute(4_100_000 + 140_000 * i, 4_150_000 + 140_000 * i, Phase.BACKWARD, "gemm")
    text = gantt_svg(Run("sparse", (build.build(),)))

    assert 1 == text.count(">Forward 4.00 ms<")
    assert 1 == len(re.findall(">Backward[^<]*<", text))  # in the legend


@pytest.mark.heavy
def test_many_ranks_have_a_row_each() -> None:
    """Only the phases are drawn, and the chart is not too high."""
    text = gantt_svg(many_ranks())
    found = re.search(r'height="([\d.]+)"', text)

    assert found
    assert float(found[1]) < 64 * 22
    assert 64 == len(re.findall(r">rank \d+ · GPU \d+<", text))


# The figure for papers and slides.


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def test_one_step_is_drawn_without_a_heading() -> None:
    """The one of median length; nothing but axis, rows and legend stands around it."""
    run = training_run(600, ranks=2, steps=5)
    drawn = texts(figure_svg(run))

    assert 1 == sum(text.startswith("step ") for text in drawn)
    assert {"rank 0 · GPU 0", "rank 1 · GPU 1"} <= set(drawn)
    assert not any(run.path in text or "A step takes" in text for text in drawn)


@pytest.mark.heavy
def test_it_is_as_wide_as_asked_and_nothing_leaves_it() -> None:
    """Most of it is the time axis, which has enough labels, and none touches the next."""
    for width in (400, 420, 640, 1200):
        drawn = figure_svg(training_run(600, ranks=2, steps=3), width=width)
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        boxes = [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", drawn)]
        starts = [float(x) for x in re.findall(r'<text x="([\d.]+)"', drawn)]
        ticks = [(float(x), text) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*middle">([\d.]+ \w+)<', drawn)]

        assert size, width
        assert width == float(size[1]), width
        assert boxes, width
        assert all(x + w <= width for x, w in boxes), width
        assert all(x < width - 10 for x in starts), width
        assert 0.7 * width <= width - left_of(drawn), width
        assert 5 <= len(ticks) <= 12, width
        assert all(a + text_width(one) / 2 < b - text_width(next_) / 2 for (a, one), (b, next_) in pairwise(ticks))


@pytest.mark.heavy
def test_the_chosen_steps_and_ranks_are_drawn() -> None:
    """All of them, also if they are many."""
    run = many_ranks()
    every = texts(figure_svg(run, every_rank=True))
    some = texts(figure_svg(run))

    assert len(run.ranks) == sum(text.startswith("rank ") for text in every)
    assert 8 == sum(text.startswith("rank ") for text in some)
    assert 3 == sum(text.startswith("step ") for text in texts(figure_svg(training_run(600, steps=3), True)))


@pytest.mark.heavy
def test_findings_are_numbered_in_the_chart_and_written_below() -> None:
    """The place is framed, and the text of the finding stands below the rows with its number."""
    run = dptrace.open(str(TRACES / "interleaved_cpu_2ranks"))
    drawn = figure_svg(run, annotate=True)
    numbers = [text for text in texts(drawn) if text in "123"]

    assert numbers.count("1") == 2
    assert any("of its time is exposed" in text for text in texts(drawn))
    assert not any("of its time is exposed" in text for text in texts(figure_svg(run)))


def marked(drawn: str) -> dict[str, list[tuple[float, float]]]:
    """Return the start and end in ms of each frame of a figure, by the name of its row's GPU."""
    names = [(float(y), name) for y, name in re.findall(r'y="([\d.]+)"[^>]*700">(rank \d+)', drawn)]
    ticks = [(float(x), float(n)) for x, n in re.findall(r'<text x="([\d.]+)"[^>]*middle">([\d.]+) ms<', drawn)]
    (x0, t0), (x1, t1) = ticks[0], ticks[-1]
    found: dict[str, list[tuple[float, float]]] = {}
    for points in re.findall(r'<polyline points="([^"]*)"[^>]*#B00020', drawn):
        (left, _), (_, top), (right, _), *_ = (map(float, point.split(",")) for point in points.split())
        name = max((y, name) for y, name in names if y - 20 <= top)[1]
        start, end = (t0 + (x - x0) / (x1 - x0) * (t1 - t0) for x in (left + 1, right - 1))
        found.setdefault(name, []).append((start, end))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(("cause", "ms", "ranks"), [("allocator", 40.0, 1), ("python", 30.0, 3)])
@pytest.mark.parametrize("width", [420, 1600])
def test_marks_enclose_what_a_finding_counts(cause: str, ms: float, ranks: int, width: int, tmp_path: Path) -> None:
    """The planted gap of a rank, and the waits of the others for it: as long as planted, and at the same time."""
    planted_job(tmp_path, [Plant(0, cause, ms)], ranks=ranks)
    run = dptrace.open(tmp_path)
    frames_by_rank = marked(figure_svg(run, annotate=True, width=width))
    gap = max(frames_by_rank["rank 0"], key=lambda frame: frame[1] - frame[0])

    assert {f"rank {rank}" for rank in range(ranks)} == set(frames_by_rank)
    for own in frames_by_rank.values():
        start, end = max(own, key=lambda frame: frame[1] - frame[0])
        assert ms == pytest.approx(end - start, abs=0.1 * ms)
        assert gap == pytest.approx((start, end), abs=0.1 * ms)


@pytest.mark.heavy
@needs_real_traces
def test_no_number_hides_another() -> None:
    """Two findings end at the same time on one rank."""
    drawn = figure_svg(dptrace.open(real("straggler_v100_4ranks")), annotate=True)
    badges = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="16" height="16" rx="8"', drawn)
    places = [(float(x), float(y)) for x, y in badges]

    assert len(places) >= 4
    assert all(max(abs(x - left), abs(y - top)) >= 16 for (x, y), (left, top) in combinations(places, 2))


def test_short_gaps_have_no_frame_around_the_kernels_between_them() -> None:
    """Gaps that lie apart have a frame each, pieces of one gap share one; a pixel is 100 ns."""
    start = np.array([0, 5_000, 5_600, 9_000], np.int64)
    end = np.array([1_000, 5_500, 7_000, 9_050], np.int64)
    many = np.arange(0, 100_000, 500, dtype=np.int64)

    assert [(5_000, 7_000), (0, 1_000)] == frames(start, end, 100)
    assert [] == frames(many, many + 50, 100)


def test_a_run_without_steps_says_so() -> None:
    """The figure holds one sentence."""
    assert any("no step" in text for text in texts(figure_svg(Run("x", ()))))


# Labels in the static Gantt chart.


def label_texts(run: Run) -> list[str]:
    """Return all texts of a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", gantt_svg(run, heading=False))


def test_a_wait_shows_whom_it_is_for_and_how_long_it_takes() -> None:
    """In the row of phases and in that of communication; the transfer after it bears the collective's name."""
    shown = label_texts(late_run(20, 70))

    assert "Waiting for rank 1 · 50.0 ms" in shown
    assert any("waiting for rank 1 · 50.0 ms" in text for text in shown)
    assert 2 == sum(text.startswith("all_reduce · 4.1 kB") for text in shown)


def test_a_collective_is_called_by_its_layer_where_that_is_known() -> None:
    """Else by its kind."""
    for label, expected in (("FSDP::all_gather (layers.3)", "AG layers.3"), ("", "all_gather")):
        comm = Collective("all_gather", 2_000_000, "float", "0", 1, label=label)
        build = TimelineBuilder(0, bounds=(0, 1_000_000)).collective(100_000, 900_000, comm)

        assert f"{expected} · 2.0 MB" in label_texts(Run("one", (build.build(),))), (label, expected)


# The layout of a static Gantt chart.


def test_a_row_that_no_gpu_fills_is_left_out() -> None:
    """A single GPU has no communication row."""
    where = svg_layout(chart(CASES["no communication"]()), 100)

    assert {Role.PHASES, Role.COMPUTE} == {row.role for row in where.rows}
    assert where.lane(0, Role.PHASES) is not None
    assert where.lane(7, Role.PHASES) is None


def test_steps_are_named_once() -> None:
    """By the first GPU of those whose steps differ, and beside them by one whose steps are at other times."""
    one, two = two_rank_timelines()
    length = int(one.windows.bounds[-1] - one.windows.bounds[0])
    shifted, later = (
        replace(two, windows=Windows(two.windows.names, two.windows.bounds + by)) for by in (length // 3, 2 * length)
    )
    where = svg_layout(chart(Run("", (one, shifted, later))), 100)

    assert [0, 2] == [number for number, _ in where.strips]
    assert {0, 1, 2} == {row.track for row in where.rows}


# The level of detail in Python, against the golden vectors of lod.js and brute force.


GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "lod.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lods() -> list[Lod]:
    lanes = [
        Intervals(*(np.array(lane[key], np.int64) for key in ("start", "duration", "category")))
        for lane in GOLDEN["lanes"]
    ]
    return [Lod(lane, GOLDEN["categories"]) for lane in lanes]


def test_golden_vectors(lods: list[Lod]) -> None:
    """Shares of columns, time in the window and the intervals drawn whole equal the file's."""
    for window in GOLDEN["windows"]:
        start, end, width = float(str(window["from"])), float(str(window["to"])), int(str(window["width"]))

        np.testing.assert_allclose(
            np.array(window["density"]), [lod.density(start, end, width) for lod in lods], atol=1e-9
        )
        busy = [lod.density(start, end, 1)[:, 0] * (end - start) for lod in lods]
        np.testing.assert_allclose(np.array(window["busy"]), busy, atol=1e-6)
        long = [sorted(lod.long(start, end, float(str(window["shortest"]))).tolist()) for lod in lods]
        assert window["long"] == long, window


def test_golden_vectors_are_true() -> None:
    """The file's shares equal a count of single nanoseconds."""
    for window in GOLDEN["windows"]:
        start, end, width = int(str(window["from"])), int(str(window["to"])), int(str(window["width"]))
        for lane, busy in zip(GOLDEN["lanes"], window["busy"], strict=True):
            for category in range(GOLDEN["categories"]):
                covered: set[int] = set()
                for begin, length, kind in zip(lane["start"], lane["duration"], lane["category"], strict=True):
                    if kind == category:
                        covered.update(range(max(begin, start), min(begin + length, end)))
                assert busy[category] == len(covered), window
        # The columns add up to the window.
        total = np.array(window["density"]).sum(axis=2) * ((end - start) / width)
        np.testing.assert_allclose(np.array(window["busy"]), total, atol=1e-6)
