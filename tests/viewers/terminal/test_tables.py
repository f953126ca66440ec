"""The tables of a run in the terminal: the split, idle time, findings, collectives, kernels, lists of facts, frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from rich.console import RenderableType

from dptrace.analysis.findings.evidence import Jitter
from dptrace.analysis.findings.finding import Finding, Gain
from dptrace.analysis.kernels.attribution import LaunchFigures
from dptrace.analysis.kernels.summary import KernelSummary, summarize
from dptrace.analysis.per_gpu.split import split
from dptrace.core.units import milliseconds
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.viewers.terminal.data_frame import MAX_ROWS, print_frame
from dptrace.viewers.terminal.kernels import launch_sentence, print_host, print_kernels
from dptrace.viewers.terminal.split import findings_list, idle_table, minor_sentence, step_tables, timing_table
from dptrace.viewers.terminal.summary import MAX_LAYERS, expert_lines, in_flight_lines, mesh_lines
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.jobs import late_run, on_nodes
from tests.support.rank_cases import rank, reduce
from tests.support.synthetic import training_timeline
from tests.support.terminal_text import captured

TWO = Run("r", two_rank_timelines())
ALONE = Run("r", two_rank_timelines()[:1], world_size=2)
BUSY = Run("r", (TimelineBuilder().compute(0, 100).build(),))


def printed(*parts: RenderableType | None, width: int = 100) -> str:
    return captured(lambda console: console.print(*parts), width)


# The split of steps, and idle time by cause.


def steps_of(run: Run, all_rows: bool = False, width: int = 100) -> str:
    return printed(*step_tables(run, all_rows), width=width)


def test_rows_are_the_splits_figures() -> None:
    """In ms, by step and by rank, with waiting beside the communication that it is part of."""
    text = steps_of(TWO, all_rows=True)
    row = next(line for line in text[text.index("rank 1") :].splitlines() if line.startswith("0"))
    heading, first = steps_of(TWO).splitlines()[2:4]
    figures, wait = split(TWO.timelines[1]).figures, TWO.cross_rank.exposed_waits[0].mean()["exposed_wait_ns"] or 0

    assert [milliseconds(int(figures[name][0])) for name in ("forward_ns", "backward_ns")] == row.split()[1:3]
    assert ["comm", "waiting", "memory"] == heading.split()[5:8]
    assert milliseconds(wait) == first.split()[6]


def test_columns_of_waiting_and_of_missing_ranks_are_there_where_they_hold_something() -> None:
    """A rank on its own shows no waits: all of its exposed communication lacks ranks."""
    assert [True, False] == ["waiting" in steps_of(run) for run in (TWO, ALONE)]
    assert [False, True] == ["incom" in steps_of(run) for run in (TWO, ALONE)]


def test_figures_are_whole_in_a_terminal_of_80_columns() -> None:
    """Waiting is one column more, and no digit may be cut for it."""
    long = Run("r", tuple(replace(t, start_ns=t.start_ns * 5_000, end_ns=t.end_ns * 5_000) for t in TWO.timelines))

    assert not ["…" for run in (TWO, long) if "…" in steps_of(run, width=80)]


def test_nodes_come_before_their_ranks() -> None:
    """A row for each: its ranks, the one that waits least, and the mean of their steps; the late node first."""
    text = steps_of(on_nodes(late_run(30, 30, 70, 60), 2))
    rows = [line.split() for line in text[: text.index("by rank")].splitlines() if line.startswith("node-")]

    assert [["node-1", "2,", "3", "2", "65.00"], ["node-0", "0,", "1", "0", "30.00"]] == [row[:5] for row in rows]


@pytest.mark.slow
def test_many_ranks_and_steps_are_summed_up_unless_all_is_asked() -> None:
    """Forty ranks give one short table each of steps and idle time; --all gives each rank its own."""
    builders = (TimelineBuilder(number, bounds=tuple(range(0, 3100, 100))).compute(0, 30) for number in range(40))
    run = Run("r", tuple(build.build() for build in builders))

    assert len(steps_of(run).splitlines()) < 25
    assert "…" in steps_of(run)
    assert "rank 39" in steps_of(run, all_rows=True)
    assert ["…", "39"] == [printed(idle_table(run, every)).splitlines()[-1].split()[0] for every in (False, True)]


def test_idle_time_has_a_row_for_each_rank_with_its_causes() -> None:
    """The mean step of each rank, its causes beside each other, and what they add up to; none for a busy GPU."""
    timelines = []
    for number in (0, 1):
        build = TimelineBuilder(number, bounds=(0, 10_000_000, 20_000_000)).compute(0, 4_000_000)
        timeline = build.compute(10_000_000, 20_000_000).build()
        timelines.append(replace(timeline, launch_ns=np.array([0, 10_000_000 if number else 1])))

    rows = [line.split() for line in printed(idle_table(Run("r", tuple(timelines)))).splitlines()[-2:]]
    assert [["0", "0.00", "3.00", "3.00"], ["1", "3.00", "0.00", "3.00"]] == rows
    assert idle_table(BUSY) is None


# Figures across ranks.


def test_a_finding_has_its_figure_its_advice_and_where_to_look() -> None:
    """What a user needs to act on it and to check it; markup from a trace stays text; nothing found is said."""
    where = Jitter(step="ProfilerStep#[red]5", rank=2, ranks=[2])
    text = printed(findings_list((Finding("straggler", "Rank 2 waits.", "Look there.", 7_680_000, 0.183, where),)))

    for fact in ("7.68 ms", "18 %", "→ Look there. (see ProfilerStep#[red]5, rank 2)"):
        assert fact in text
    assert "nothing takes 1 %" in printed(findings_list(()))


def test_like_collectives_are_a_row_with_their_bandwidth() -> None:
    """Two all-reduces of one size: the median transfer, and the wait of the rank that came first; one rank has none."""
    row = printed(timing_table(Run("r", two_rank_timelines(), world_size=2).cross_rank)).splitlines()[-1].split()

    assert ["all_reduce", "2", "4.1", "kB", "0.1"] == [*row[:4], row[-1]]
    assert timing_table(BUSY.cross_rank) is None


def test_rows_of_groups_of_one_purpose_are_one_unless_all_are_asked_for() -> None:
    """Two replicas' sums: one row that names what the groups are for, or a row for each with its ranks."""
    devices = []
    for number in range(4):
        ranks = (number // 2 * 2, number // 2 * 2 + 1)
        about: dict[str, Any] = {"group": str(number // 2), "group_size": 2, "ranks": ranks}
        calls = [reduce(0, (i + 1) * 1_000_000, description="mesh_tp", **about) for i in range(2)]
        devices.append(rank(number, calls))
    one, every = (printed(timing_table(analyze_cross_rank(devices, 4), all_rows)) for all_rows in (False, True))

    assert [["all_reduce", "mesh_tp", "4"]] == [line.split()[:3] for line in one.splitlines() if "all_reduce" in line]
    assert "ranks 0, 1" in every
    assert "ranks 2, 3" in every


# Kernels, and the host's calls.


def kernels_of(*names: str, most: int = 30) -> str:
    timelines = [training_timeline(number, 300, names=names) for number in (0, 1)]
    summary: KernelSummary = summarize(timelines, lambda timeline: OperatorCalls(), "kernel")
    return captured(lambda console: print_kernels(summary, summary.rows, console, most=most), 132)


def test_kernels_are_listed_up_to_a_number() -> None:
    """Names do not control the terminal, and none that fits is cut; rows left out and overlapping streams are named."""
    hostile = kernels_of("evil\x1b[31m", "[bold]gemm", "nccl", "Memcpy DtoD (x)")

    assert "\x1b[31m" not in hostile
    fused = f"triton_poi_fused_{'add_' * 20}3"
    assert fused in kernels_of(fused, "gemm", "nccl", "Memcpy DtoD (x)")
    for fact in ("[bold]gemm", "busy", "max /"):
        assert fact in hostile
    for most in (1, 3):
        assert f"{4 - most} more row" in kernels_of("add", "gemm", "nccl", "Memcpy DtoD (x)", most=most)


def test_streams_overlap_only_where_the_figures_differ() -> None:
    """Two equal figures would contradict the words between them."""
    for busy, said in ((1_122_999_000, False), (1_100_000_000, True)):
        totals = {"compute": {"total_ns": 1_123_000_000, "busy_ns": busy}}
        summary = replace(
            summarize([training_timeline(0, 300)], lambda timeline: OperatorCalls(), "kernel"), totals=totals
        )
        assert said == ("overlap" in captured(lambda console, of=summary: print_kernels(of, of.rows, console), 132))  # type: ignore[misc]


def test_calls_of_the_host_are_listed_up_to_a_number() -> None:
    """Their names do not control the terminal either."""
    row = {"kind": "operator", "count": 1, "self_ns": 1, "total_ns": 1, "mean_ns": 1.0, "share_of_step": None}
    rows = [{**row, "call": "evil\x1b[31m", "launches": 0}] * 3
    text = captured(lambda console: print_host(rows, [], console, most=2))

    assert "\x1b[31m" not in text
    assert "1 more row" in text


def test_a_sentence_says_how_far_the_host_is_ahead() -> None:
    """Delay, queue, graphs and synchronizing calls, as far as they are known."""
    text = launch_sentence(LaunchFigures(0, 1_200, 5_000.0, 9_000.0, 3.0, 7.0, 0.25, 10, 0.5, 2, 4_000_000))
    facts = "1,200 launches", "3 queued", "25 % found an empty queue", "10 kernels by graphs", "2 synchronizing"

    assert [fact for fact in facts if fact in text] == [*facts]
    assert "CPU" in launch_sentence(LaunchFigures(0, 0, None, None, None, None, None))


# Lists of facts: experts, micro-batches in flight, the mesh.


def test_each_layer_names_its_most_and_least_loaded_expert() -> None:
    """With their shares of the tokens, the share of an even load, and dropped tokens where there is a capacity."""
    assert [
        "Tokens of each expert, all steps (an even load is 25.0 %):",
        "  layer 0: most 37.5 % (expert 1), least 12.5 % (expert 0)",
        "  layer 1: most 50.0 % (expert 0), least 0.0 % (expert 2)",
    ] == expert_lines({"options": {"expert_load": [[10, 30, 20, 20], [5, 5, 0, 0]]}})
    dropped = {"options": {"expert_load": [[6, 2]], "expert_dropped": [[2, 0]]}}
    assert expert_lines(dropped)[1].endswith("dropped 25.0 %")


def test_lists_are_cut_unless_all_is_asked_for() -> None:
    """What each rank holds beside what its schedule holds, where it stands, and experts; a run without has no list."""
    pipeline = {"schedule": "gpipe", "ranks": 2, "stages": [0], "micro_batches": 4}
    entry = pipeline | {"in_flight": 4, "in_flight_bytes": 2000}
    info = {
        "ranks": [{"rank": one, "pipeline": entry | {"rank": one % 2}} for one in range(MAX_LAYERS + 2)],
        "options": {"expert_load": [[1, 2]] * (MAX_LAYERS + 2)},
    }
    mesh = {one: {"dp": one // 2, "tp": one % 2} for one in range(MAX_LAYERS + 2)}

    assert "  rank 1: 4 (expected 4), 2.0 kB" == in_flight_lines(info)[2]
    assert ["Mesh: dp 5 × tp 2", "  rank 0: dp 0 · tp 0"] == mesh_lines(mesh)[:2]
    for lines, every in (
        (in_flight_lines(info), in_flight_lines(info, True)),
        (mesh_lines(mesh), mesh_lines(mesh, True)),
        (expert_lines(info), expert_lines(info, True)),
    ):
        assert lines[-1].startswith("  2 more ")
        assert (MAX_LAYERS + 2, MAX_LAYERS + 3) == (len(lines), len(every))
    assert [] == in_flight_lines({}) == mesh_lines({}) == expert_lines({"options": {"lr": 0.1}})


# Frames of pandas.


def frame_printed(frame: pd.DataFrame, all_rows: bool = False, width: int = 132) -> str:
    return captured(lambda console: print_frame(frame, "a title", console, all_rows), width)


def test_numbers_are_shown_to_the_digit() -> None:
    """Whole floats without a point, others with up to six decimals, what is missing as a dash; however narrow."""
    for width in (132, 30):
        frame = pd.DataFrame({"idle_time(us)": [338781.0, 336419.714688, float("nan")], "name": ["a", "b", "c"]})

        for fact in ("338781 ", "336419.714688", "–"):
            assert fact in frame_printed(frame, width=width), width


def test_frames_show_names_as_text_and_are_cut() -> None:
    """Control characters and markup are shown, a long name is cut; rows left out are counted, --all leaves out none."""
    names = frame_printed(pd.DataFrame({"name": ["gemm\x1b[31m", "[bold]x[/bold]", "n" * 500]}))
    rows = [frame_printed(pd.DataFrame({"n": range(1000, 1000 + MAX_ROWS + 5)}), every) for every in (False, True)]

    for fact in ("gemm\\x1b[31m", "[bold]x[/bold]", "n…"):
        assert fact in names
    assert [True, False] == ["… and 5 more rows" in text for text in rows]
    assert [False, True] == ["1024" in text for text in rows]


def gain_of(ns: int) -> Gain:
    return Gain("change", ns, marginal_ns=ns, share=0.001)


def test_findings_that_gain_little_are_said_once_each() -> None:
    """Several of one kind, on one rank, share a name, with the most that one gains."""
    found = [
        Finding(kind, "", "", 9, 0.1, Jitter(rank=rank, step=None, ranks=[rank]), gain_of(ns))
        for kind, rank, ns in (("straggler", 1, 170_000), ("straggler", 1, 0), ("straggler", 0, 0), ("copies", 1, 0))
    ]
    _, listed = minor_sentence(found).rstrip(".").split(": ")

    assert {"straggler of rank 1 0.17 ms", "straggler of rank 0", "copies"} == set(listed.split(", "))
    assert 3 == len(listed.split(", "))
