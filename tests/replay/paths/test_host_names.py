"""What pieces of host time are called."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dptrace
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.paths.host_names import host_names, name_of
from dptrace.replay.paths.path import LINK_KINDS
from dptrace.timeline.model import HostCause, HostLabel
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real

SLEEP = "Python in # running sparse arch, before _AlltoAllSingle"

LABELS = [
    HostLabel(HostCause.OPERATOR, "aten::mm", "# forward"),
    HostLabel(HostCause.OPERATOR, "", "# backward"),
    HostLabel(HostCause.PYTHON, "# loss"),
    HostLabel(HostCause.ALLOCATOR, "cudaMalloc", "aten::cat"),
    HostLabel(HostCause.NOTHING_RECORDED),
]


@given(st.dictionaries(st.sampled_from(LABELS), st.integers(1, 50), min_size=1), st.sampled_from(LABELS))
def test_what_took_most_of_a_piece_names_it(spent: dict[HostLabel, int], most: HostLabel) -> None:
    """Whatever else there was in it, and never what came next alone."""
    name = name_of(spent | {most: sum(spent.values()) + 1}, "aten::add")

    assert all(part in name for part in (most.what, most.where))
    assert ("before aten::add" in name) == (most.cause in (HostCause.PYTHON, HostCause.NOTHING_RECORDED))
    assert "aten::add" != name


def test_many_operators_are_named_by_their_range() -> None:
    """By the one with most of their time."""
    many = {HostLabel(HostCause.OPERATOR, f"aten::{i}", "# a" if i < 4 else "# b"): 10 for i in range(10)}

    assert "many operators in # b" == name_of(many, "wait_tensor")


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


@needs_real_traces
@pytest.mark.heavy
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
