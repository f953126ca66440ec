"""Host time that is taken out of a run."""

from __future__ import annotations

import dptrace
from dptrace.core.intervals import EMPTY
from dptrace.replay.gains.host_time import host_time
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
