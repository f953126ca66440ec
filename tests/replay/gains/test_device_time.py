"""Device time that is taken out of a run."""

from __future__ import annotations

import numpy as np

import dptrace
from dptrace.replay.gains.device_time import (
    HiddenCollectives,
    NoStreamGaps,
    NoStreamWaits,
    ShorterTasks,
    transfers_of,
)
from dptrace.replay.gains.measure import Measurer
from dptrace.replay.graph.model import EdgeKind, TaskKind


def test_shorter_kernels_take_less(run: dptrace.Run) -> None:
    """Rank 1's forward sets the step: 30 µs less of it are 30 µs of the step, of rank 0's they are nothing."""
    graph = run.replay.model.graph
    forward = np.flatnonzero(np.array([name == "forward" for name in graph.names])[graph.name] & (graph.kind == 3))
    gains = [
        Measurer(run.replay).measure(ShorterTasks("x", own, np.full(len(own), 30_000))).gain.ns
        for own in (forward[graph.process[forward] == rank] for rank in (0, 1))
    ]

    assert [0, 30_000] == gains


def test_only_one_kind_is_hidden(run: dptrace.Run) -> None:
    """A kind that the run does not have changes nothing."""
    model = run.replay.model

    assert (HiddenCollectives("all_gather").apply(model).graph.duration_ns == model.graph.duration_ns).all()
    transfers = model.graph.of(TaskKind.TRANSFER)
    assert 0 == HiddenCollectives("all_reduce").apply(model).graph.duration_ns[transfers].sum()


def test_transfers_of_matched_collectives_are_found(run: dptrace.Run) -> None:
    """Each all-reduce of the job has one transfer of 100 µs."""
    place, task = transfers_of(run.replay.model, np.array([2, 0]))

    assert [0, 1] == sorted(place.tolist())
    assert [100_000] * 2 == run.replay.model.graph.duration_ns[task].tolist()


def test_gaps_and_waits_of_streams_go(run: dptrace.Run) -> None:
    """Kernels of a stream follow each other at once; the optimizer still waits for the all-reduce."""
    model = run.replay.model
    edge = NoStreamGaps().apply(model).graph.edge

    assert 0 == edge.lag_ns[edge.of(EdgeKind.STREAM)].max()
    assert 0 == Measurer(run.replay).measure(NoStreamWaits()).gain.ns
