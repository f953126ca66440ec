"""Host time that is taken out of a run."""

from __future__ import annotations

import numpy as np

import dptrace
from dptrace.core.intervals import EMPTY
from dptrace.replay.gains.host_time import LevelRanks, Segment, host_time
from dptrace.replay.gains.measure import Measurer


def gain_of(run: dptrace.Run, change: object) -> int | None:
    return Measurer(run.replay).measure(change).gain.ns  # type: ignore[arg-type]


def test_time_of_one_cause_goes(hidden: dptrace.Run) -> None:
    """Without the DataLoader's 5 ms rank 0 is early, which is no gain; with rank 1 5 ms faster, both are."""
    model = hidden.replay.model
    loading = host_time(model, "no loading", lambda timeline: timeline.data_loading)
    assert loading is not None
    lags = loading.apply(model).graph.edge.lag_ns - model.graph.edge.lag_ns

    assert 4 * -5_000_000 == int(lags.sum())
    assert 0 == gain_of(hidden, loading)


def test_a_cause_that_no_host_had_is_no_change(hidden: dptrace.Run) -> None:
    """Nothing can be taken out where nothing is."""
    assert host_time(hidden.replay.model, "nothing", lambda timeline: EMPTY) is None


def segment_of(run: dptrace.Run, process: int, late_ns: int, on_device: bool) -> Segment:
    """Return the second step of a rank as a segment."""
    marks = run.replay.model.processes[process].mark_tasks
    start, end = run.replay.model.graph.start_ns[marks[1:3]].tolist()
    return Segment(process, start, end, late_ns, on_device)


def test_a_slow_device_is_level_in_its_segment(late: dptrace.Run) -> None:
    """Kernels that were launched in the segment give up what the rank lost, the others stay."""
    model = late.replay.model
    change = LevelRanks("level", (segment_of(late, 1, 5_000_000, True),))
    less = model.graph.duration_ns - change.apply(model).graph.duration_ns

    assert 4_999_990 <= int(less.sum()) <= 5_000_000
    assert 5_000_000 / 4 == np.round(gain_of(late, change) or 0, -2)


def test_a_late_host_gives_up_its_longest_pieces(hidden: dptrace.Run) -> None:
    """Of a pause of 5 ms within the segment, as much goes as the rank lost; a rank that is not late gains nothing."""
    change = LevelRanks("level", (segment_of(hidden, 0, 3_000_000, False),))
    lags = change.apply(hidden.replay.model).graph.edge.lag_ns - hidden.replay.model.graph.edge.lag_ns

    assert -3_000_000 == int(lags.sum())
    assert 0 == gain_of(hidden, change)
