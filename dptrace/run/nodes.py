"""The nodes of a run: their ranks, which nodes hold others up, and the mean step of each."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from dptrace.core.units import ranks_text
from dptrace.run.notable_ranks import HELD_UP, notable_ranks
from dptrace.run.run import Run


class Node(msgspec.Struct, frozen=True):
    """A node of a run, and its GPUs that have steps."""

    name: str
    indices: tuple[int, ...]
    """Indices into the run's timelines."""
    is_late: bool = False
    """Whether ranks of other nodes, or of its own, wait for one of its ranks during a notable part of the run."""

    def label(self, run: Run) -> str:
        """Return its name with its ranks that have steps: ``node-001, ranks 8–15``."""
        return f"{self.name}, {self._ranks(run)}"

    def numbers(self, run: Run) -> str:
        """Return these ranks alone: ``8–15``."""
        return self._ranks(run).partition(" ")[2]

    def _ranks(self, run: Run) -> str:
        return ranks_text({run.timelines[index].rank for index in self.indices})

    def mean_step(self, run: Run) -> dict[str, float | None]:
        """Return the figures of a step in ns, means over its GPUs; None where one of them does not know a figure."""
        both = [{**run.splits[index].mean(), **run.cross_rank.exposed_waits[index].mean()} for index in self.indices]
        columns = {name: [figures[name] for figures in both] for name in both[0]}
        return {
            name: None if None in values else sum(value or 0 for value in values) / len(values)
            for name, values in columns.items()
        }

    def least_waiting(self, run: Run) -> int | None:
        """Return the rank of the GPU that waits least; None where that is not known, or none waits."""
        waits = [(run.cross_rank.exposed_waits[index].mean()["exposed_wait_ns"], index) for index in self.indices]
        known = [(wait, index) for wait, index in waits if wait is not None]
        if len(known) < len(waits) or not any(wait for wait, _ in known):
            return None
        return run.timelines[min(known)[1]].rank


def nodes_first(run: Run) -> tuple[Node, ...]:
    """Return the nodes, those with a rank that others wait for first; none where there is one or none has two ranks."""
    found = defaultdict[str, list[int]](list)
    for index, (device, node) in enumerate(zip(run.devices, run.nodes, strict=True)):
        if len(device.timeline.windows):
            found[node or "no node known"].append(index)
    if len(found) < 2 or not ranks_by_node(run):
        return ()
    late = [run.nodes[one.index] for one in notable_ranks(run) if HELD_UP in one.why]
    order = dict.fromkeys([*late, *found])
    return tuple(Node(node, tuple(found[node]), node in late) for node in order)


def ranks_by_node(run: Run) -> dict[str, list[int]]:
    """Return the recorded ranks of each node, in their order; none where nodes are not known, or have one rank each."""
    found = defaultdict[str, list[int]](list)
    for timeline, node in zip(run.timelines, run.nodes, strict=True):
        if node and timeline.rank not in found[node]:
            found[node].append(timeline.rank)
    return dict(found) if any(len(ranks) > 1 for ranks in found.values()) else {}
