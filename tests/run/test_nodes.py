"""The nodes of a run: which come first, their mean step, and the rank that waits least."""

from __future__ import annotations

from dptrace.run.nodes import nodes_first
from tests.support.jobs import MS, late_run, on_nodes


def test_the_node_that_others_wait_for_is_first() -> None:
    """With its ranks; the others keep their order."""
    run = on_nodes(late_run(30, 30, 30, 30, 70, 60), 2)
    found = nodes_first(run)

    assert ["node-2, ranks 4, 5", "node-0, ranks 0, 1", "node-1, ranks 2, 3"] == [node.label(run) for node in found]
    assert [True, False, False] == [node.is_late for node in found]


def test_a_node_has_the_mean_of_its_ranks() -> None:
    """Computing 70 and 60 ms is 65; the rank that arrives last waits least."""
    run = on_nodes(late_run(30, 30, 30, 30, 70, 60), 2)
    late, other, _ = nodes_first(run)

    assert (65 * MS, 5 * MS) == tuple(late.mean_step(run)[name] for name in ("forward_ns", "exposed_wait_ns"))
    assert (30 * MS, 40 * MS) == tuple(other.mean_step(run)[name] for name in ("forward_ns", "exposed_wait_ns"))
    assert 4 == late.least_waiting(run)


def test_what_a_recording_does_not_say_of_nodes_is_not_made_up() -> None:
    """One node, a rank on each, or no host: there are no nodes. Where waiting is unknown, nobody waits least."""
    run = late_run(30, 70, 30, 30)
    alone = on_nodes(late_run(30, 70, 30, 30, size=5), 2)

    assert () == nodes_first(run) == nodes_first(on_nodes(run, 4)) == nodes_first(on_nodes(run, 1))
    assert [None, None] == [node.least_waiting(alone) for node in nodes_first(alone)]
