"""Merge the records of all ranks: own time and waiting per step and stage, and by how much each rank was late.

Lateness comes from arrivals at collectives. A rank is late by what it arrives after the lower median of the group, at
most by what another rank really waited. It is charged to the stages in which the rank's own time since the group last
met exceeds the lower median of the other ranks', at most by that excess: what is beyond was inherited from another
group that let the rank go late. Clocks of different machines are compared by the ends of collectives in which both
ranks waited. The frontier needs no arrivals: per step, the largest time of any rank up to the end of each stage.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dptrace.watch.digest import Floats, Ints
from dptrace.watch.records import (
    COLLECTIVE,
    CORE_WAIT_BITS,
    DEVICE,
    GROUP,
    PROFILED,
    RECEIVE,
    SEND,
    STAGES,
    TOKENS,
    RankFile,
    Records,
    Tail,
    rank_files,
    rank_path,
)

_BATCH = 512
"""Steps that are merged at once, at most."""
_BLOCKED_NS = 20_000
"""A rank that waits for less than this may have found the collective done."""
_MOST_PAIRS = 4096
"""The latest ends of collectives that two machines share, through whose differences the lines of clocks go."""
_MOST_CALLS = 1 << 16
"""Calls of a rank that wait to be matched."""
_NEGLIGIBLE_NS = 20_000
"""Lateness up to which an arrival is none to look at."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some steps of all ranks; arrays are (ranks, steps) or (ranks, steps, stages), times in ns."""

    ranks: tuple[int, ...]
    steps: Ints
    length: Floats
    own: Floats
    waiting: Floats
    late: Floats | None
    """None if no rank called a collective that could be matched: unknown."""
    gain: Floats | None
    """What would be saved if this rank alone came as early as the next one did."""
    memory: Ints
    items: Ints
    are_tokens: bool
    core_wait: Floats
    """What the rank has waited for a core of the machine, which other processes had."""
    profiled: npt.NDArray[np.bool_]
    """Per step: whether the profiler was on."""

    def frontier(self) -> Floats:
        """Return the exposed time of each step and stage; of a step they add up to the length of the longest rank's."""
        reached = (self.own + self.waiting).cumsum(2)
        return np.diff(reached.max(0), axis=1, prepend=0)


@dataclass(slots=True)
class _Group:
    """What is known of a group between two batches."""

    size: int
    ranks: set[int]
    own: dict[int, Ints] | None = None
    """The own time of each rank when the group met last."""
    met: dict[int, int] | None = None


class Merger:
    """Follows the files in a folder; :meth:`batches` yields what is new and complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[int, RankFile] = {}
        self.clocks = Clocks()
        self.device: dict[int, Ints] = {}
        """Of each rank that has timed stages on its device: the sum of each in ns, and in how many steps."""
        self.met = self.sent = False
        """Whether collectives could be matched; whether there were sends."""
        self._tails: dict[int, tuple[Tail, Tail]] = {}
        self._steps: dict[int, Records] = {}
        self._calls: dict[int, Records] = {}
        self._groups: dict[int, _Group] = {}
        self._charged: dict[int, deque[tuple[int, Floats]]] = defaultdict(lambda: deque(maxlen=64))
        self._done = 0
        self._damaged: list[str] = []

    def look(self) -> bool:
        """Look for files of ranks that have begun since; return whether ranks were restarted: merge them anew."""
        found, self._damaged = rank_files(self.folder)
        if any(found[rank].started > self.files[rank].started for rank in self.files.keys() & found.keys()):
            return True
        for rank in found.keys() - self.files.keys():
            self._tails[rank] = Tail(rank_path(self.folder, rank, "steps")), Tail(rank_path(self.folder, rank, "calls"))
            self._steps[rank], self._calls[rank] = (tail.read(0) for tail in self._tails[rank])
        self.files = {rank: found[rank] for rank in sorted(found)}
        return False

    @property
    def is_complete(self) -> bool:
        """Whether the files of all ranks of the job are here."""
        return bool(self.files) and len(self.files) >= next(iter(self.files.values())).world_size

    @property
    def file_notes(self) -> list[str]:
        """What is wrong with the files, in a sentence each."""
        return [*self._damaged, *(tail.problem for tails in self._tails.values() for tail in tails if tail.problem)]

    @property
    def reached(self) -> dict[int, int]:
        """The last step that each rank is known to have ended."""
        return {rank: int(steps["step"][-1]) if len(steps) else self._done for rank, steps in self._steps.items()}

    def batches(self) -> Iterator[Batch]:
        """Yield the next steps that all ranks have made."""
        while self.files:
            for rank, (steps, calls) in self._tails.items():
                self._steps[rank] = _joined(self._steps[rank], steps.read(_BATCH - min(_BATCH, len(self._steps[rank]))))
                first = self._steps[rank]["step"][0] if len(self._steps[rank]) else 0
                while (more := calls.read(1 << 14)).size:
                    self._calls[rank] = _joined(self._calls[rank], more)
                    if more["step"][-1] > first + _BATCH:
                        break
            if not all(len(steps) for steps in self._steps.values()):
                return
            first = max(int(steps["step"][0]) for steps in self._steps.values())
            last = min(int(steps["step"][-1]) for steps in self._steps.values())
            if last < first:
                return
            yield self._merge(first, min(last, first + _BATCH - 1))

    def _merge(self, first: int, last: int) -> Batch:
        count, ranks = last - first + 1, tuple(self.files)
        rows = []
        for rank in ranks:
            steps = self._steps[rank]
            begin, end = np.searchsorted(steps["step"], [first, last + 1])
            rows.append(steps[begin:end])
            self._steps[rank] = steps[end:]
        self._done = last
        table = np.stack(rows)
        own, waiting = (
            np.stack([table[f"{stage}{kind}_ns"] for stage in STAGES], 2).astype(np.float64)
            for kind in ("", "_waiting")
        )
        late, gain = np.zeros_like(own), np.zeros_like(own)
        self._meet(ranks, first, count, late, gain)
        length = (table["end_ns"] - table["begin_ns"]).astype(np.float64)
        known = self.met or (self.sent and _above_others(own, waiting, late, gain))
        return Batch(
            ranks=ranks,
            steps=np.arange(first, last + 1),
            length=length,
            own=own,
            waiting=waiting,
            late=late if known else None,
            gain=gain if known else None,
            memory=table["memory"].astype(np.int64),
            items=table["items"].astype(np.int64),
            are_tokens=bool((table["flags"] & TOKENS).any()),
            core_wait=length * (table["flags"] >> CORE_WAIT_BITS) / 1000,
            profiled=np.asarray((table["flags"] & PROFILED).any(0)),
        )

    # Arrivals.

    def _meet(self, ranks: tuple[int, ...], first: int, count: int, late: Floats, gain: Floats) -> None:
        place = {rank: index for index, rank in enumerate(ranks)}
        for rank in ranks:
            calls = self._calls[rank]
            for call in calls[calls["kind"] == GROUP]:
                group = self._groups.setdefault(int(call["group"]), _Group(int(call["sequence"]), set()))
                group.ranks.add(rank)
            if len(timed := calls[calls["kind"] == DEVICE]):
                new = np.append(timed["own_ns"].sum(0), len(timed))
                self.device[rank] = self.device[rank] + new if rank in self.device else new
            self.sent |= bool(np.isin(calls["kind"], (SEND, RECEIVE)).any())
        shared = [number for number, group in self._groups.items() if group.size > 1]
        for rank, calls in self._calls.items():
            # Of a group whose other ranks write elsewhere, none is ever matched.
            kept = (calls["kind"] == COLLECTIVE) & np.isin(calls["group"], shared)
            self._calls[rank] = calls[kept][-_MOST_CALLS:]
        matched = [self._matched(number, first + count - 1) for number in self._groups]
        meetings = [meeting for meeting in matched if meeting is not None]
        self.met |= bool(meetings)
        for _, members, calls in meetings:
            self.clocks.add([self.files[rank].host for rank in members], calls)
        self.clocks.solve(self.files)
        compared = [
            (_Arrivals.of(calls, group, members, [self.clocks.offset(self.files[rank]) for rank in members]), members)
            for group, members, calls in meetings
        ]
        if len(compared) > 1:
            self._pay_once(compared)
        for arrivals, members in compared:
            for column, rank in enumerate(members):
                step = np.clip(arrivals.step[:, column] - first, 0, count - 1)
                np.add.at(late[place[rank]], step, arrivals.late[:, column])
                np.add.at(gain[place[rank]], step, arrivals.gain[:, column])

    def _matched(self, number: int, last: int) -> tuple[_Group, list[int], Records] | None:
        """Return the collectives of a group that all its ranks have called, as (collectives, ranks)."""
        group = self._groups[number]
        members = sorted(group.ranks)
        if len(members) < 2 or (len(members) < group.size and not self.is_complete):
            return None
        own = {rank: self._calls[rank][self._calls[rank]["group"] == number] for rank in members}
        common = reduce(np.intersect1d, [calls["sequence"][calls["step"] <= last] for calls in own.values()])
        if not len(common):
            return None
        columns = []
        for rank in members:
            calls = self._calls[rank]
            used = (calls["group"] == number) & (calls["sequence"] <= common[-1])
            mine = calls[used]
            self._calls[rank] = calls[~used]
            columns.append(mine[np.isin(mine["sequence"], common)])
            columns[-1] = columns[-1][np.argsort(columns[-1]["sequence"], kind="stable")]
        return group, members, np.stack(columns, 1)

    def _pay_once(self, found: list[tuple[_Arrivals, list[int]]]) -> None:
        """Where ranks meet in several groups, charge a delay to the first one that waits for it."""
        order = sorted(
            (int(arrivals.arrival[row].min()), number, row)
            for number, (arrivals, _) in enumerate(found)
            for row in np.flatnonzero(arrivals.lateness.max(1) > _NEGLIGIBLE_NS)
        )
        for arrivals, _ in found:
            arrivals.late[:] = arrivals.gain[:] = 0
        for _, number, row in order:
            arrivals, members = found[number]
            for column, rank in enumerate(members):
                if arrivals.lateness[row, column] <= 0:
                    continue
                since = arrivals.since[row, column]
                paid = sum((part for when, part in self._charged[rank] if when > since), np.zeros(len(STAGES)))
                late = arrivals.charge(int(row), column, paid)
                if late is not None:
                    self._charged[rank].append((int(arrivals.arrival[row, column]), late))


@dataclass(slots=True)
class _Arrivals:
    """When the ranks of a group arrived at their collectives; arrays are (collectives, ranks) and (…, stages)."""

    arrival: Ints
    since: Ints
    """When the rank had arrived at the one before."""
    step: Ints
    lateness: Floats
    alone: Floats
    """How much later it came than the next one, if it was last."""
    excess: Floats
    late: Floats
    gain: Floats

    @classmethod
    def of(cls, calls: Records, group: _Group, members: list[int], offsets: list[tuple[float, float]]) -> _Arrivals:
        """Compare the arrivals of each collective."""
        arrival, waits, end = (_on_one_clock(calls[name], offsets) for name in ("arrival_ns", "waits_ns", "end_ns"))
        size, order = arrival.shape[1], np.sort(arrival, 1)
        # What others waited for this rank: the largest wait in the row, or the second for the rank that has it.
        waited = np.maximum(0, np.minimum(end, order[:, -1:]) - waits)
        most = np.sort(waited, 1)
        has_most = waited.argmax(1)[:, None] == np.arange(size)
        lateness = np.minimum(
            np.maximum(0, arrival - order[:, [(size - 1) // 2]]), np.where(has_most, most[:, [-2]], most[:, [-1]])
        ).astype(np.float64)
        is_last = arrival.argmax(1)[:, None] == np.arange(size)
        alone = np.where(is_last, order[:, [-1]] - order[:, [-2]], 0).astype(np.float64)
        own, known = calls["own_ns"], np.ones(len(calls), bool)
        if group.own is None or group.met is None:
            known[0] = False  # the time before the first meeting has no beginning
            group.own = {rank: own[0, column] for column, rank in enumerate(members)}
            group.met = {rank: int(arrival[0, column]) for column, rank in enumerate(members)}
        before = np.stack([group.own[rank] for rank in members])[None]
        since = np.concatenate([[[group.met[rank] for rank in members]], arrival[:-1]])
        spent = np.diff(own, axis=0, prepend=before).astype(np.float64)
        group.own = {rank: own[-1, column] for column, rank in enumerate(members)}
        group.met = {rank: int(arrival[-1, column]) for column, rank in enumerate(members)}
        excess = np.maximum(0, spent - lower_median_of_others(spent)) * known[:, None, None]
        arrivals = cls(arrival, since, calls["step"].astype(np.int64), lateness, alone, excess, excess, excess)
        arrivals.late, arrivals.gain = arrivals._shares(lateness), arrivals._shares(np.minimum(alone, lateness))
        return arrivals

    def _shares(self, total: Floats) -> Floats:
        """Divide times over the stages as the excess is, at most the excess."""
        whole = self.excess.sum(2)
        factor = np.divide(np.minimum(total, whole), whole, out=np.zeros_like(whole), where=whole > 0)
        shares: Floats = self.excess * factor[..., None]
        return shares

    def charge(self, row: int, column: int, paid: Floats) -> Floats | None:
        """Charge one rank at one collective with the excess that is not paid yet; return it."""
        excess = np.maximum(0, self.excess[row, column] - paid)
        whole = float(excess.sum())
        if whole <= 0:
            return None
        lateness = self.lateness[row, column]
        self.late[row, column] = excess * (min(lateness, whole) / whole)
        self.gain[row, column] = excess * (min(self.alone[row, column], lateness, whole) / whole)
        late: Floats = self.late[row, column]
        return late


def lower_median_of_others(values: Floats) -> Floats:
    """Return, for each place along axis 1, the lower median of the other places."""
    size = values.shape[1]
    order = np.sort(values, 1)
    middle = (size - 2) // 2
    place = np.argsort(np.argsort(values, 1, kind="stable"), 1, kind="stable")
    return np.where(place <= middle, order[:, [middle + 1]], order[:, [middle]])


def _above_others(own: Floats, waiting: Floats, late: Floats, gain: Floats) -> bool:
    """Estimate lateness where ranks only send and receive: own time above the other ranks', at most what one waited."""
    if len(own) < 2:
        return False
    other = lower_median_of_others(own.swapaxes(0, 1)).swapaxes(0, 1)
    waited = waiting.sum(2)
    most = np.sort(waited, 0)
    others = np.where(waited.argmax(0)[None] == np.arange(len(own))[:, None], most[-2], most[-1])
    late[:] = np.minimum(np.maximum(0, own - other), others[..., None])
    gain[:] = late
    return True


def _joined(one: Records, other: Records) -> Records:
    return other if not len(one) else one if not len(other) else np.concatenate([one, other])


def _on_one_clock(times: Ints, offsets: list[tuple[float, float]]) -> Ints:
    """Subtract from each column a line through the time: (offset in ns, drift)."""
    aligned = times.copy()
    for column, (offset, drift) in enumerate(offsets):
        aligned[:, column] -= np.round(offset + drift * times[:, column]).astype(np.int64)
    return aligned


class Clocks:
    """The clocks of machines against that of the first: lines through differences of the ends of collectives."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=_MOST_PAIRS))
        self._lines: dict[str, tuple[float, float]] = {}

    def add(self, hosts: list[str], calls: Records) -> None:
        """Take the ends of a group's collectives, each seen on several machines."""
        first = {host: hosts.index(host) for host in sorted(set(hosts))}
        names = list(first)
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                a, b = calls[:, first[one]], calls[:, first[other]]
                both = np.minimum(a["end_ns"] - a["waits_ns"], b["end_ns"] - b["waits_ns"]) > _BLOCKED_NS
                self._pairs[one, other].extend(zip(a["end_ns"][both].tolist(), b["end_ns"][both].tolist(), strict=True))

    def solve(self, files: Mapping[int, RankFile]) -> None:
        """Find the line of each machine, over a chain of pairs; without any, by the machines' own times of day."""
        reference = next(iter(files.values()))
        self._lines = {reference.host: (0.0, 0.0)}
        open_hosts = [reference.host]
        while open_hosts:
            one = open_hosts.pop()
            for (a, b), pairs in self._pairs.items():
                other = b if a == one else a if b == one else None
                if other is None or other in self._lines or len(pairs) < 5:
                    continue
                ends = np.array(pairs, np.int64)
                mine, its = (ends[:, 0], ends[:, 1]) if a == one else (ends[:, 1], ends[:, 0])
                offset, drift = self._lines[one]
                its_offset, its_drift = _line(its, its - (mine - np.round(offset + drift * mine).astype(np.int64)))
                self._lines[other] = its_offset, its_drift
                open_hosts.append(other)
        for file in files.values():
            start = file.clock_ns - file.unix_ns - (reference.clock_ns - reference.unix_ns)
            self._lines.setdefault(file.host, (float(start), 0.0))

    def offset(self, file: RankFile) -> tuple[float, float]:
        """Return what to subtract from a rank's times: an offset in ns, and a drift per ns of them."""
        return self._lines[file.host]


def _line(times: Ints, differences: Ints) -> tuple[float, float]:
    """Return offset and slope of a line through differences, by the medians of ten parts of the time."""
    centre, level = int(times[len(times) // 2]), int(np.median(differences))
    slope, rest = 0.0, 0.0
    if len(times) >= 15:
        parts = np.array_split(np.arange(len(times)), min(10, len(times) // 5))
        x = [float(np.median(times[part] - centre)) for part in parts]
        y = [float(np.median(differences[part] - level)) for part in parts]
        if x[-1] > x[0]:
            slope, rest = (float(value) for value in np.polyfit(x, y, 1))
    return level + rest - slope * centre, slope
