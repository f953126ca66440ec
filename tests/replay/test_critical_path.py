"""Critical paths of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.replay.critical_path import PathItem
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.schedule import Schedule, Times
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import job_rank

REAL_RUNS = "dlrm_v100_4ranks", "ddp_mi300_rank0of8"


def test_the_path_is_that_of_the_slower_rank(run: dptrace.Run) -> None:
    """From step to step: rank 1's forward and backward, the transfer, and a kernel and the host after it."""
    path = run.critical_path("ProfilerStep#1")

    assert 800_000 == path.length_ns
    assert 800_000 == sum(path.by_kind.values()) == sum(path.by_rank.values())
    assert 400_000 + 200_000 + 50_000 == path.by_kind["compute"]
    assert 100_000 == path.by_kind["transfer"] == path.by_rank[None]
    assert ["forward", "backward", "all_reduce", "optimizer"] == [item.name for item in path.items[:4]]


def test_a_tenth_less_gains_what_a_replay_says(run: dptrace.Run) -> None:
    """A forward of 400 µs on the slower rank, less 10 %, makes each step 40 µs shorter."""
    items = {item.name: item.gain_ns for item in run.critical_path().items}

    assert 40_000 == items["forward"]
    assert 10_000 == items["all_reduce"]


def test_the_slack_of_the_faster_rank_is_its_wait(run: dptrace.Run) -> None:
    """Rank 0's forward could take 100 µs longer; on rank 1, nothing could."""
    kernels = run.critical_path("ProfilerStep#2").kernels()

    forward = kernels[kernels["name"] == "forward"].set_index("rank")
    assert {0: 100_000, 1: 0} == forward["slack_ns"].to_dict()
    assert {0: False, 1: True} == forward["on_path"].to_dict()


def test_an_unknown_step_is_refused(run: dptrace.Run) -> None:
    """The message lists the steps of the run."""
    with pytest.raises(dptrace.UsageError, match="ProfilerStep#3"):
        run.critical_path("ProfilerStep#9")


@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "ddp_cpu_2ranks", "single_cpu"])
def test_recorded_paths_cover_their_step(name: str) -> None:
    """In recordings on CPUs, the kinds add up to the length, and what is on the path has no slack."""
    path = dptrace.open(ROOT / "traces" / name).critical_path()
    kernels = path.kernels()

    assert path.length_ns == sum(path.by_kind.values())
    assert 0 == kernels[kernels["on_path"]]["slack_ns"].min()


@pytest.mark.heavy
def test_a_rank_that_lacks_a_step_is_aligned_by_the_names_of_its_others(run: dptrace.Run, tmp_path: Path) -> None:
    """It began to record a step later: its kernels before that are of no step, and paths are those of the whole job."""
    files = [job_rank(rank, forward, 623) for rank, forward in enumerate((300, 400))]
    files[1].events = [event for event in files[1].events if event["name"] != "ProfilerStep#0"]
    for rank, file in enumerate(files):
        file.write(tmp_path / f"rank{rank}.json")
    late = dptrace.open(tmp_path, cache=False)

    for step in ("ProfilerStep#1", "ProfilerStep#3"):
        path, whole = late.critical_path(step), run.critical_path(step)
        assert (whole.start_ns, whole.end_ns, whole.by_kind) == (path.start_ns, path.end_ns, path.by_kind)
    assert {0} == set(late.critical_path("ProfilerStep#0").kernels()["rank"])


@needs_real_traces
@pytest.mark.heavy
@pytest.mark.parametrize("name", REAL_RUNS)
def test_paths_of_real_recordings_have_no_gap(name: str) -> None:
    """From where a step begins to where it ends. The gain of a name is that of a replay in which its tasks are
    shorter.
    """
    run = dptrace.open(real(name))
    path = run.critical_path(run.timelines[0].windows.names[1])

    assert path.length_ns == sum(path.by_kind.values()) == int((path.links.end_ns - path.links.start_ns).sum())
    assert np.array_equal(path.links.end_ns[:-1], path.links.start_ns[1:])
    item = next(item for item in path.items if item.name and not item.name.startswith("Python in "))
    assert abs(item.gain_ns - replayed_gain(run, item)) <= 1


STEPS_OF_REAL_RUNS = (
    "straggler_v100_4ranks", "dlrm_v100_4ranks", "sharded_h100_8ranks", "ns_v100_1gpu", "ddp_a100_rank0of2",
    "ddp_mi300_rank0of8", "compute/h100_qwen_0.5b", "odd/gloo_cpu_rank34of300.json.gz",
    "odd/gpu_events_only_mi210.json.gz", "nsys/mfu_2gpu_before.sqlite",
)  # fmt: skip


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("name", STEPS_OF_REAL_RUNS)
def test_the_path_of_a_step_is_the_step_that_analyze_prints(name: str) -> None:
    """On the rank that ends it last, it is as long as there, but for the error of the replay, even where a step begins
    before the last work of the one before is over: 204.8 ms and not 144. The mean of the ranks, and the median step,
    are those of tables and what-ifs.
    """
    run = dptrace.open(real(name))
    walls = run.steps().groupby(["step", "rank"], sort=False)["wall_ns"].max()

    for step in run.timelines[0].windows.names:
        path = run.critical_path(step)
        assert path.length_ns == path.end_ns - path.start_ns == sum(path.by_kind.values())
        assert abs(path.length_ns / walls[step][path.rank] - 1) < 0.015
        assert round(walls[step].mean()) == path.wall_ns
    assert round(walls.groupby("step").mean().median()) == pytest.approx(run.whatif().measured_step_ns, abs=1)


def test_a_step_that_begins_before_the_one_before_is_over_has_a_path_from_there(tmp_path: Path) -> None:
    """Each step's last kernel ends on another stream 100 µs after the next step's first one has begun: steps still
    last 500 µs, and so do their paths.
    """
    file = KinetoFile()
    for step, start in enumerate(range(0, 2000, 500)):
        file.label(f"ProfilerStep#{step}", start, start + 500)
        file.kernel("short", start + 20, start + 400, launch=start + 10)
        file.kernel("long", start + 320, start + 620, launch=start + 300, stream=9)
    run = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False)

    assert [500_000] * 2 == [run.critical_path(f"ProfilerStep#{step}").length_ns for step in (1, 2)]


@pytest.mark.heavy
@needs_real_traces
def test_no_gain_exceeds_what_a_path_has_of_it() -> None:
    """No step gets shorter by more than a tenth of what its path has of a kind; time ahead of the first step, such as
    the start of the profiler, does not count.
    """
    run = dptrace.open(real("ddp_mi300_rank0of8"))
    paths = [run.critical_path(step) for step in run.timelines[0].windows.names]
    of_kind = {kind: sum(path.by_kind[kind] for path in paths) / len(paths) for kind in paths[0].by_kind}

    # A tenth of each of hundreds of gaps is rounded to a ns.
    assert all(item.gain_ns <= 0.101 * of_kind[item.kind] + 1 for item in paths[0].items)


def ended(run: dptrace.Run, times: Times, step: int) -> int:
    """Return when all that was launched up to a step, and its marks, are over: by a search of all tasks."""
    model = run.replay.model
    ends = [int(times.start_ns[process.mark_tasks[step + 1]]) for process in model.processes]
    for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
        own = tasks[(timeline.step >= -1) & (timeline.step <= step) & (tasks >= 0)]
        ends.append(int(times.end_ns[model.over[own]].max()))
    return max(ends)


def replayed_gain(run: dptrace.Run, item: PathItem) -> float:
    """Return what a replay gains a step in which the tasks of an item, and the lags of hosts to them, are 10 % less."""
    graph, steps = run.replay.model.graph, len(run.timelines[0].windows.names)
    names = np.array(graph.names, object)
    host = graph.of(TaskKind.CALL, TaskKind.RETURN, TaskKind.MARK) & (graph.operator >= 0)
    own = np.where(host, names[graph.operator], names[graph.name]) == item.name
    kinds = {"host": TaskKind.CALL, "compute": TaskKind.COMPUTE, "transfer": TaskKind.TRANSFER}
    durations, lags = graph.duration_ns.copy(), graph.edge.lag_ns.copy()
    times, since = run.replay.base.times, ended(run, run.replay.base.times, -1)
    chosen = own & (graph.kind == kinds[item.kind])
    part = np.clip(times.end_ns - since, 0, durations)[chosen]
    durations[chosen] -= np.rint(part * 0.1).astype(np.int64)
    if item.kind == "host":
        edges = own[graph.edge.dst] & graph.edge.from_end & (graph.edge.kind <= EdgeKind.THREAD) & (lags > 0)
        part = np.minimum(lags, np.maximum(0, times.start_ns[graph.edge.dst] - since))[edges]
        lags[edges] -= np.rint(part * 0.1).astype(np.int64)
    schedule = Schedule(graph)
    as_it_was = graph.duration_ns, graph.edge.lag_ns
    before, after = (ended(run, schedule.run(*times).times, steps - 1) for times in (as_it_was, (durations, lags)))
    return (before - after) / steps


INPUTS = ROOT.parent / "shared" / "inputs" / "plants"


@pytest.mark.heavy
@pytest.mark.skipif(not INPUTS.exists(), reason=f"the inputs are not here ({INPUTS})")
def test_a_sleep_after_a_collective_is_the_hosts() -> None:
    """Rank 0 sleeps for 100 ms once an all-reduce has ended: that is no return of a wait."""
    path = dptrace.open(INPUTS / "mesh_opt").critical_path()

    assert path.by_kind["host"] > 100_000_000
    assert path.by_kind["wait"] < 0.02 * path.length_ns
