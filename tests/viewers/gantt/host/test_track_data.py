"""The data of one GPU's host rows: every call and every launch as recorded, what the host did as in the analysis."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.core.intervals import Int64
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, HostCalls
from dptrace.timeline.model import UNKNOWN
from dptrace.viewers.gantt.chart import chart, drawn_intervals
from dptrace.viewers.gantt.column_packing import unpack
from dptrace.viewers.gantt.host.track_data import KINDS, MOST_THREADS, threads_of, track_data
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real

ALL = 10**9


def texts(packed: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def sums(steps: Int64) -> Int64:
    """Undo differences: even numbers are increases, odd ones the others."""
    values: Int64 = np.cumsum(np.where(steps % 2, -(steps + 1) // 2, steps // 2))
    return values


def calls_of(run: Run, track: int = 0) -> HostCalls:
    calls = run.read_again(run.timelines[track], HOST_CALLS)
    assert calls is not None
    return calls


def shown(data: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return (thread, depth, start, duration, kind, name, details) of each call of the data."""
    calls = data["calls"]
    columns = {key: unpack(column) for key, column in calls["columns"].items()}
    names, details = texts(calls["names"]), texts(calls["details"])
    found, place = list[tuple[Any, ...]](), 0
    for thread, _, depth, count, first in calls["levels"]:
        index = slice(place, place + count)
        start = first + np.cumsum(columns["delta"][index])
        for i, time in zip(range(place, place + count), start.tolist(), strict=True):
            name, shapes = names[columns["name"][i]], details[columns["detail"][i]][0]
            found.append(
                (data["threads"][thread], depth, time, columns["duration"][i], columns["kind"][i], name, shapes)
            )
        place += count
    return sorted(found)


RUNS = [
    str(ROOT / "traces" / "ddp_cpu_2ranks"),
    pytest.param(real("straggler_v100_4ranks"), marks=needs_real_traces),
    pytest.param(real("compute/h100_bert_small"), marks=needs_real_traces),
]


@pytest.mark.parametrize("path", RUNS)
def test_every_call_is_in_the_data(path: str) -> None:
    """With its thread, depth, times, kind, name and shapes, if all calls fit."""
    run = open_run([path])
    drawn, calls = chart(run), calls_of(run)
    data = track_data(run.timelines[0], calls, drawn, ALL)
    start, end = drawn.origin_ns, drawn.origin_ns + drawn.end_ns
    expected = [
        (
            *(calls.threads[calls.thread[i]], calls.depth[i], calls.start_ns[i] - start),
            *(calls.end_ns[i] - calls.start_ns[i], calls.kind[i], calls.names[calls.name[i]]),
            calls.details[calls.detail[i]].shapes,
        )
        for i in np.flatnonzero((calls.start_ns < end) & (calls.end_ns > start))
    ]

    assert len(expected) > 100
    assert sorted(expected) == shown(data)
    assert (len(expected), 0) == (data["calls"]["total"], data["calls"]["leftOut"])


@pytest.mark.parametrize("path", RUNS)
def test_launches_are_those_of_the_timeline(path: str) -> None:
    """Start and length of the launching call, id and grid of each interval, in the order of the lanes."""
    run = open_run([path])
    drawn, calls, timeline = chart(run), calls_of(run), run.timelines[0]
    data = track_data(timeline, calls, drawn, ALL)
    launches = {key: unpack(column) for key, column in data["launches"].items()}
    end = drawn.origin_ns + drawn.end_ns
    index = np.concatenate([drawn_intervals(timeline, drawn.origin_ns, end, kind) for kind in KINDS])
    known = timeline.launch_ns[index] != UNKNOWN
    starts = sums(launches["start"]) + drawn.origin_ns
    assert timeline.launch_ns[index][known].tolist() == starts[known].tolist()
    ids = sums(launches["correlation"]) - 1
    assert calls.device_correlation[calls.device_index(timeline)[index]].tolist() == ids.tolist()
    grids = [texts(data["details"])[detail - 1][2] for detail in launches["detail"].tolist()]
    device = calls.device_index(timeline)[index]
    assert [calls.details[i].grid for i in calls.device_detail[device]] == grids
    call = calls.device_call[device]
    assert np.where(call < 0, 0, (calls.end_ns - calls.start_ns)[call] + 1).tolist() == launches["length"].tolist()
    named = [data["threads"][thread - 1] if thread else "" for thread in launches["thread"].tolist()]
    assert [calls.threads[calls.thread[i]] if i >= 0 else "" for i in call] == named


@pytest.mark.parametrize("path", RUNS)
def test_what_the_host_did_is_that_of_the_analysis(path: str) -> None:
    """The pieces of each idle gap add up to HostActivity.spent()."""
    run = open_run([path])
    drawn, host = chart(run), run.timelines[0].host
    data = track_data(run.timelines[0], None, drawn, ALL)["activity"]
    starts, labels = np.cumsum(unpack(data["delta"])), unpack(data["label"])
    ends = np.append(starts[1:], data["end"])
    found: dict[tuple[Any, ...], int] = {}
    for start, end, label in zip(starts.tolist(), ends.tolist(), labels.tolist(), strict=True):
        key = tuple(data["labels"][label])
        found[key] = found.get(key, 0) + end - start
    spent = host.spent(drawn.origin_ns + int(starts[0]), drawn.origin_ns + data["end"])

    assert {(label.cause, label.what, label.where): ns for label, ns in spent.items()} == found


def test_short_calls_are_left_out_and_counted() -> None:
    """Of the longest calls, as many as fit; the number and the length of the others are reported."""
    run = open_run([str(ROOT / "traces" / "ddp_cpu_2ranks")])
    drawn, calls = chart(run), calls_of(run)
    whole, part = (track_data(run.timelines[0], calls, drawn, most) for most in (ALL, 200))

    assert set(shown(part)) < set(shown(whole))
    assert len(shown(whole)) - part["calls"]["leftOut"] == len(shown(part)) <= 200
    longest = max(one[3] for one in set(shown(whole)) - set(shown(part)))
    assert longest < part["calls"]["shortest"] <= min(one[3] for one in shown(part))


def test_the_threads_that_launched_most_are_shown(tmp_path: Path) -> None:
    """The loop's thread first, then by number of launches; the number of others is reported."""
    file = training_step(KinetoFile(), 1, 0)
    for tid in range(30, 40):
        for kernel in range(tid - 29):
            file.kernel("k", 60 + kernel, 60.5 + kernel, 50 + kernel, tid=tid, stream=tid)
    run = open_run([str(file.write(tmp_path / "rank0.json"))])
    calls = calls_of(run)
    threads, others = threads_of(calls, calls.device_index(run.timelines[0]))

    assert ["main", "39", "38", "37", "36", "35"] == [calls.threads[thread] for thread in threads]
    assert (MOST_THREADS, len(calls.threads)) == (len(threads), len(threads) + others)
