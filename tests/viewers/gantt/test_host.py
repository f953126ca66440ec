"""Calls of a window: those that touch it, the longest ones, whole levels in order."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.core.intervals import Int64
from dptrace.load.open import open_run
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, CallKind, HostCalls, nesting
from dptrace.timeline.model import UNKNOWN
from dptrace.viewers.base.theme import CHROME
from dptrace.viewers.gantt import host as module
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.host import (
    KINDS,
    MOST_THREADS,
    HostAnswers,
    calls_window,
    host_data,
    host_notes,
    kind_looks,
    threads_of,
    track_data,
)
from dptrace.viewers.gantt.packing import unpack
from tests.support.color_vision import contrast
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real
from tests.support.synthetic import training_run

CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 25)), max_size=40)


def calls_of(events: list[tuple[int, int, int]]) -> HostCalls:
    """Build the calls (thread, start, length)."""
    ordered = sorted(events, key=lambda event: (event[0], event[1], -event[2]))
    thread, start, length = np.array(ordered, np.int64).reshape(-1, 3).T
    depth, parent = nesting(start, start + length, thread)
    return HostCalls(
        threads=("a", "b", "c"),
        start_ns=start,
        end_ns=start + length,
        kind=np.full(len(start), CallKind.OPERATOR, np.uint8),
        thread=thread.astype(np.int32),
        depth=depth,
        parent=parent,
    )


@pytest.mark.heavy
@given(CALLS, st.integers(0, 60), st.integers(1, 30), st.integers(0, 45))
def test_the_longest_calls_of_a_window_are_kept(
    events: list[tuple[int, int, int]], start: int, length: int, most: int
) -> None:
    """At most as many as allowed; none that is left out is as long as the limit; nothing outside, no other thread."""
    calls = calls_of(events)
    window = calls_window(calls, [0, 2], start, start + length, most)
    inside = {
        i
        for i in range(len(calls))
        if calls.thread[i] != 1 and calls.start_ns[i] < start + length and calls.end_ns[i] > start
    }
    kept = set(window.index.tolist())
    lengths = calls.end_ns - calls.start_ns

    assert kept <= inside
    assert len(kept) <= most
    assert len(inside) - len(kept) == window.left_out
    assert all(lengths[i] < window.shortest_ns for i in inside - kept)
    assert all(lengths[i] >= window.shortest_ns for i in kept)
    assert (window.shortest_ns == 0) == (len(inside) <= most)


@pytest.mark.heavy
@given(CALLS)
def test_levels_hold_their_calls_in_order(events: list[tuple[int, int, int]]) -> None:
    """Each level is of one thread and depth, sorted by start."""
    calls = calls_of(events)
    window, place = calls_window(calls, [0, 1, 2], 0, 100, 100), 0
    for level in window.levels:
        index = window.index[place : place + level.count]
        place += level.count
        assert {(level.thread, level.depth)} == set(zip(calls.thread[index], calls.depth[index], strict=True))
        assert (np.diff(calls.start_ns[index]) >= 0).all()

    assert len(window.index) == place


def test_parents_of_kept_calls_are_kept() -> None:
    """Nested calls are shorter than those around them, so that leaving out the short ones keeps the nesting."""
    calls = calls_of([(0, 0, 50), (0, 5, 20), (0, 6, 4), (0, 30, 10), (0, 31, 3)])
    kept = calls_window(calls, [0], 0, 100, 3).index

    assert {0, 1, 3} == set(kept.tolist())
    assert {-1, 0} == set(calls.parent[kept].tolist())


# The host rows of a page: within its size, with a note on what is left out; and the answers of a server.


@pytest.fixture(scope="module")
def run() -> Run:
    return open_run([str(ROOT / "traces" / "ddp_cpu_2ranks")])


def test_a_small_run_is_whole(run: Run) -> None:
    """Every rank has its calls and launches, and there is nothing to note."""
    data = host_data(run, chart(run))

    assert ["0", "1"] == sorted(data["tracks"])
    assert all("launches" in one and one["calls"]["leftOut"] == 0 for one in data["tracks"].values())
    assert [] == host_notes(run, data)


def test_what_does_not_fit_is_left_out_with_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks share the page's room; the note has the numbers."""
    monkeypatch.setattr(module, "MOST_CALLS", 600)
    data = host_data(run, chart(run))
    calls = [one["calls"] for one in data["tracks"].values()]
    left_out, total = sum(one["leftOut"] for one in calls), sum(one["total"] for one in calls)
    [note] = host_notes(run, data)

    assert all(one["total"] - one["leftOut"] <= 300 for one in calls)
    assert f"{left_out:,} of {total:,}" in note


def test_a_large_page_has_no_launches_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a page of a million kernels keeps its size."""
    monkeypatch.setattr(module, "LARGE", 100)
    data = host_data(run, chart(run))

    assert not any("launches" in one for one in data["tracks"].values())
    assert any("--serve" in note for note in host_notes(run, data))


def test_of_many_ranks_the_most_notable_have_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most as many as allowed; the note names them."""
    monkeypatch.setattr(module, "MOST_TRACKS", 1)
    data = host_data(run, chart(run))
    [track] = data["tracks"]

    assert any(f"rank {track}" in note for note in host_notes(run, data))


def test_a_run_built_in_memory_has_no_calls() -> None:
    """There is no file to read them from: the data has what the analysis knows, and no note claims otherwise."""
    run = training_run(200, ranks=2)
    data = host_data(run, chart(run))

    assert [[], []] == [one["threads"] for one in data["tracks"].values()]
    assert [] == host_notes(run, data)


def test_a_server_answers_with_a_gpu_or_a_window(run: Run) -> None:
    """The whole GPU as a page in one file has it; a window with the calls that touch it only."""
    drawn = chart(run)
    answers = HostAnswers(run)
    calls = run.read_again(run.timelines[1], HOST_CALLS)
    expected = track_data(run.timelines[1], calls, drawn.axes[1], module.MOST_SERVED)
    whole, part = answers("1"), answers(f"1/0/{drawn.end_ns // 10}")

    assert whole is not None
    assert part is not None
    assert json.loads(json.dumps(expected)) == json.loads(whole)
    assert 0 < json.loads(part)["calls"]["total"] < expected["calls"]["total"]


def test_a_server_finds_calls_by_their_names(run: Run) -> None:
    """Ignoring case, each name with its number and time, most time first, and the place of its longest call."""
    axis, calls = chart(run).axes[1], run.read_again(run.timelines[1], HOST_CALLS)
    assert calls is not None
    rows = json.loads(HostAnswers(run)("1/find/ATEN%3A%3A") or b"")
    start, length = axis.since(calls.start_ns), calls.end_ns - calls.start_ns

    assert len(rows) > 3
    assert sorted((row[2] for row in rows), reverse=True) == [row[2] for row in rows]
    for name, count, time, _, flame, depth, begin, ns in rows:
        mine = np.array([calls.names[number] == name for number in calls.name]) & axis.inside(
            calls.start_ns, calls.end_ns
        )
        assert (int(mine.sum()), int(length[mine].sum()), int(length[mine].max())) == (count, time, ns), name
        (index,) = np.flatnonzero(mine & (start == begin) & (length == ns))
        assert (flame, depth) == (calls.flame[index], calls.depth[index])


def test_a_server_refuses_other_requests(run: Run) -> None:
    """Nothing is computed for a request that is no GPU or window."""
    for request_ in ("", "2", "-1", "x", "0/1", "0/a/b", "0/1/2/3", "0/1/2/find/x", "9/find/x", "../0", "9" * 5000):
        assert HostAnswers(run)(request_) is None, request_


def test_a_file_that_is_gone_is_answered_without_calls(run: Run, tmp_path: Path) -> None:
    """A window of it, too."""
    answers = HostAnswers(replace(run, rereader=lambda path, reading: None))

    for request in ("0", "0/1/2"):
        answer = answers(request)
        assert answer is not None
        assert [] == json.loads(answer)["threads"]


# The colors of host events: readable text, and visible on the page, light and dark.


def test_contrast_suffices() -> None:
    """Text on a call at least 4.5:1, a call on the page at least 3:1; each kind has a label and a color of its own."""
    for kind in CallKind:
        look = kind_looks()[kind]
        for name, colors in (("light", look), ("dark", look["dark"])):
            assert contrast(colors["color"], colors["ink"]) >= 4.5, name
            assert contrast(colors["color"], CHROME[name]["paper"]) >= 3, name
    looks = kind_looks()
    assert len(CallKind) == len({look["label"] for look in looks}) == len({look["color"] for look in looks})


# The data of one GPU's host rows: every call and every launch as recorded, what the host did as in the analysis.


ALL = 10**9


def texts(packed: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def sums(steps: Int64) -> Int64:
    """Undo differences: even numbers are increases, odd ones the others."""
    values: Int64 = np.cumsum(np.where(steps % 2, -(steps + 1) // 2, steps // 2))
    return values


def track_data_calls_of(run: Run, track: int = 0) -> HostCalls:
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


@pytest.mark.heavy
@pytest.mark.parametrize("path", RUNS)
def test_every_call_is_in_the_data(path: str) -> None:
    """With its thread, depth, times, kind, name and shapes, if all calls fit."""
    run = open_run([path])
    drawn, calls = chart(run), track_data_calls_of(run)
    data = track_data(run.timelines[0], calls, drawn.axes[0], ALL)
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


def test_what_launched_a_drawn_kernel_before_the_chart_is_in_the_data(tmp_path: Path) -> None:
    """With the operator, the annotation and the module around it; what launched nothing drawn is left out."""
    file = KinetoFile()
    file.label("ProfilerStep#1", 0, 60).op("aten::mm", 10, 30).kernel("gemm", 40, 300, 20)
    file.label("ProfilerStep#2", 60, 120).label("forward", 62, 90).op("aten::linear", 65, 85).op("aten::other", 86, 89)
    file.kernel("gemm", 300, 320, 70)
    run = open_run([str(file.write(tmp_path / "rank0.json"))]).select(steps=2)
    calls, drawn = track_data_calls_of(run), chart(run)
    found = shown(track_data(run.timelines[0], calls, drawn.axes[0], ALL))

    assert ["ProfilerStep#2", "aten::linear", "cudaLaunchKernel", "forward"] == sorted(one[5] for one in found)
    assert all(one[2] < 0 for one in found)


@pytest.mark.parametrize("path", RUNS)
def test_launches_are_those_of_the_timeline(path: str) -> None:
    """Start and length of the launching call, id and grid of each interval, in the order of the lanes."""
    run = open_run([path])
    drawn, calls, timeline = chart(run), track_data_calls_of(run), run.timelines[0]
    data = track_data(timeline, calls, drawn.axes[0], ALL)
    launches = {key: unpack(column) for key, column in data["launches"].items()}
    index = np.concatenate([drawn.axes[0].drawn(timeline)[kind] for kind in KINDS])
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
    data = track_data(run.timelines[0], None, drawn.axes[0], ALL)["activity"]
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
    drawn, calls = chart(run), track_data_calls_of(run)
    whole, part = (track_data(run.timelines[0], calls, drawn.axes[0], most) for most in (ALL, 200))

    assert set(shown(part)) < set(shown(whole))
    assert len(shown(whole)) - part["calls"]["leftOut"] == len(shown(part)) <= 200
    longest = max(one[3] for one in set(shown(whole)) - set(shown(part)))
    assert longest < part["calls"]["shortest"] <= min(one[3] for one in shown(part))


def test_the_threads_that_launched_most_are_shown(tmp_path: Path) -> None:
    """The loop's thread first, then by number of launches."""
    file = training_step(KinetoFile(), 1, 0)
    for tid in range(30, 40):
        for kernel in range(tid - 29):
            file.kernel("k", 60 + kernel, 60.5 + kernel, 50 + kernel, tid=tid, stream=tid)
    run = open_run([str(file.write(tmp_path / "rank0.json"))])
    calls = track_data_calls_of(run)
    threads = threads_of(calls, calls.device_index(run.timelines[0]))

    assert ["main", "39", "38", "37", "36", "35"] == [calls.threads[thread] for thread in threads]
    assert MOST_THREADS == len(threads) < len(calls.threads)
