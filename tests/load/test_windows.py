"""Folders with several windows of each process, as torch's handler writes them under a schedule that repeats."""

from __future__ import annotations

import json
import shutil
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from click.testing import CliRunner
from msgspec.structs import fields, replace
from rich.console import Console

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.core.intervals import EMPTY
from dptrace.errors import DptraceError, UsageError
from dptrace.load.joined_windows import joined
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.marks import Label
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page.data import memory_lanes
from dptrace.viewers.pages.gantt_svg import gantt_svg
from dptrace.viewers.terminal.gantt import print_gantt
from dptrace.viewers.views.timelines import memory
from tests.support.memory_files import memory_run
from tests.support.mesh import Mesh

TIMES = (1759300074000000000, 1759300999000000000)


@cache
def ranks_of(steps: int) -> tuple[tuple[str, str], ...]:
    """Return the host and the trace of each of four ranks; kernels of rank 1 are slow."""
    with TemporaryDirectory() as folder:
        written = Mesh(tp=2, dp=2, steps=steps, layers=3, slow={1: 1.3}).write(Path(folder) / "ranks")
        return tuple((file.name.partition(".")[0], file.read_text()) for file in sorted(written.iterdir()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two windows of each of four ranks: of three steps, and of two."""
    found = tmp_path / "windows"
    found.mkdir()
    for time, steps in zip(TIMES, (3, 2), strict=True):
        for host, text in ranks_of(steps):
            (found / f"{host}.{time}.pt.trace.json").write_text(text)
    return found


@pytest.mark.heavy
def test_a_window_is_chosen_by_its_number(folder: Path) -> None:
    """In the order of their times, on all ranks; rank 1 then lacks the first, and wrote its other a second late."""
    runs = [dptrace.open(folder, window=window, cache=False) for window in (1, 2)]
    assert [(0, 1, 2, 3)] * 2 == [run.ranks for run in runs]
    assert [{4}, {3}] == [{len(timeline.windows) for timeline in run.timelines} for run in runs]

    first, second = sorted(folder.glob("*_4001.*"))
    first.unlink()
    second.rename(folder / second.name.replace(str(TIMES[1]), str(TIMES[1] + 10**9)))
    assert [(0, 2, 3), (0, 1, 2, 3)] == [dptrace.open(folder, window=n, cache=False).ranks for n in (1, 2)]


@pytest.mark.heavy
def test_a_history_has_a_run_for_each_window(folder: Path) -> None:
    """With all ranks, in the order of time, and of the number that --window has."""

    def listed(*options: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(cli, ["history", str(folder), "--json", "--no-cache", *options])
        rows: list[dict[str, object]] = json.loads(done.stdout)["series"][0]["runs"]
        return rows

    rows = listed()

    assert [4, 4] == [row["ranks"] for row in rows]
    assert [(f"{folder} --window 1", 4), (f"{folder} --window 2", 3)] == [(row["run"], row["steps"]) for row in rows]
    assert [f"{folder} --window 2"] == [row["run"] for row in listed("--window", "2")]
    assert 2 == CliRunner().invoke(cli, ["history", str(folder), "--window", "3"]).exit_code


def test_holistic_trace_analysis_asks_for_a_window(folder: Path) -> None:
    """It reads one file of each rank; the message says which windows there are, and so for one that is not there."""
    for options in ([], ["--window", "3"]):
        done = CliRunner().invoke(cli, ["hta", str(folder), "queue-length", *options])
        assert 2 == done.exit_code
        assert "1 to " in done.output


def test_a_window_that_is_not_there_is_wrong_use_before_any_is_read(folder: Path) -> None:
    """The message says which there are, and for Python that it is an integer; what is no trace is not looked at."""
    for file in folder.iterdir():
        file.write_text("{")

    for window, said in ((3, "1 to 2"), ("1", "integer"), (1.0, "integer"), (True, "integer")):
        with pytest.raises(UsageError, match=said):
            dptrace.open(folder, window=window, cache=False)  # type: ignore[arg-type]


# All windows as one run.

LENGTHS, GAP_NS = (4, 3, 5), 5 * 10**9
"""Steps of the windows, and from the start of one to that of the next."""
HANDLER = "{host}.{time}.pt.trace.json"


@cache
def windows_of(numbered: bool) -> list[tuple[int, int, int, str, str]]:
    """Return time, rank, first step, host and text of each window of four ranks; numbers go on, or begin again."""
    found, first = [], 0
    for number, steps in enumerate(LENGTHS):
        for rank, (host, text) in enumerate(ranks_of(steps - 1)):
            trace = json.loads(text)
            trace["baseTimeNanoseconds"] += number * GAP_NS
            for event in trace["traceEvents"]:
                if event["name"].startswith("ProfilerStep#"):
                    event["name"] = f"ProfilerStep#{int(event['name'][13:]) + first}"
            found.append((TIMES[0] + number * GAP_NS, rank, first + 8, host, json.dumps(trace)))
        first += steps + 4 if numbered else 0
    return found


def write_windows(folder: Path, name: str = HANDLER, numbered: bool = True) -> Path:
    """Write the windows of four ranks, of which rank 1 has slow kernels."""
    for time, rank, step, host, text in windows_of(numbered):
        place = folder / name.format(host=host, time=time, rank=rank, step=step)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three windows of each of four ranks."""
    return write_windows(tmp_path_factory.mktemp("series") / "windows")


@pytest.fixture(scope="module")
def whole(series: Path) -> dptrace.Run:
    """All windows as one run."""
    return dptrace.open(series, cache=False)


@pytest.fixture(scope="module")
def single(series: Path) -> list[dptrace.Run]:
    """Each window as a run."""
    return [dptrace.open(series, window=number, cache=False) for number in (1, 2, 3)]


@pytest.mark.heavy
def test_all_windows_are_one_run_with_the_figures_of_each(whole: dptrace.Run, single: list[dptrace.Run]) -> None:
    """Every step of every rank, its collectives and its kernels are as in the run of its window alone."""
    for table in ("steps", "idle_causes", "collectives", "kernels"):
        found, expected = getattr(whole, table)(), pd.concat([getattr(run, table)() for run in single])
        keys = [key for key in ("rank", "step", "start_ns", "end_ns", "lane", "name") if key in expected]
        found, expected = (frame.sort_values(keys, kind="stable").reset_index(drop=True) for frame in (found, expected))
        pd.testing.assert_frame_equal(expected, found)


def test_whatever_says_when_a_host_did_something_is_of_all_windows(single: list[dptrace.Run]) -> None:
    """Each field of a timeline that is a set of intervals; here, each has the first step of each window."""
    names = {field.name for field in fields(Timeline) if field.default is EMPTY}
    devices = [run.devices[0] for run in single]
    bounds = [device.timeline.windows.bounds for device in devices]
    planted = [
        replace(device, timeline=replace(device.timeline, **dict.fromkeys(names, (own[:1], own[1:2]))))
        for device, own in zip(devices, bounds, strict=True)
    ]

    found = joined(planted).timeline

    first = [own[0] for own in bounds]
    assert "data_loading" in names
    assert [(name, first) for name in names] == [(name, getattr(found, name)[0].tolist()) for name in names]


@pytest.mark.heavy
def test_steps_keep_their_numbers_and_what_is_between_windows_counts_nowhere(series: Path, whole: dptrace.Run) -> None:
    """Twelve steps of 1.23 ms, which are recorded in ten seconds; a note says how they are recorded."""
    steps = [0, 1, 2, 3, 8, 9, 10, 15, 16, 17, 18, 19]

    assert [f"ProfilerStep#{number}" for number in steps] == whole.steps().query("rank == 0").step.tolist()
    assert whole.totals().wall_ns.max() < 12 * 1_250_000
    assert any("3 windows" in note and "--window 3" in note for note in whole.notes)
    assert [4, 3, 5] == [*map(len, whole.windows)]
    assert [whole.windows[1]] == [*dptrace.open(series, window=2, cache=False).windows]


def test_a_selection_across_windows_leaves_out_what_is_between(whole: dptrace.Run) -> None:
    """Steps 3 and 8 follow each other."""
    part = whole.select(steps=(3, 8)).steps()

    expected = whole.steps().query("step in ['ProfilerStep#3', 'ProfilerStep#8']")
    pd.testing.assert_frame_equal(expected.reset_index(drop=True), part.reset_index(drop=True))


@pytest.mark.heavy
def test_findings_gain_in_each_window_what_they_gain_in_it_alone(whole: dptrace.Run, single: list[dptrace.Run]) -> None:
    """A replay of several windows is one of each: nothing moves from one to the next."""
    expected = [run.findings().set_index("kind").gain_ns["straggler"] for run in single]

    found = whole.findings().set_index("kind").gain_ns["straggler"]

    assert found == pytest.approx(sum(n * ns for n, ns in zip(LENGTHS, expected, strict=True)) / 12, rel=0.001)


@pytest.mark.heavy
def test_a_what_if_and_a_path_are_of_steps_alone(whole: dptrace.Run, single: list[dptrace.Run]) -> None:
    """Those of a step are as in its window, also where it is the first one; the path of a run is of all windows."""
    assert dptrace.whatif(whole, bandwidth=2.0).predicted_step_ns == pytest.approx(
        dptrace.whatif(single[0], bandwidth=2.0).predicted_step_ns, rel=0.002
    )
    path, alone = dptrace.critical_path(whole, step=8), dptrace.critical_path(single[1], step=8)
    assert alone.length_ns == pytest.approx(path.length_ns, rel=0.01)
    found, one = dptrace.whatif(whole).path_ns, dptrace.whatif(single[0]).path_ns
    assert found == pytest.approx(one, rel=0.01, abs=1000)
    for item, expected in zip(path.items[:3], alone.items[:3], strict=True):
        assert expected.name == item.name
        assert expected.gain_ns == pytest.approx(item.gain_ns, rel=0.01)


@pytest.mark.heavy
def test_operators_of_all_windows_are_counted(whole: dptrace.Run, single: list[dptrace.Run]) -> None:
    """Files are read again for what launched kernels, and their ids begin again in each."""
    found, *others = (run.kernel_summary(by="operator").set_index("operator") for run in (whole, *single))

    assert sum(int(one["count"]["aten::mm"]) for one in others) == int(found["count"]["aten::mm"])


@pytest.mark.heavy
def test_memory_is_followed_in_each_window(tmp_path: Path) -> None:
    """Steps have the peaks of their windows; blocks are those of the highest, and calls of the allocator add up."""
    memory_run(tmp_path)
    folder = tmp_path / "windows"
    folder.mkdir()
    for number in (0, 1, 2):
        for rank, file in enumerate(sorted(tmp_path.glob("rank*.json"))):
            trace = json.loads(file.read_text())
            for event in trace["traceEvents"]:
                event["ts"] = event.get("ts", 0) + number * 5_000_000
                if "Total Allocated" in event.get("args", {}):
                    event["args"]["Total Allocated"] += 500 * (number == 1)
                if event["name"].startswith("ProfilerStep#"):
                    event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 9 * number}"
            (folder / HANDLER.format(host=f"node_{rank}", time=TIMES[0] + number)).write_text(json.dumps(trace))
    run, alone = dptrace.open(folder, cache=False), dptrace.open(folder, window=2, cache=False)

    peaks = run.memory().query("phase == 'all' and rank == 0")
    assert [1300, 1340, 1800, 1840, 1300, 1340] == peaks.peak_bytes.tolist()
    pd.testing.assert_frame_equal(alone.memory_usage(), run.memory_usage())
    pd.testing.assert_frame_equal(alone.memory_blocks(), run.memory_blocks())
    assert 3 * alone.allocator_calls()["count"].sum() == run.allocator_calls()["count"].sum() > 0
    first, _ = run.to_dict(memory=True)["memory"]
    assert (1840, "ProfilerStep#10", 6) == (first["peak"]["bytes"], first["peak"]["step"], len({*peaks.step}))
    drawn = chart(run)
    [at, size] = memory_lanes(run, drawn)["0"]["peak"]
    assert 1840 == size
    assert drawn.tracks[0].bounds_ns[3] < at < drawn.tracks[0].ends_ns[3]
    assert memory_lanes(part := run.select(steps=(0, 1)), chart(part))["0"]["peak"][1] == 1340
    assert 6 == sum(one.text.startswith("step ") for one in memory(run).marks if isinstance(one, Label)) // 2


@pytest.mark.heavy
def test_pictures_have_all_steps_with_little_between_windows(whole: dptrace.Run, single: list[dptrace.Run]) -> None:
    """Ten seconds with 15 ms of steps are drawn as 16 ms: intervals lie in their steps; a terminal has one window."""
    drawn = chart(whole)
    track, axis, (first, second) = drawn.tracks[0], drawn.axes[0], drawn.breaks.spans

    bounds = whole.timelines[0].windows.bounds
    assert bounds.tolist() == axis.recorded(*axis.since(bounds).tolist())
    assert whole.timelines[0].windows.wall_by_step.tolist() == (track.ends_ns - track.bounds_ns[:-1]).tolist()
    assert (first[0], second[1]) == (track.ends_ns[3], track.bounds_ns[7])
    assert GAP_NS == pytest.approx(first[2], rel=0.01)
    assert drawn.end_ns < 1.1 * whole.totals().wall_ns.max()
    for lane, *parts in zip(drawn.lanes, *(chart(run).lanes for run in single), strict=True):
        assert len(lane) == sum(map(len, parts))
        assert lane.duration_ns.sum() == sum(int(part.duration_ns.sum()) for part in parts)
    assert 2 == gantt_svg(whole).count("s not recorded")
    console = Console(width=100, record=True, file=StringIO())
    print_gantt(whole, console)
    assert "--window N" in console.export_text()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["iteration_{step}/rank{rank}_trace.json", "trace_rank{rank}_step{step}.json"])
def test_windows_are_found_by_rank_and_time_where_names_order_otherwise(
    tmp_path: Path, whole: dptrace.Run, single: list[dptrace.Run], name: str
) -> None:
    """step 16 sorts before step 8; the first bytes of the files say when each begins."""
    folder = write_windows(tmp_path / "windows", name)

    for window, run in ((None, whole), (1, single[0])):
        assert run.steps().step.tolist() == dptrace.open(folder, window=window, cache=False).steps().step.tolist()


@pytest.mark.heavy
def test_steps_whose_numbers_begin_again_are_no_one_run(tmp_path: Path) -> None:
    """As of a job that was started again; the error names both files and what to do."""
    folder = write_windows(tmp_path / "windows", numbered=False)

    with pytest.raises(DptraceError, match="started again") as caught:
        dptrace.open(folder, cache=False)

    assert all(word in str(caught.value) for word in (str(TIMES[0]), "window=N", "dptrace history"))


@pytest.mark.heavy
def test_a_rank_may_lack_a_window(tmp_path: Path) -> None:
    """Of one file that is missing and one that can't be read, notes say which steps lack; the others are compared."""
    folder = write_windows(tmp_path / "windows")
    files = sorted(folder.iterdir())
    files[3].unlink()  # rank 1, first window
    files[7].write_text("no trace")  # rank 2, second window

    run = dptrace.open(folder, cache=False)

    assert [12, 8, 9, 12] == run.steps().groupby("rank").size().tolist()
    assert [4, 3, 5] == [*map(len, run.windows)]
    assert 2 == sum("that others have" in note for note in run.notes)
    assert dptrace.whatif(run, bandwidth=2.0).predicted_step_ns < 1_200_000


@pytest.mark.heavy
def test_a_copy_of_a_window_counts_once(tmp_path: Path, whole: dptrace.Run) -> None:
    """The same file under the name of a later time is no window."""
    folder = write_windows(tmp_path / "windows")
    first = sorted(folder.iterdir())[0]
    shutil.copy(first, folder / first.name.replace(str(TIMES[0]), str(TIMES[0] + 9 * GAP_NS)))

    run = dptrace.open(folder, cache=False)

    pd.testing.assert_frame_equal(whole.steps(), run.steps())
    assert any("is a copy of" in note for note in run.notes)


@pytest.mark.heavy
def test_two_files_of_a_rank_that_begin_at_once_are_no_windows(tmp_path: Path) -> None:
    """They claim one rank."""
    folder = write_windows(tmp_path / "windows", "rank{rank}_{step}.json")
    shutil.copy(folder / "rank1_8.json", folder / "rank1_copy.json")

    with pytest.raises(DptraceError, match="both claim rank"):
        dptrace.open(folder, cache=False)
