"""The time that links need for the messages of a simulation."""

from __future__ import annotations

from dptrace.simulate.explanation import Message, Settings, Step, Time, critical_time
from tests.support.explanations import ONE_GB


def message(source: int, target: int, between_nodes: bool = False) -> Message:
    return Message(source, target, 0, 0, "x", (1.0,), bytes=1e6, between_nodes=between_nodes)


def test_the_busiest_link_of_each_step_counts() -> None:
    """A rank that sends two messages needs the time of both; messages of different ranks travel at the same time."""
    fan_out = (message(0, 1), message(0, 2), message(1, 2))
    shift = (message(0, 1, between_nodes=True), message(1, 2, between_nodes=True))
    steps = [Step(number, "", "", messages, (), ()) for number, messages in enumerate((fan_out, shift), 1)]

    assert (Time(2, 2e6), Time(1, 1e6)) == critical_time(steps, Settings(3, 8e6, ONE_GB, ONE_GB))
