"""Run the tasks of a graph: each starts as soon as all that it waits for has happened.

Most times are sums: see :mod:`dptrace.replay.graph.sums`. Only joins, which wait for anything else, are visited one
after the other. Of a run that differs from an earlier one in a few processes, only the sums of these are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, repeated, unique
from dptrace.replay.graph.model import Graph
from dptrace.replay.graph.sums import chains_of, followers_of, parts_of

_LEAST = np.iinfo(np.int64).min
_MIN_RANKS, _MIN_WIDTH = 32, 16
"""From so many ranks on, and so many joins to a level, joins are visited level by level instead of one by one."""
_MOST_KEPT, _MOST_KEPT_TASKS = 5, 4_000_000
"""Runs that others are computed from: as recorded, without inferred waits, of hosts alone, of devices alone, and the
last one, since changes are made one after the other."""


class Times(msgspec.Struct, frozen=True):
    """When each task of a graph starts and ends, in ns on the shared clock."""

    start_ns: Int64
    end_ns: Int64


# Ways: what something waits for, as times after the starts of joins.


class Ways(msgspec.Struct, frozen=True, eq=False):
    """Groups of tasks of which the latest start or end, plus a lag, is wanted: what each join waits for, for example.

    A task in a chain is two ways, from the chain's head and from its host. Of all ways of a part from one join to one
    group, only the longest counts: a pair. So are equal pairs of several parts.
    """

    key: Int64
    """Of each way: the task that it begins with, or of its end, that and the number of all tasks."""
    lag: Int64
    """Index of each way's lag."""
    place: Int64
    """Of the task in a chain, or -1."""
    by_host: NDArray[np.bool_]
    bounds: Int64
    """First way of each part."""
    pair: Int64
    """First way of each pair, and their number."""
    pair_bounds: Int64
    """First pair of each part."""
    merged: Int64
    """Pairs, sorted by group and join; and the first of each group and join."""
    first: Int64
    join: Int64
    """Place of that join among all."""
    sizes: Int64
    """Number of joins of each group."""
    of_hub: tuple[Int64, Int64, Int64]
    """The ways that depend on the durations of transfers: these, the first of each pair, and these pairs."""

    def latest(self, starts: Int64, since: Int64) -> Int64:
        """Return the latest of each group, the least integer for one without tasks.

        Args:
            starts: of the joins.
            since: of the pairs.
        """
        result = np.full(len(self.sizes), _LEAST)
        filled = np.flatnonzero(self.sizes)
        if len(filled):
            came = starts[self.join] + self.longest(since)
            result[filled] = np.maximum.reduceat(came, (np.cumsum(self.sizes) - self.sizes)[filled])
        return result

    def longest(self, since: Int64) -> Int64:
        """Return the longest of the pairs of each group and join."""
        return np.maximum.reduceat(since[self.merged], self.first) if len(self.first) else self.first


class _Table(msgspec.Struct, frozen=True):
    """The tasks of groups: entries of which each has a part, a group, a task and what it is waited for with."""

    part: Int64
    group: Int64
    task: Int64
    from_end: NDArray[np.bool_]
    lag: Int64


class Schedule:
    """A graph prepared for many runs, with other durations and lags of the same tasks and edges."""

    def __init__(self, graph: Graph, *, chained: bool = True) -> None:
        """Prepare it.

        Args:
            chained: with chains, which have no times where edges of theirs are left out.
        """
        self.graph = graph
        self.parts = parts_of(graph)
        self.followers = followers_of(graph, self.parts)
        self.root = self.followers.root
        is_join = np.diff(graph.first) > 0
        is_join[self.followers.task] = False
        joins = graph.order[is_join[graph.order]]
        self.chains, head, host = chains_of(graph, joins if chained else joins[:0], self.root, self.parts)
        is_join[self.chains.task] = False
        joins = joins[is_join[joins]]
        first = self.chains.first[:-1]
        follows, own = (self.parts.part[task[first]] for task in (self.chains.key[0] % len(graph), self.chains.task))
        self.begins_in_hub: NDArray[np.bool_] = (follows == self.parts.hub) & (own != follows)
        """Which chains of processes wait for a transfer first."""
        self._number(joins, head, host)
        self.joins = self._ways_of(joins)
        """What the joins wait for."""
        self._levels: list[int] = []
        if int(graph.process.max(initial=0)) + 1 >= _MIN_RANKS and (levels := _levels(self.joins)):
            joins = joins[np.concatenate(levels)]
            self._number(joins, head, host)
            self.joins = self._ways_of(joins)
            self._levels = np.cumsum([0, *map(len, levels)]).tolist()
        self.asked: Any = None
        """What :mod:`dptrace.replay.simulation` prepared to ask of each run."""
        self._known = list[Simulation]()

    def _number(self, joins: Int64, head: Int64, host: Int64) -> None:
        """Number the tasks that others start after: the joins in order, then those that wait for nothing."""
        chained = self.chains.task
        alone = np.ones(len(self.graph), np.bool_)
        alone[self.followers.task] = alone[chained] = alone[joins] = False
        self.known = np.append(joins, np.flatnonzero(alone))
        """The joins, in the order in which they are visited, and all tasks that wait for nothing."""
        self.place = np.zeros(len(self.graph), np.int64)
        """Of each task that is no follower: its place among these, or -1 - its place in the chains."""
        self.place[self.known] = np.arange(len(self.known))
        self.place[chained] = -1 - np.arange(len(chained))
        self.chains = replace(self.chains, head=self.place[head], host=self.place[host])

    def _ways_of(self, joins: Int64) -> Ways:
        edge = self.graph.edge
        which, nth = repeated(np.diff(self.graph.first)[joins])
        own = self.graph.first[joins[which]] + nth
        source = edge.src[own]
        # An edge between a process and the hub is the process's.
        part = self.parts.part[source]
        part = np.where(part == self.parts.hub, self.parts.part[joins[which]], part)
        return self._ways(_Table(part, which, source, edge.from_end[own], own), len(joins))

    @cached_property
    def _plain(self) -> Schedule:
        """The same graph without chains."""
        return Schedule(self.graph, chained=False)

    def ways(self, group: Int64, groups: int, task: Int64, lag: Int64) -> Ways:
        """Prepare a question for the latest end in groups of tasks; see :meth:`Simulation.latest`.

        Args:
            group: of each task; the tasks of one group belong to one process, or are transfers.
            task: all of them.
            lag: index of what is added to the end of each.
        """
        part = self.parts.part[task]
        of_group = np.full(groups, max(0, self.parts.hub))
        own = part != self.parts.hub
        of_group[group[own]] = part[own]
        return self._ways(_Table(of_group[group], group, task, np.ones(len(task), np.bool_), lag), groups)

    def _ways(self, table: _Table, groups: int) -> Ways:
        place = self.place[self.root[table.task]]
        inside = np.flatnonzero(place < 0)
        chain = self.chains.chain[-1 - place[inside]]
        # A task of a chain counts twice: from the chain's head, and from its host.
        row = np.append(np.arange(len(place)), inside)
        join = np.append(place, self.chains.host[chain])
        join[inside] = self.chains.head[chain]
        order = np.lexsort((join, table.group[row], table.part[row]))
        row, join = row[order], join[order]
        part, group = table.part[row], table.group[row]
        pair = _changes(part, group, join)
        of_part, of_group, of_join = part[pair], group[pair], join[pair]
        merged = np.lexsort((of_join, of_group))
        first = _changes(of_group[merged], of_join[merged])
        every = np.arange(len(self.parts) + 1)
        in_hub = self.parts.part[table.task] == self.parts.hub
        in_hub[inside] |= self.begins_in_hub[chain]
        hub_pairs = np.flatnonzero(np.logical_or.reduceat(in_hub[row], pair)) if len(pair) else pair
        of_pair, nth = repeated(np.diff(pair, append=len(row))[hub_pairs])
        return Ways(
            key=(table.task + len(self.graph) * table.from_end)[row],
            lag=table.lag[row],
            place=np.where(place < 0, -1 - place, -1)[row],
            by_host=order >= len(place),
            bounds=np.searchsorted(part, every),
            pair=pair,
            pair_bounds=np.searchsorted(of_part, every),
            merged=merged,
            first=first,
            join=of_join[merged][first],
            sizes=np.bincount(of_group[merged][first], minlength=groups),
            of_hub=(pair[hub_pairs[of_pair]] + nth, np.flatnonzero(nth == 0), hub_pairs),
        )

    def run(self, duration_ns: Int64, lag_ns: Int64) -> Simulation:
        """Simulate with these durations of the tasks and lags of the edges."""
        changed, base = self._nearest(duration_ns, lag_ns)
        if base is not None and not changed:
            return base
        found = None if base is None else Simulation.of(self, duration_ns, lag_ns, base, changed)
        if found is not None:
            return found
        found = Simulation.of(self, duration_ns, lag_ns)
        if found is None:
            return self._plain.run(duration_ns, lag_ns)
        room = min(_MOST_KEPT, _MOST_KEPT_TASKS // len(self.graph))
        if room == _MOST_KEPT:
            del self._known[_MOST_KEPT - 1 :]
        if len(self._known) < room:
            self._known.append(found)
        return found

    def _nearest(self, duration_ns: Int64, lag_ns: Int64) -> tuple[list[int], Simulation | None]:
        """Return the run before that differs in the fewest processes, and in which; None where all differ in many.

        Of one process, only an equal run saves anything.
        """
        most = len(self.parts) // 2 if len(self.parts) > 2 else 0
        found: tuple[list[int], Simulation | None] = [], None
        for base in self._known:
            changed = self._changed(base, duration_ns, lag_ns, most)
            if changed is not None:
                most, found = len(changed) - 1, (changed, base)
            if changed == []:
                break
        return found

    def _changed(self, base: Simulation, duration_ns: Int64, lag_ns: Int64, most: int) -> list[int] | None:
        """Return the parts with other durations or lags than in a run before, the hub first; None if too many."""
        hub, changed = self.parts.hub, list[int]()
        bounds = [*zip(pairwise(self.parts.first.tolist()), pairwise(self.parts.edge.tolist()), strict=True)]
        for part in sorted(range(len(bounds)), key=lambda part: part != hub):
            tasks, edges = bounds[part]
            same = lag_ns is base.lag_ns or _equal(lag_ns, base.lag_ns, *edges)
            if part == hub and not same:
                return None
            if not (same and (duration_ns is base.duration_ns or _equal(duration_ns, base.duration_ns, *tasks))):
                changed.append(part)
                if len(changed) > most + (changed[0] == hub):
                    return None
        return changed

    def starts(self, since: Int64) -> Int64:
        """Return when the joins and the tasks that wait for nothing start, from the pairs of the joins' ways."""
        starts, longest = self.graph.start_ns[self.known], self.joins.longest(since)
        if not self._levels:
            return self._one_by_one(starts, longest)
        sizes, source = self.joins.sizes, self.joins.join
        first = np.cumsum(sizes) - sizes
        # A level has a join of each rank, as a rule.
        for low, high in pairwise(self._levels):
            begin, end = int(first[low]), int(first[high - 1] + sizes[high - 1])
            came = starts[source[begin:end]] + longest[begin:end]
            starts[low:high] = np.maximum.reduceat(came, first[low:high] - begin)
        return starts

    @cached_property
    def _lists(self) -> tuple[list[int], list[int]]:
        """The number of joins that each join waits for, and these."""
        return self.joins.sizes.tolist(), self.joins.join.tolist()

    def _one_by_one(self, starts: Int64, longest: Int64) -> Int64:
        """Visit the joins; of few ranks, level by level NumPy would have as many calls as there are joins."""
        (sizes, source), known, since = self._lists, starts.tolist(), longest.tolist()
        place = 0
        for join, size in enumerate(sizes):
            end, latest = place + size, known[source[place]] + since[place]
            place += 1
            while place < end:
                came = known[source[place]] + since[place]
                place += 1
                if came > latest:
                    latest = came
            known[join] = latest
        return np.array(known, np.int64)


def _equal(one: Int64, other: Int64, low: int, high: int) -> bool:
    """Return whether two columns are equal between two indices."""
    # Where they differ, most entries do: a few show it.
    return all(bool((one[low:high:step] == other[low:high:step]).all()) for step in (64, 1))


def _changes(*columns: Int64) -> Int64:
    """Return the places at which any of some columns, which are sorted together, has another value than before."""
    is_first = np.ones(len(columns[0]), np.bool_)
    if len(is_first):
        is_first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(is_first)


def _levels(ways: Ways) -> list[Int64]:
    """Return joins in levels: each waits only for joins of earlier ones; none where a level holds few."""
    count = len(ways.sizes)
    of = np.repeat(np.arange(count), ways.sizes)
    inner = np.flatnonzero(ways.join < count)
    inner = inner[np.argsort(ways.join[inner], kind="stable")]
    of = of[inner]
    bounds = np.searchsorted(ways.join[inner], np.arange(count + 1))
    waiting = np.bincount(of, minlength=count)
    levels, ready = list[Int64](), np.flatnonzero(waiting == 0)
    while len(ready):
        levels.append(ready)
        which, nth = repeated(bounds[ready + 1] - bounds[ready])
        following = of[bounds[ready[which]] + nth]
        np.subtract.at(waiting, following, 1)
        ready = unique(following[waiting[following] == 0])
    return levels if count >= _MIN_WIDTH * len(levels) else []


# A run of a schedule, as what it has of its own and what it shares with a run before.


class Simulation:
    """A graph that was simulated: of its times, those that are asked for are computed."""

    def __init__(self, schedule: Schedule, duration_ns: Int64, lag_ns: Int64, base: Simulation | None) -> None:
        self.schedule, self.duration_ns, self.lag_ns = schedule, duration_ns, lag_ns
        self._base, self._changed = base, list[int]()
        """The run of all parts that some differ from, and these."""
        count = len(schedule.graph)
        self._reach: Int64 = np.empty(2 * count, np.int64) if base is None else base._reach.copy()
        """How long after its root each task starts, and then how long after it each ends."""
        self._chained: Int64 = (
            np.empty((2, len(schedule.chains.task)), np.int64) if base is None else base._chained.copy()
        )
        """Of each task in a chain: s and m, see :class:`Chains`."""
        self._since: dict[Ways, Int64] = {}
        self._begun = lag_ns[:0]

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        duration_ns: Int64,
        lag_ns: Int64,
        base: Simulation | None = None,
        changed: Sequence[int] = (),
    ) -> Simulation | None:
        """Simulate a graph; None where an edge of a chain is left out.

        Args:
            base: a run of all parts.
            changed: the parts that differ from it, the hub first.
        """
        self = cls(schedule, duration_ns, lag_ns, base)
        self._changed += changed
        for parts in [(part, part + 1) for part in changed] if base else [(0, len(schedule.parts))]:
            if not self._add_up(*parts):
                return None
            if base and parts[0] == schedule.parts.hub:
                self._shift_chains(base)
        self._begun = schedule.starts(self._pairs(schedule.joins, lag_ns))
        return self

    def _add_up(self, part: int, last: int) -> bool:
        """Compute the sums of some parts; return whether they are sums."""
        schedule, chains, count = self.schedule, self.schedule.chains, len(self.duration_ns)
        first, end = schedule.parts.first[[part, last]].tolist()
        low, high = chains.bounds[[part, last]].tolist()
        after = schedule.followers.after(self.duration_ns, self.lag_ns, (part, last), (first, end))
        self._reach[first:end] = after
        np.add(after, self.duration_ns[first:end], out=self._reach[count + first : count + end])
        since = self._reach[chains.key[:, low:high]]
        since += self.lag_ns[chains.edge[:, low:high]]
        is_sum = chains.add_up(since, low, high)
        self._chained[:, low:high] = since
        return is_sum

    def _shift_chains(self, base: Simulation) -> None:
        """Let chains that begin after a transfer begin as much later as that ends."""
        chains, which = self.schedule.chains, np.flatnonzero(self.schedule.begins_in_hub)
        key = chains.key[0, chains.first[which]]
        chain, nth = repeated(np.diff(chains.first)[which])
        later = (self._reach[key] - base._reach[key])[chain]
        own = chains.first[which[chain]] + nth
        self._chained[0, own] += later
        self._chained[1, own] -= later

    def _pairs(self, ways: Ways, lag_ns: Int64) -> Int64:
        """Return how long after the start of its join each pair is there.

        Args:
            lag_ns: what the ways' lags are indices of.
        """
        if ways in self._since:
            return self._since[ways]
        if self._base is None:
            self._since[ways] = since = self._longest(ways, lag_ns, slice(None), ways.pair)
            return since
        base_lag_ns = self._base.lag_ns if ways is self.schedule.joins else lag_ns
        since = self._base._pairs(ways, base_lag_ns).copy()
        for part in self._changed:
            if part == self.schedule.parts.hub:
                own, first, pairs = ways.of_hub
                since[pairs] = self._longest(ways, lag_ns, own, first)
            low, high = ways.bounds[[part, part + 1]].tolist()
            begin, end = ways.pair_bounds[[part, part + 1]].tolist()
            since[begin:end] = self._longest(ways, lag_ns, slice(low, high), ways.pair[begin:end] - low)
        return since

    def _longest(self, ways: Ways, lag_ns: Int64, rows: slice | Int64, first: Int64) -> Int64:
        """Return the longest of the ways of each pair; these have the rows from *first* on."""
        since = self._reach[ways.key[rows]]
        since += lag_ns[ways.lag[rows]]
        place = ways.place[rows]
        chained = np.flatnonzero(place >= 0)
        way, late = self._chained[:, place[chained]]
        since[chained] += way + np.where(ways.by_host[rows][chained], late, 0)
        return np.maximum.reduceat(since, first) if len(first) else first

    def latest(self, ways: Ways, lag_ns: Int64) -> Int64:
        """Return the latest end of each group that a question of this schedule is about, with its lags.

        Args:
            lag_ns: what the ways' lags are indices of, the same for all runs.
        """
        return ways.latest(self._begun, self._pairs(ways, lag_ns))

    def starts(self, task: Int64) -> Int64:
        """Return when some tasks start."""
        schedule = self.schedule
        place = schedule.place[schedule.root[task]]
        result = self._begun[np.maximum(place, 0)]
        inside = np.flatnonzero(place < 0)
        chained = -1 - place[inside]
        result[inside] = self._in_chains(chained)
        return result + self._reach[task]

    def ends(self, task: Int64) -> Int64:
        """Return when some tasks end."""
        return self.starts(task) + self.duration_ns[task]

    def _in_chains(self, place: Int64 | slice) -> Int64:
        """Return when tasks of chains start."""
        chains, (way, late) = self.schedule.chains, self._chained[:, place]
        chain = chains.chain[place]
        start: Int64 = way + np.maximum(self._begun[chains.head][chain], self._begun[chains.host][chain] + late)
        return start

    @cached_property
    def times(self) -> Times:
        """When all tasks start and end."""
        schedule = self.schedule
        start = np.empty(len(schedule.graph), np.int64)
        start[schedule.known] = self._begun
        start[schedule.chains.task] = self._in_chains(slice(None))
        start = start[schedule.root] + self._reach[: len(start)]
        return Times(start, start + self.duration_ns)


def simulate(graph: Graph) -> Times:
    """Simulate a graph once, as it is."""
    return run_of(graph).times


def run_of(graph: Graph) -> Simulation:
    """Simulate a graph, of which not all times are asked for."""
    return schedule_of(graph).run(graph.duration_ns, graph.edge.lag_ns)


def schedule_of(graph: Graph) -> Schedule:
    """Return the schedule of all graphs with these edges, whatever their durations and lags: it is prepared once."""
    if not graph.prepared:
        graph.prepared.append(Schedule(graph))
    schedule: Schedule = graph.prepared[0]
    return schedule
