"""The stopwatch of steps."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.aligned import Stopwatch


def test_a_lap_is_as_long_as_what_happens_in_it() -> None:
    """At least the time slept, and whole nanoseconds; what lies between laps is not counted."""
    watch = Stopwatch()
    watch.begin()
    time.sleep(0.02)
    watch.end()
    time.sleep(0.05)
    watch.begin()
    watch.end()

    first, second = watch.laps()
    assert 20_000_000 <= first
    assert 0 <= second < first
