"""What the host did at each instant, from the events of the threads that launch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_events import Pauses, Work, awaited
from dptrace.timeline.model import HostActivity, HostCause, HostLabel
from tests.support.kineto_files import KinetoFile
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real

MS = 1_000_000


def activity(path: Path) -> HostActivity:
    (timeline,) = build_timelines(read_trace(path), 0)
    return timeline.host


def total(host: HostActivity) -> dict[HostLabel, int]:
    return host.spent(int(host.start_ns[0]), host.end_ns)


def spent(host: HostActivity, cause: HostCause) -> dict[str, int]:
    """Return the ns of a cause by what the host did."""
    found: dict[str, int] = {}
    for label, ns in total(host).items():
        if label.cause == cause:
            found[label.what] = found.get(label.what, 0) + ns
    return found


def near(ns: int, ms: float) -> bool:
    return abs(ns - ms * MS) < 0.1 * ms * MS


def test_each_planted_activity_has_its_cause_and_name(tmp_path: Path) -> None:
    """An allocation, a loader, Python code, an operator and a pause, of 2 to 6 ms in one step of one rank each."""
    kinds = ("allocator", "loader", "python", "operator", "pause")
    plants = [Plant(0, kind, 2 + k, steps=[1], layer=k) for k, kind in enumerate(kinds)]
    host = activity(planted_job(tmp_path, plants, ranks=2) / "rank0.json")

    assert near(spent(host, HostCause.ALLOCATOR)["cudaMalloc"], 2)
    (loading,) = spent(host, HostCause.DATA_LOADING).values()
    assert near(loading, 3 + 4 * 0.08)
    assert near(spent(host, HostCause.PYTHON)["## layer 2 ##"], 4)
    assert spent(host, HostCause.OPERATOR)["aten::linear"] > 5 * MS
    assert spent(host, HostCause.NOTHING_RECORDED)[""] > 6 * MS
    # Pieces have no gap: the times of all labels add up, whatever part is asked for.
    first = int(host.start_ns[0])
    for since, until in ((first - 10, first + 5), (first + 123_456, first + 2 * MS), (first, host.end_ns + 50)):
        assert until - since == sum(host.spent(since, until).values())


def test_an_annotation_around_each_step_changes_nothing(tmp_path: Path) -> None:
    """It says no more than the step; one of half of it is a place in which Python ran."""
    path = planted_job(tmp_path, [Plant(0, "pause", 5, steps=[1], layer=4)], ranks=2) / "rank0.json"
    plain, content = activity(path), json.loads(path.read_text())
    steps = [event for event in content["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")]
    answers = []
    for share in (0.998, 0.5):
        notes = [
            event | {"name": "mine", "ts": event["ts"] + 0.001 * event["dur"], "dur": share * event["dur"]}
            for event in steps
        ]
        path.write_text(json.dumps(content | {"traceEvents": content["traceEvents"] + notes}))
        answers.append(activity(path))

    assert total(plain) == total(answers[0])
    assert "mine" in spent(answers[1], HostCause.PYTHON)


def test_waiting_for_another_rank_is_passive(tmp_path: Path) -> None:
    """A synchronizing call while the device waits in a collective is not what keeps its own host busy."""
    folder = planted_job(tmp_path, [Plant(1, "pause", 5, layer=7)], ranks=2)

    assert sum(spent(activity(folder / "rank0.json"), HostCause.PASSIVE).values()) > 10 * MS
    assert sum(spent(activity(folder / "rank1.json"), HostCause.PASSIVE).values()) < MS


def names(labels: Iterable[HostLabel]) -> set[str]:
    return {label.what for label in labels}


def test_long_python_functions_name_what_the_host_did(tmp_path: Path) -> None:
    """With stacks, the function that slept is named; functions of a few microseconds are dropped."""
    path = planted_job(tmp_path, [Plant(0, "pause", 4, steps=[1], layer=4)], ranks=1) / "rank0.json"
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    step = next(event for event in events if event["name"] == "ProfilerStep#1")
    thread = {"ph": "X", "cat": "python_function", "pid": step["pid"], "tid": step["tid"], "args": {}}
    events.append(thread | {"name": "train.py(7): loop", "ts": step["ts"] + 1, "dur": step["dur"] - 2})
    annotation = [event for event in events if event["name"] == "## layer 4 ##"][1]
    events.append(thread | {"name": "gc.py(3): collect", "ts": annotation["ts"] - 4000, "dur": 3990})
    events.append(thread | {"name": "short.py(1): f", "ts": annotation["ts"] - 3000, "dur": 5})
    path.write_text(json.dumps(content))

    host = activity(path)

    assert near(spent(host, HostCause.PYTHON)["gc.py(3): collect"], 4)
    assert "short.py(1): f" not in read_trace(path).names
    assert "gc.py(3): collect" in names(host.labels)


@pytest.mark.heavy
@needs_real_traces
def test_the_pieces_of_a_real_recording_are_few() -> None:
    """A rank with 216 thousand events has at most a hundred thousand pieces, and its allocations are named."""
    (folder,) = (Path(real("perparam_v100_rank1of2")),)
    (path,) = [path for path in folder.iterdir() if "json" in path.name]
    host = activity(path)

    assert 1000 < len(host.start_ns) < 100_000
    assert spent(host, HostCause.OPERATOR)["CompiledFunctionBackward"] > 100 * MS


def test_events_too_short_for_pieces_are_no_activity(tmp_path: Path) -> None:
    """A recording of instants on a CPU is read; its host did nothing that can be compared."""
    instant = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 0, "args": {}}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [instant | {"name": "aten::add", "ts": 10 + k} for k in range(3)]}))

    host = activity(path)

    assert 0 == len(host.labels)
    assert {HostLabel(HostCause.NOTHING_RECORDED): 5} == host.spent(10, 15)
    assert 0 == len(host.intervals(*HostCause)[0])


def test_a_thread_that_sends_is_part_of_the_program(tmp_path: Path) -> None:
    """Gloo sends messages on the calling thread, whose pauses and operators are the host's."""
    file = KinetoFile()
    file.label("ProfilerStep#0", 0, 50_000)
    file.op("aten::linear", 100, 2_100)
    file.op("c10d::send", 2_200, 2_300)
    file.label("gloo:send", 2_290, 2_400)
    file.op("aten::relu", 40_000, 41_000)
    host = activity(file.write(tmp_path / "rank0.json"))

    assert {"aten::linear", "aten::relu"} <= {label.what for label in host.labels}


# When a host that shows no event was blocked.

STEPS = np.arange(6) * 100 * MS
JITTER = np.array([0, 3, -2, 5, -4, 1]) * MS


def pauses(length_ns: np.ndarray) -> Pauses:
    """Return a pause in each of six steps, all in one place of the program."""
    return Pauses(STEPS, STEPS + length_ns, np.zeros(6, np.bool_), np.zeros(6, np.int64))


def collectives(end_ns: np.ndarray) -> Work:
    """Return a collective of each step that was launched right before the pause and ends at these times after it."""
    return Work(STEPS - 10_000, STEPS + end_ns, STEPS - 20_000, np.zeros(6, np.int64), np.zeros(6, np.bool_))


@pytest.mark.parametrize(("count", "sleeps"), [(6, True), (3, True), (2, False)])
def test_a_pause_of_constant_length_is_a_sleep(count: int, sleeps: bool) -> None:
    """Although a collective ends in each; a wait goes on a constant time after it. Two pauses can't tell."""
    end = 40 * MS + JITTER
    asleep, waiting = pauses(np.full(6, 60 * MS)), pauses(end + 100_000)
    since, until = (
        np.concatenate([getattr(one, name)[:count] for one in (asleep, waiting)]) for name in ("since_ns", "until_ns")
    )
    # Each place in the program is judged on its own: here a sleep, there a wait, for the same collectives.
    both = Pauses(since, until, np.zeros(2 * count, np.bool_), np.repeat(np.arange(2), count))

    found = awaited(both, collectives(end), on_cpu=True)

    assert [not sleeps] * count == (found[:count] >= 0).tolist()
    assert [*range(count)] == found[count:].tolist()


@pytest.mark.parametrize(("late_ms", "waits"), [((3, 9), True), ((3, 60), False), ((3, 5, 9, 12), False)])
def test_an_end_recorded_late_is_known_by_the_other_steps(late_ms: tuple[int, ...], waits: bool) -> None:
    """A pause that ends well before its collective is a wait for it where most are waits, unless it ends far later."""
    late = np.zeros(6, np.int64)
    late[: len(late_ms)] = np.array(late_ms) * MS
    end = 40 * MS + JITTER

    found = awaited(pauses(end - late + 100_000), collectives(end), on_cpu=True)

    assert waits == ([*range(6)] == found.tolist())
