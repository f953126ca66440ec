"""How much longer a task could take for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.replay.graph.model import Graph
from dptrace.replay.paths.slack import FREE, slack_of
from dptrace.replay.simulation.simulate import Schedule
from tests.support.graphs import graphs


@pytest.mark.heavy
@given(graphs(), st.data())
def test_slack_is_what_a_task_can_take_longer(graph: Graph, data: st.DataObject) -> None:
    """By replay: longer by its slack, a task does not delay the end; longer by one more ns, it does."""
    schedule = Schedule(graph)
    times = schedule.run()
    end, task = int(times.end_ns.max()), data.draw(st.integers(0, len(graph) - 1))
    every = np.arange(len(graph))

    slack = int(slack_of(graph, times, end, every)[task])

    for more, delayed in ((slack, 0), (slack + 1, 1)):
        longer = graph.duration_ns.copy()
        longer[task] += more
        assert delayed == schedule.run(longer).end_ns.max() - end


def test_what_is_not_waited_for_is_free() -> None:
    """A task that no end depends on has no limit."""
    from dptrace.core.intervals import EMPTY
    from dptrace.replay.graph.model import Edge
    from tests.support.graphs import graph_of

    none = EMPTY[0]
    graph = graph_of(
        np.array([0, 0]), np.array([5, 9]), Edge(none, none, none, none.astype(bool), none.astype(np.uint8))
    )

    slack = slack_of(graph, Schedule(graph).run(), 9, np.array([1]))

    assert 0 == slack[1]
    assert slack[0] > FREE >> 1
