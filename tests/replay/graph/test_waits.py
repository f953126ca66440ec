"""Waits that the trace records: synchronization events of CUPTI."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import dptrace
from dptrace.readers.source import Source
from dptrace.replay.graph.build import Model, build_model
from dptrace.replay.graph.events import NOT_RECORDED, read_sync_events
from dptrace.replay.graph.model import EdgeKind
from tests.support.kineto_files import KinetoFile


def two_streams(folder: Path, sync: bool = True) -> Path:
    """Write a rank whose stream 20 waits for the first of two kernels of stream 7, and a host that waits for it."""
    file = KinetoFile().label("ProfilerStep#0", 0, 1000)
    file.kernel("first", 20, 100, 10)
    file.event("cuda_runtime", "cudaEventRecord", 12, 13, correlation=900)
    file.kernel("second", 101, 300, 14)
    file.event("cuda_runtime", "cudaStreamWaitEvent", 16, 17, correlation=901)
    file.kernel("side", 190, 230, 180, stream=20)
    file.event("cuda_runtime", "cudaStreamSynchronize", 185, 320, correlation=902)
    if sync:
        about = {"device": 0, "stream": 20}
        waits = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 900}
        file.event("cuda_sync", "Stream Wait Event", 16, 17, tid=20, correlation=901, **about, **waits)
        file.event("cuda_sync", "Stream Synchronize", 185, 320, tid=20, correlation=902, **about)
    return file.write(folder / "rank0.json")


def edges(model: Model, kind: EdgeKind) -> list[tuple[str, str]]:
    graph = model.graph
    names = np.array(graph.names, object)[graph.name]
    chosen = np.flatnonzero(graph.edge.of(kind))
    return list(zip(names[graph.edge.src[chosen]], names[graph.edge.dst[chosen]], strict=True))


def test_a_stream_waits_for_what_came_before_the_event(tmp_path: Path) -> None:
    """The kernel after the wait starts after the one before the recorded event, not after the stream's last one."""
    model = build_model(dptrace.open(two_streams(tmp_path), cache=False))

    assert [("first", "side")] == edges(model, EdgeKind.JOIN)


def test_the_host_waits_for_the_recorded_stream(tmp_path: Path) -> None:
    """A stream that is synchronized is the recorded one."""
    model = build_model(dptrace.open(two_streams(tmp_path), cache=False))

    assert [("side", "cudaStreamSynchronize")] == edges(model, EdgeKind.SYNCHRONIZE)


def test_without_events_nothing_is_recorded(tmp_path: Path) -> None:
    """Most traces have none; odd values count as absent."""
    assert 0 == len(read_sync_events(Source.of(two_streams(tmp_path, sync=False))))

    file = KinetoFile().event("cuda_sync", "Stream Wait Event", 1, 2, correlation="x", stream=[1], wait_on_stream=7)
    odd = read_sync_events(Source.of(file.write(tmp_path / "odd.json")))

    assert [NOT_RECORDED] == odd.correlation.tolist() == odd.stream.tolist()
    assert [7] == odd.wait_on_stream.tolist()
