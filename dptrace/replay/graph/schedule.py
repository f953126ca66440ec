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

    task: Int64
    from_end: NDArray[np.bool_]
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
        longest: Int64 = np.maximum.reduceat(since[self.merged], self.first) if len(self.first) else self.first
        return longest


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
        part = self.parts.of(source)
        part = np.where(part == self.parts.hub, self.parts.of(joins[which]), part)
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
        part = self.parts.of(task)
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
        return Ways(
            task=table.task[row],
            from_end=table.from_end[row],
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
        return found

    def _changed(self, base: Simulation, duration_ns: Int64, lag_ns: Int64, most: int) -> list[int] | None:
        """Return the parts with other durations or lags than in a run before; None for the hub's, or too many."""
        tasks, edges, changed = self.parts.first.tolist(), self.parts.edge.tolist(), list[int]()
        for part, (low, high) in enumerate(pairwise(tasks)):
            same = duration_ns is base.duration_ns or _equal(duration_ns, base.duration_ns, low, high)
            if not (same and (lag_ns is base.lag_ns or _equal(lag_ns, base.lag_ns, edges[part], edges[part + 1]))):
                changed.append(part)
                if len(changed) > most or part == self.parts.hub:
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
    return bool((one[low:high] == other[low:high]).all())


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


class _Sums(msgspec.Struct, frozen=True):
    """The sums of one part, or of all."""

    parts: tuple[int, int]
    """The first part, and the one after the last."""
    first: int
    """Their first task."""
    after: Int64
    """How long after its root each task starts."""
    first_chained: int
    """Their first task in a chain."""
    way: Int64
    late: Int64
    """Of each task in a chain: s and m, see :class:`Chains`."""


class Simulation:
    """A graph that was simulated: of its times, those that are asked for are computed."""

    def __init__(self, schedule: Schedule, duration_ns: Int64, lag_ns: Int64, base: Simulation | None) -> None:
        self.schedule, self.duration_ns, self.lag_ns = schedule, duration_ns, lag_ns
        self._base = base
        self._own = list[_Sums]()
        """Those of all parts; where there is a base, those that differ from it."""
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
            changed: the parts that differ from it.
        """
        self = cls(schedule, duration_ns, lag_ns, base)
        for parts in [(part, part + 1) for part in changed] if base else [(0, len(schedule.parts))]:
            sums = self._sums(parts)
            if sums is None:
                return None
            self._own.append(sums)
        self._begun = schedule.starts(self._pairs(schedule.joins, lag_ns))
        return self

    def _sums(self, parts: tuple[int, int]) -> _Sums | None:
        schedule, chains = self.schedule, self.schedule.chains
        first, end = schedule.parts.first[list(parts)].tolist()
        low, high = chains.bounds[list(parts)].tolist()
        after = schedule.followers.after(self.duration_ns, self.lag_ns, parts, (first, end))
        sums = _Sums(parts, first, after, low, after[:0], after[:0])
        if low == high:
            return sums
        source = chains.source[:, low:high]
        since = self.lag_ns[chains.edge[:, low:high]] + self._after(source, sums)
        since += np.where(chains.from_end[:, low:high], self.duration_ns[source], 0)
        ways = chains.ways(since, low, high)
        return None if ways is None else replace(sums, way=ways[0], late=ways[1])

    def _after(self, task: Int64, own: _Sums) -> Int64:
        base = None if self._base is None else self._base._own[0].after[task]
        return _read(task, own.after, own.first, base)

    def _pairs(self, ways: Ways, lag_ns: Int64) -> Int64:
        """Return how long after the start of its join each pair is there.

        Args:
            lag_ns: what the ways' lags are indices of.
        """
        if self._base is None:
            if ways not in self._since:
                self._since[ways] = self._of_parts(ways, lag_ns, self._own[0])
            return self._since[ways]
        since = self._base._pairs(ways, self._base.lag_ns if ways is self.schedule.joins else lag_ns).copy()
        for own in self._own:
            low, high = ways.pair_bounds[list(own.parts)].tolist()
            since[low:high] = self._of_parts(ways, lag_ns, own)
        return since

    def _of_parts(self, ways: Ways, lag_ns: Int64, own: _Sums) -> Int64:
        low, high = ways.bounds[list(own.parts)].tolist()
        begin, end = ways.pair_bounds[list(own.parts)].tolist()
        task = ways.task[low:high]
        since = lag_ns[ways.lag[low:high]] + self._after(task, own)
        since += np.where(ways.from_end[low:high], self.duration_ns[task], 0)
        chained = np.flatnonzero(ways.place[low:high] >= 0)
        place, base = ways.place[low:high][chained], None if self._base is None else self._base._own[0]
        late = _read(place, own.late, own.first_chained, None if base is None else base.late[place])
        since[chained] += np.where(ways.by_host[low:high][chained], late, 0)
        since[chained] += _read(place, own.way, own.first_chained, None if base is None else base.way[place])
        longest: Int64 = np.maximum.reduceat(since, ways.pair[begin:end] - low) if end > begin else since[:0]
        return longest

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
        columns = self._at("way", chained), self._at("late", chained)
        result[inside] = self._in_chains(*columns, schedule.chains.chain[chained])
        return result + self._at("after", task)

    def ends(self, task: Int64) -> Int64:
        """Return when some tasks end."""
        return self.starts(task) + self.duration_ns[task]

    def _in_chains(self, way: Int64, late: Int64, chain: Int64) -> Int64:
        """Return when tasks of chains start."""
        chains = self.schedule.chains
        start: Int64 = way + np.maximum(self._begun[chains.head][chain], self._begun[chains.host][chain] + late)
        return start

    def _at(self, name: str, index: Int64) -> Int64:
        """Return the entries of a column of sums at some indices."""
        found: Int64 = getattr((self._base or self)._own[0], name)[index]
        for own in self._own if self._base else ():
            first = own.first if name == "after" else own.first_chained
            found = _read(index, getattr(own, name), first, found)
        return found

    def _whole(self, name: str) -> Int64:
        """Return a column of sums of all parts."""
        column: Int64 = getattr((self._base or self)._own[0], name)
        if self._base is None or not self._own:
            return column
        column = column.copy()
        for own in self._own:
            first, values = own.first if name == "after" else own.first_chained, getattr(own, name)
            column[first : first + len(values)] = values
        return column

    @cached_property
    def times(self) -> Times:
        """When all tasks start and end."""
        schedule, chains = self.schedule, self.schedule.chains
        start = np.empty(len(schedule.graph), np.int64)
        start[schedule.known] = self._begun
        start[chains.task] = self._in_chains(self._whole("way"), self._whole("late"), chains.chain)
        start = start[schedule.root] + self._whole("after")
        return Times(start, start + self.duration_ns)


def _read(index: Int64, own: Int64, first: int, found: Int64 | None) -> Int64:
    """Return what a column has at some indices: *found*, but for a range from *first* on, which *own* has."""
    if found is None:
        return own[index]
    place = index - first
    inside = (place >= 0) & (place < len(own))
    found[inside] = own[place[inside]]
    return found


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
