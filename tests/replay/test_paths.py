"""Chains of what each task waited for longest."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dptrace
from dptrace.replay.critical_path import CriticalPath
from dptrace.replay.graph.model import EdgeKind, Graph, TaskKind
from dptrace.replay.graph.schedule import Schedule, simulate
from dptrace.replay.paths import (
    LINK_KINDS,
    binding_edges,
    chain_to,
    host_names,
    name_of,
    slack_of,
)
from dptrace.timeline.model import HostCause, HostLabel
from tests.support.graphs import graphs
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import write_job_with_modules
from tests.test_public_frames import check


def longest_path(graph: Graph, task: int) -> int:
    """Return the largest of the ends of a task along each path to it: by enumeration of all."""
    edge = graph.edge

    def starts(here: int) -> list[int]:
        edges = [i for i in range(len(edge)) if edge.dst[i] == here]
        return [
            start + int(edge.from_end[i]) * int(graph.duration_ns[edge.src[i]]) + int(edge.lag_ns[i])
            for i in edges
            for start in starts(int(edge.src[i]))
        ] or [int(graph.start_ns[here])]

    return max(starts(task)) + int(graph.duration_ns[task])


@pytest.mark.heavy
@given(graphs(most=9))
def test_the_chain_is_the_longest_path(graph: Graph) -> None:
    """The lags and durations along the chain to the last task add up to the longest of all paths to it."""
    times = simulate(graph)
    last = int(times.end_ns.argmax())

    chain = chain_to(graph, binding_edges(graph, times), last, times)

    edges = chain.edge[:-1]
    work = np.where(graph.edge.from_end[edges], graph.duration_ns[graph.edge.src[edges]], 0).sum()
    length = graph.start_ns[chain.task[-1]] + work + graph.edge.lag_ns[edges].sum() + graph.duration_ns[last]
    assert longest_path(graph, last) == length


@pytest.mark.heavy
@given(graphs())
def test_a_chain_can_end_early(graph: Graph) -> None:
    """A chain that is cut at a time ends with the first task that starts by then."""
    times = simulate(graph)
    last, since = int(times.end_ns.argmax()), int(np.median(times.start_ns))

    chain = chain_to(graph, binding_edges(graph, times), last, times, since)

    assert (times.start_ns[chain.task[:-1]] > since).all()
    assert -1 == chain.edge[-1]


# The time of a critical path by module, and which module a task is of.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    return dptrace.open(write_job_with_modules(tmp_path_factory.mktemp("modules")), cache=False)


def test_the_modules_add_up_to_the_step(run: dptrace.Run) -> None:
    """Of 800 µs: the forward kernel of 400, the backward one of 200, the all-reduce of 100, and the rest."""
    path = run.critical_path("ProfilerStep#1")
    found = {one.module: one for one in path.by_module}

    assert 800_000 == path.length_ns == sum(one.path_ns for one in path.by_module)
    assert 400_000 == found["layers.0"].by_kind["compute"]
    assert 200_000 == found["layers.1"].by_kind["compute"]
    assert 100_000 == found["layers.1"].by_kind["transfer"]
    assert all(one.path_ns == sum(one.by_kind.values()) for one in path.by_module)


def test_a_tenth_less_of_a_module_gains_what_a_replay_says(run: dptrace.Run) -> None:
    """Kernels of 400 µs on the slower rank, with 10 µs of its host before them, gain 41; 300 of the other module 30."""
    gains = {one.module: one.gain_ns for one in run.critical_path().by_module}

    assert (41_000, 30_000, None) == (gains["layers.0"], gains["layers.1"], gains["(no module)"])


def test_a_run_without_modules_has_none(tmp_path: Path) -> None:
    """Annotations do not take their place."""
    from tests.support.replay_files import write_job

    path = dptrace.open(write_job(tmp_path), cache=False).critical_path()

    assert () == path.by_module
    assert [] == path.to_dict()["modules"]
    assert 0 == len(path.modules())


def test_the_frames_are_documented(run: dptrace.Run) -> None:
    """Each column of both tables of a path, with its dtype and unit."""
    path = run.critical_path()

    check(CriticalPath.modules, [path.modules()])
    check(CriticalPath.kernels, [path.kernels()])


# What pieces of host time are called.


SLEEP = "Python in # running sparse arch, before _AlltoAllSingle"

LABELS = [
    HostLabel(HostCause.OPERATOR, "aten::mm", "# forward"),
    HostLabel(HostCause.OPERATOR, "", "# backward"),
    HostLabel(HostCause.PYTHON, "# loss"),
    HostLabel(HostCause.ALLOCATOR, "cudaMalloc", "aten::cat"),
    HostLabel(HostCause.NOTHING_RECORDED),
]


@pytest.mark.heavy
@given(st.dictionaries(st.sampled_from(LABELS), st.integers(1, 50), min_size=1), st.sampled_from(LABELS))
def test_what_took_most_of_a_piece_names_it(spent: dict[HostLabel, int], most: HostLabel) -> None:
    """Whatever else there was in it, and never what came next alone."""
    name = name_of(spent | {most: sum(spent.values()) + 1}, "aten::add")

    assert all(part in name for part in (most.what, most.where))
    assert ("before aten::add" in name) == (most.cause in (HostCause.PYTHON, HostCause.NOTHING_RECORDED))
    assert "aten::add" != name


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(("name", "least_ns"), [("dlrm_v100_4ranks", 15_000_000), ("straggler_v100_4ranks", 990e6)])
def test_a_sleep_before_a_collective_is_no_collective(name: str, least_ns: float) -> None:
    """Rank 2 sleeps in Python code before its all-to-all: so say the items, the chain and a what-if's pieces."""
    run = dptrace.open(real(name))
    path = run.critical_path("ProfilerStep#6")
    host = [item for item in path.items if item.kind == "host"]
    longest = max(
        (piece for piece in path.pieces() if piece["kind"] == "host"), key=lambda p: p["end_ns"] - p["start_ns"]
    )

    assert SLEEP == host[0].name == longest["name"]
    assert least_ns < host[0].path_ns
    assert host[0].gain_ns == pytest.approx(host[0].path_ns / 10, rel=0.05)
    assert 2 == longest["rank"]
    assert SLEEP in [piece.name for piece in run.whatif().longest] or name.startswith("dlrm")


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("name", ["straggler_v100_4ranks", "sharded_h100_8ranks", "naive_cpu_2ranks"])
def test_no_long_pause_has_the_name_of_what_follows(name: str) -> None:
    """Each pause of half a millisecond is named by the label with most of its time, by a search of the recording."""
    run = dptrace.open(ROOT / "traces" / name if "cpu" in name else real(name))
    model, count = run.replay.model, 0
    graph, named = model.graph, host_names(model)
    edge = graph.edge
    for task in np.flatnonzero(graph.of(TaskKind.CALL, TaskKind.MARK, TaskKind.COMPUTE)).tolist():
        kinds = EdgeKind.HOST, EdgeKind.THREAD, EdgeKind.HIDDEN
        own = [i for i in range(graph.first[task], graph.first[task + 1]) if edge.kind[i] in kinds and edge.from_end[i]]
        since = max((int(graph.end_ns[edge.src[i]]) for i in own), default=int(graph.start_ns[task]))
        pause = int(graph.start_ns[task]) - since
        if pause < max(500_000, graph.duration_ns[task]):
            continue
        number = model.processes[graph.process[task]].timelines[0][0]
        bounds = model.run.cross_rank.clocks.unalign(number, np.array([since, int(graph.start_ns[task])]))
        spent = model.run.timelines[number].host.spent(*bounds.tolist())
        most = max(spent, key=lambda label: spent[label])
        if 2 * spent[most] > pause + 2:
            count += 1
            assert most.what in named.names[named.name[task]]
    assert count


def test_pieces_of_the_host_have_a_name(run: dptrace.Run) -> None:
    """Each of them, on the path of a step; neighbors of one name are one piece, and the pieces still have no gap."""
    path = run.critical_path("ProfilerStep#1")
    pieces = list(path.pieces())
    kinds = [LINK_KINDS[kind] for kind in path.links.kind.tolist()]

    assert all(one["name"] for one, kind in zip(path.described(), kinds, strict=True) if kind == "host")
    keys = [(piece["kind"], piece["rank"], piece["name"]) for piece in pieces]
    assert all(one != other for one, other in pairwise(keys))
    assert path.length_ns == sum(piece["end_ns"] - piece["start_ns"] for piece in pieces)


# Where a recording has the pieces of a critical path.


def test_pieces_lie_where_the_recording_has_their_kernels(run: dptrace.Run) -> None:
    """The replay of this job is exact: each piece of a kernel is its interval, a transfer the end of the collective."""
    path = run.critical_path("ProfilerStep#1")
    places = path.recorded
    found = {}
    for i in np.flatnonzero(places.interval >= 0).tolist():
        timeline = path.timelines[places.timeline[i]]
        name = timeline.names[timeline.name[places.interval[i]]]
        found[name] = (timeline.rank, int(places.end_ns[i] - timeline.end_ns[places.interval[i]]))

    assert {"forward", "backward", "ncclDevKernel_AllReduce_Sum_f32", "optimizer"} == set(found)
    assert (1, 0) == found["forward"] == found["ncclDevKernel_AllReduce_Sum_f32"]


def test_a_pause_lies_before_its_call(run: dptrace.Run) -> None:
    """The host's 20 µs between two steps lead to the first launch, and are no interval of the device."""
    path = run.critical_path("ProfilerStep#1")
    host = [i for i, one in enumerate(path.described()) if one["kind"] == "host" and path.recorded.before[i]]

    assert host
    assert {-1} == set(path.recorded.interval[host].tolist())


@needs_real_traces
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["dlrm_v100_4ranks", "naive_cpu_2ranks"])
def test_no_piece_of_a_kernel_leaves_its_interval(name: str) -> None:
    """Where ranks have clocks of their own, and on CPUs."""
    path = dptrace.open(ROOT / "traces" / name if "cpu" in name else real(name)).critical_path()
    places = path.recorded
    known = np.flatnonzero(places.interval >= 0)
    spans = [
        (path.timelines[n].start_ns[i], path.timelines[n].end_ns[i])
        for n, i in zip(places.timeline[known].tolist(), places.interval[known].tolist(), strict=True)
    ]

    assert len(known) > 50
    start, end = np.array(spans).T
    # Clocks are known to some µs.
    assert (places.start_ns[known] - start).min() > -100_000
    assert (places.end_ns[known] - end).max() < 100_000


# How much longer a task could take for nothing.


@pytest.mark.heavy
@given(graphs(), st.data())
def test_slack_is_what_a_task_can_take_longer(graph: Graph, data: st.DataObject) -> None:
    """By replay: longer by its slack, a task does not delay the end; longer by one more ns, it does."""
    schedule, lags = Schedule(graph), graph.edge.lag_ns
    times = schedule.run(graph.duration_ns, lags).times
    end, task = int(times.end_ns.max()), data.draw(st.integers(0, len(graph) - 1))
    every = np.arange(len(graph))

    slack = int(slack_of(graph, times, every, np.full(len(every), end))[task])

    for more, delayed in ((slack, 0), (slack + 1, 1)):
        longer = graph.duration_ns.copy()
        longer[task] += more
        assert delayed == schedule.run(longer, lags).times.end_ns.max() - end


def test_a_gap_of_a_whatif_does_not_look_like_the_kernel_after_it() -> None:
    """No piece that has a copy's or a kernel's own name is longer than the longest of that name in the recording."""
    run = dptrace.open(str(ROOT / "traces" / "ddp_h200_2ranks"))
    longest = dict[str, int]()
    for timeline in run.timelines:
        for name, ns in zip(timeline.name.tolist(), (timeline.end_ns - timeline.start_ns).tolist(), strict=True):
            longest[timeline.names[name]] = max(ns, longest.get(timeline.names[name], 0))
    gap = next(piece for piece in run.whatif().longest if piece.kind == "stream")

    assert gap.name.endswith("before Memcpy DtoD (Device -> Device)")
    assert all(piece.length_ns <= longest.get(piece.name, piece.length_ns) for piece in run.whatif().longest)
