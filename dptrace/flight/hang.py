"""Find the collective in which a job hangs, and which ranks are the cause, from what each rank has begun.

The first collective of a group that is not complete is where the group is stuck. The ranks that have not begun it, or
began another one, keep the others waiting; those that wait elsewhere themselves are excused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

from dptrace.core.units import listed, plural, ranks_text
from dptrace.flight.dumps import Call, Counts, Dump, Dumps, peers, read_dumps
from dptrace.record.failures import user_line, who_is_behind

_MAX_PLACES = 3
"""Blamed ranks whose place in the code is told."""
_NOTHING = "No collective is waiting: each rank has completed all that it began, and equally many."
_UNKNOWN = "No collective is waiting on the ranks with a dump; whether one does can't be told without all ranks' dumps."
_NONE_BEHIND = " None is behind: look at the network, and at what the GPUs do."
_OF_GLOO = {"begun", "ended"}
"""States that gloo's calls have."""
_ROOTED = {"broadcast", "broadcast_oop", "reduce", "reduce_oop", "gather", "scatter", "coalesced"}
"""Operators that some ranks may complete before all have taken part."""
_EMPTY = "The dumps hold no collective: none was begun, or the recorder was off (TORCH_NCCL_TRACE_BUFFER_SIZE=2000)."
NEXT = {
    "missing": (
        "Look at what {} did instead: data that do not come, a loop that ended early (unequal numbers of batches: "
        "drop_last=True, or DistributedDataParallel's join()), a branch that others do not take, or a blocked host "
        "(py-spy dump --pid PID shows where it is)."
    ),
    "group": "Begin the collectives of all groups in one order on all of their ranks: look at what leads {} there.",
    "no dump": "Read the log of {} for its end: an exception, a signal, or out of memory (dmesg); or add its dump.",
    "operator": "Find the branch that leads {} to another collective: a condition on the rank, the data or the step.",
    "dtypes": "Give the tensors one dtype on all ranks: look at {} for autocast, or a dtype that comes with the data.",
    "sizes": (
        "Make the tensors equally large on all ranks: look at {} for a last batch that is smaller (drop_last=True), or "
        "sequences of other lengths, which can be padded."
    ),
    "order": (
        "Begin collectives in one order on all ranks: look at {} for a set or a dict that is gone through, hooks or "
        "threads that reduce, or a call that is left out."
    ),
    "gpu": (
        "Look at the GPUs of {}: dmesg and nvidia-smi for errors (Xid, ECC), the logs for CUDA errors, and whether a "
        "kernel launched before it ends."
    ),
    "unknown": (
        "Look up in the script which ranks belong to the group: one that is not among those seen has not begun it; if "
        "all are, look at the network and the processes."
    ),
    "stalled": (
        "All ranks came, so look below the script: dmesg and nvidia-smi for errors of GPUs (Xid), NCCL_DEBUG=INFO for "
        "the network, and whether a kernel launched before it ends."
    ),
}
"""What to do next, by the kind of fault; its ranks take the place of the braces."""
Calls = list[Call]
"""Those of a rank with one number: several where they are one coalesced call."""
Numbers = dict[int, dict[int, Calls]]
"""Of a group, by number and rank."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A collective, or a message, that cannot complete."""

    kind: str
    """One of :data:`NEXT`."""
    group: str
    number: int
    operator: str
    culprits: list[int]
    waiting: list[int]
    text: str
    created_ns: int = 0
    """When the first rank began it."""
    is_cause: bool = False


def find_hang(paths: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """Return where a job hangs and why, as ``dptrace flight --json`` prints it.

    Args:
        paths: dumps of torch's flight recorder, one for each rank; of NCCL's RAS or Inspector; folders of them; or one
            path alone.

    Raises:
        TraceError: a path does not exist, no file is a dump, two are of one rank, or a pickle has more than plain data.
    """
    dumps = read_dumps([paths] if isinstance(paths, str | Path) else paths)
    places: list[str] = []
    nothing = _NOTHING
    if dumps.ranks:
        job = _Job(dumps.ranks, dumps.damaged)
        faults, rows, notes = job.faults(), job.rows(), job.notes()
        places = [*job.places(), *job.overwritten]
        nothing = _NOTHING if len(dumps.ranks) == len(job.world) else _UNKNOWN
    else:
        faults, rows, notes = _of_counts(dumps)
    causes = [fault for fault in faults if fault.is_cause]
    texts = [*_told(causes), *places]
    return {
        "schema": 1,
        "kind": "flight",
        "source": dumps.source,
        "verdict": " ".join(texts) or (nothing if any(row["group"] for row in rows) else _EMPTY),
        "next": _next(causes),
        "culprits": sorted({rank for fault in causes for rank in fault.culprits}),
        "faults": [asdict(fault) for fault in faults],
        "ranks": rows,
        "notes": [*dumps.notes, *notes],
    }


def _told(causes: Sequence[Fault]) -> Iterator[str]:
    """Yield what the causes are: the first of each kind and rank in words, the groups of the others by name."""
    alike: dict[tuple[str, tuple[int, ...]], list[Fault]] = {}
    for fault in causes:
        alike.setdefault((fault.kind, tuple(fault.culprits)), []).append(fault)
    for (kind, culprits), (first, *others) in alike.items():
        yield first.text
        if kind in ("missing", "no dump", "gpu") and (groups := [*dict.fromkeys(one.group for one in others)]):
            who = f"{ranks_text(culprits, capital=True)} {'keeps' if len(culprits) == 1 else 'keep'}"
            yield f"{who} others waiting, too, in {'group' if len(groups) == 1 else 'groups'} {listed(groups)}."
        else:
            yield from (other.text for other in others)


def _next(causes: Sequence[Fault]) -> list[str]:
    """Return what to do about the causes, a sentence for each kind."""
    ranks: dict[str, set[int]] = {}
    for fault in causes:
        ranks.setdefault(fault.kind, set()).update(fault.culprits)
    return [NEXT[kind].format(ranks_text(sorted(culprits))) for kind, culprits in ranks.items()]


# What must agree between the ranks of a collective.


def _total(tensors: Sequence[Sequence[int]]) -> int:
    return sum(map(prod, tensors))


def _operators(calls: Calls) -> tuple[object, ...]:
    return tuple(call.operator for call in calls)


def _dtypes(calls: Calls) -> tuple[object, ...]:
    return tuple(sorted({dtype for call in calls for dtype in call.dtypes}))


def _elements(calls: Calls) -> tuple[object, ...]:
    """Count the elements on those sides that are as large on each rank; shapes may differ."""
    sizes: list[int] = []
    for call in calls:
        name = call.operator.lower().lstrip("_")
        is_free = name.startswith(("all_to_all", "alltoall"))
        if not is_free and not name.startswith(("all_gather", "allgather", "scatter")):
            sizes.append(_total(call.input_sizes))
        if not is_free and "reduce_scatter" not in name and not name.startswith("gather"):
            sizes.append(_total(call.output_sizes))
    return tuple(sizes)


_ASPECTS: dict[str, Callable[[Calls], tuple[object, ...]]] = {
    "operator": _operators,
    "dtypes": _dtypes,
    "sizes": _elements,
}


def _alike(one: Calls | None, other: Calls | None) -> bool:
    return bool(one and other) and all(aspect(one or []) == aspect(other or []) for aspect in _ASPECTS.values())


def _text(calls: Calls) -> str:
    """Return ``all_reduce of Float [8, 2]``."""
    call = calls[0]
    if len(calls) > 1:
        return f"{plural(len(calls), 'call')} together, first {_text(calls[:1])}"
    shapes = listed([str(list(sizes)) for sizes in call.input_sizes or call.output_sizes])
    return call.operator + (f" of {' '.join((*call.dtypes, shapes))}" if shapes else "")


class _Job:
    """What the ranks of a job have begun."""

    def __init__(self, dumps: Sequence[Dump], damaged: Collection[int] = ()) -> None:
        self.damaged = damaged
        self.dumps = {dump.rank: dump for dump in dumps}
        self.groups: dict[str, Numbers] = {}
        for dump in dumps:
            for call in dump.calls:
                if not call.is_p2p:
                    numbers = self.groups.setdefault(call.group, {})
                    numbers.setdefault(call.number, {}).setdefault(dump.rank, []).append(call)
        listed_ranks = {rank for dump in dumps for ranks in dump.members.values() for rank in ranks[-1:]}
        self.begun: dict[str, dict[int, int]] = {}
        self.completed: dict[str, dict[int, int]] = {}
        # Dumps may hold open calls only (onlyActive).
        self.holds_completed = any(call.is_over for dump in dumps for call in dump.calls)
        self.is_open_only = not self.holds_completed and any(dump.has_gaps for dump in dumps)
        for dump in dumps:
            self._count(dump)
        self.world = range(max(listed_ranks | {*self.dumps}) + 1)
        self.causes: list[Fault] = []

    def _count(self, dump: Dump) -> None:
        """Add the last collectives that a rank has begun and completed, by its entries and its own counts."""
        states = [(call.group, call.number, call.state == "completed") for call in dump.calls if not call.is_p2p]
        oldest = {call.group: call.number for call in reversed(dump.calls) if not call.is_p2p}
        if self.is_open_only and not dump.progress:  # what is not there any more has completed
            states += [(group, number - 1, True) for group, number in oldest.items()]
        for group, one in dump.progress.items():
            states += [(group, one.begun, False), (group, one.completed, True)]
        for group, number, is_completed in states:
            for found in (self.begun, self.completed)[: 1 + is_completed]:
                numbers = found.setdefault(group, {})
                numbers[dump.rank] = max(numbers.get(dump.rank, 0), number)

    @property
    def blamed(self) -> set[int]:
        return {rank for fault in self.causes for rank in fault.culprits}

    def members(self, group: str) -> Sequence[int]:
        """Return the ranks of a group: as dumps list them, else all for the default group, else those seen in it."""
        for dump in self.dumps.values():
            if group in dump.members:
                return dump.members[group]
        if group.endswith("default_pg"):
            return self.world
        return sorted({rank for ranks in self.groups.get(group, {}).values() for rank in ranks})

    def knows_members(self, group: str) -> bool:
        """Return whether a dump lists the ranks of a group."""
        return any(group in dump.members for dump in self.dumps.values())

    def faults(self) -> list[Fault]:
        """Return the causes, the first to begin first, then what follows from them."""
        found = [*filter(None, map(self._fault, sorted(self.groups)))]
        found += self._unpaired()
        self.causes = sorted(self._causes(found), key=lambda fault: fault.created_ns)
        places = {(fault.group, fault.number, fault.operator) for fault in self.causes}
        rest = [
            replace(fault, text=fault.text.removesuffix(_NONE_BEHIND))
            for fault in found
            if (fault.group, fault.number, fault.operator) not in places
        ]
        return [replace(fault, is_cause=True) for fault in self.causes] + rest

    def _fault(self, group: str) -> Fault | None:
        """Return what is wrong with the first collective of a group that is not complete, or with a mismatch before."""
        numbers, members = self.groups[group], self.members(group)
        lasts = self.begun[group]
        mismatched: Fault | None = None
        for number in sorted(numbers):
            begun = numbers[number]
            # Marks may be late: who has completed a later one has completed this one.
            done = {rank for rank, last in self.completed.get(group, {}).items() if last >= number}
            states = {call.state for rank, calls in begun.items() if rank not in done for call in calls}
            absent = [rank for rank in members if lasts.get(rank, 0) < number]
            # Where one has completed a later one, too, those without a dump have taken part in this one.
            if not set(absent) & self.dumps.keys() and max(self.completed.get(group, {}).values(), default=0) > number:
                absent = []
            is_stuck = bool(states - {"completed", "ended"})
            is_over = not is_stuck and "ended" not in states
            created = min(calls[0].created_ns or 0 for calls in begun.values())
            place = group, number, next(iter(begun.values()))[0].operator
            # What went on after a mismatch says nothing of the order in which its ranks meant to begin.
            if mismatched is None and (mismatch := _mismatch({number: begun} if is_over else numbers, number)):
                kind, culprits, text = mismatch
                text += " It ended all the same, with wrong data, and collectives after it hang." if is_over else ""
                mismatched = Fault(kind, *place, culprits, sorted(begun), f"In group {group}, {text}", created)
            if is_over:
                continue
            if mismatched is not None:
                return mismatched
            if absent:
                return Fault(
                    "missing", *place, absent, sorted(begun), self._behind_text(place, begun, members), created
                )
            if is_stuck:
                return self._stalled(place, begun, created)
        return None

    def _behind_text(self, place: tuple[str, int, str], begun: Mapping[int, Calls], members: Sequence[int]) -> str:
        group, number, operator = place
        lasts = self.begun[group]
        did = f"In group {group}, {ranks_text(begun)} began collective {number} ({operator})"
        known = [rank for rank in members if rank in self.dumps]
        if unseen := [rank for rank in known if rank not in lasts and number > 1]:
            return f"{did}; in the dump of {ranks_text(unseen)} there is no call of that group."
        counts = {rank: (min(lasts.get(rank, 0), number), operator) for rank in known}
        return who_is_behind(group, counts) or f"{did}."

    def _stalled(self, place: tuple[str, int, str], begun: Mapping[int, Calls], created: int) -> Fault:
        """Return a collective that all began: those whose GPUs are behind are the culprits."""
        group, number, operator = place
        completed = self.completed.get(group, {})
        by_state: dict[str, list[int]] = {}
        for rank in sorted(begun):
            if completed.get(rank, 0) < number:
                by_state.setdefault(begun[rank][-1].state, []).append(rank)
        # A rank that has completed it need not have kept it.
        over = sorted(rank for rank, last in completed.items() if last >= number)
        behind = [rank for rank in sorted(begun) if rank not in over]
        if over and behind and "begun" not in by_state and operator.lower().lstrip("_") not in _ROOTED:
            return Fault("gpu", *place, behind, sorted(begun), self._gpu_text(place, behind, over), created)
        if over:
            by_state["completed"] = over
        # Who is furthest from the end keeps the others.
        least = next((state for state in ("scheduled", "begun", "started") if state in by_state), "")
        culprits = by_state[least] if least and len(by_state) > 1 else []
        states = ", ".join(f"{state} on {ranks_text(ranks)}" for state, ranks in by_state.items())
        kind = "stalled"
        if self.knows_members(group):
            text = f"In group {group}, all ranks began collective {number} ({operator}) alike; it is {states}."
            text += "" if culprits or self.overwritten else _NONE_BEHIND
        else:
            text = (
                f"In group {group}, the ranks seen in it began collective {number} ({operator}) alike; it is {states}."
            )
            text += " Whether others belong to the group, the dumps do not say."
            # Where all ranks of the job have begun it, none of a group can be left.
            kind = "stalled" if culprits or len(begun) == len(self.world) else "unknown"
        return Fault(kind, *place, culprits, sorted(begun), text, created)

    def _gpu_text(self, place: tuple[str, int, str], behind: Sequence[int], over: Sequence[int]) -> str:
        group, number, operator = place
        begun, completed = self.begun[group], self.completed[group]
        most = max(completed[rank] for rank in over)
        text = (
            f"In group {group}, {ranks_text(over)} completed collectives up to {most}, {ranks_text(behind)} only up to "
            f"{number - 1}: collective {number} ({operator}), which they began, has not ended there. "
            f"{ranks_text(behind, capital=True)} {'is' if len(behind) == 1 else 'are'} behind on the GPU"
        )
        late = [rank for rank in behind if begun[rank] < max(begun.values())]
        if late:
            least = min(begun[rank] for rank in late)
            who = "" if late == list(behind) else f"{ranks_text(late)} "
            text += f", and {who}on the host, too: begun up to {least}, others up to {max(begun.values())}"
        return f"{text}."

    def _unpaired(self) -> Iterator[Fault]:
        """Yield sends and receives that wait for their other side; torch records those of NCCL."""
        messages: dict[tuple[str, tuple[int, int]], dict[int, Calls]] = {}
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if call.is_p2p and (pair := peers(call, self.members(call.group))) and rank in pair:
                    messages.setdefault((call.group, pair), {}).setdefault(rank, []).append(call)
        for (group, pair), sides in messages.items():
            for rank in sides:
                if fault := self._message(group, pair, rank, sides):
                    yield fault

    def _message(self, group: str, pair: tuple[int, int], rank: int, sides: Mapping[int, Calls]) -> Fault | None:
        """Return what is wrong with the first open message of a pair on one side, ``rank``.

        The n-th send belongs to the n-th receive, where both dumps go back to the first; else the open ones are paired.
        """
        source, target = pair
        other = target if rank == source else source
        ours, theirs = sides[rank], sides.get(other, [])
        at = next((at for at, call in enumerate(ours) if not call.is_over), None)
        if at is None:
            return None
        call = ours[at]
        is_counted = not self.is_open_only and all(side in self.dumps and self.dumps[side].is_whole for side in pair)
        match = next(iter(theirs[at:]) if is_counted else (one for one in theirs if not one.is_over), None)
        does, side = ("send to", "receive") if rank == source else ("receive from", "send")
        place = group, call.number, call.operator
        begun = f"In group {group}, {ranks_text([rank])} waits to {does} {ranks_text([other])}"
        created = call.created_ns or 0
        if match is None:
            text = f"{begun}."
            if is_counted:
                text = f"{begun}, which has not begun to {side}."
                if theirs:
                    text = (
                        f"{begun} their message {at + 1}; {ranks_text([other])} has begun to {side} only {len(theirs)}."
                    )
            elif other in self.dumps:
                text = f"{begun}, which has no open {side} in its dump (a completed one may be left out)."
            return Fault("missing", *place, [other], [rank], text, created)
        sent, received = (call, match) if rank == source else (match, call)
        if (rank == source or match.is_over) and _total(sent.input_sizes) != _total(received.output_sizes):
            text = f"{begun}: {_text([call])} against {_text([match])}"
            text += "." if is_counted else ", if these are one message: the dumps do not go back to the first."
            return Fault("sizes", *place, [rank, other], [rank, other], text, created)
        # Behind an earlier call the GPU has not come to this one.
        if match.is_over and call is self._open_call(rank):
            text = f"{begun}, which has completed its side of it: {ranks_text([rank])} is behind on the GPU."
            return Fault("gpu", *place, [rank], [rank], text, created)
        return None

    def _causes(self, faults: Sequence[Fault]) -> list[Fault]:
        by_kind: dict[str, list[Fault]] = {}
        for fault in sorted(faults, key=lambda one: one.created_ns):
            by_kind.setdefault(fault.kind, []).append(fault)
        missing, stalled, behind = (by_kind.pop(kind, []) for kind in ("missing", "stalled", "gpu"))
        stalled += by_kind.pop("unknown", [])
        causes = [fault for several in by_kind.values() for fault in several]
        waiting = {rank for fault in causes for rank in fault.waiting}
        for fault in behind:  # one for each rank, the first: the groups after it inherit it
            if set(fault.culprits) - {rank for cause in causes for rank in cause.culprits}:
                causes.append(fault)
        ahead = {} if behind else self._ahead(missing, stalled)
        causes += ahead.values()
        waiting |= {rank for fault in (*missing, *causes) for rank in fault.waiting}
        are_in_call = {rank for rank in self.dumps if self._open_call(rank)}
        for fault in missing:
            if fault.group in ahead:
                continue
            # In dumps of open calls, a rank may have completed its side of a message.
            excused = waiting | are_in_call if behind or (self.is_open_only and not self._calls(fault)) else waiting
            known = [rank for rank in fault.culprits if rank in self.dumps and rank not in excused]
            # A dump that misses explains no GPU that is behind in a group of which all ranks have one.
            gone = [rank for rank in fault.culprits if rank not in self.dumps and (not behind or rank in self.damaged)]
            if known:
                elsewhere = any(self._open_call(rank) for rank in known)
                causes.append(replace(fault, kind="group" if elsewhere else "missing", culprits=known))
            elif gone:
                causes.append(replace(fault, kind="no dump", culprits=gone, text=f"{fault.text} {self._left(gone)}"))
        if not causes and missing:  # they wait for one another
            causes = _ahead_of_many(missing) or [self._first_in(circle, missing) for circle in _circle(missing)]
        return causes or self._crossed(stalled) or self._unseen_circle(stalled) or self._first(stalled)

    def _first_in(self, circle: Fault, missing: Sequence[Fault]) -> Fault:
        """Name those of a circle who came to their call without one that they began before it in earlier steps."""
        awaited = {rank: {one.group for one in missing if rank in one.culprits} for rank in circle.culprits}
        found = ((rank, self._skipped(rank, awaited[rank])) for rank in circle.culprits)
        skipped = {rank: call for rank, call in found if call is not None}
        if not 0 < len(skipped) < len(circle.culprits):
            return circle
        told = (
            f"{ranks_text([rank], capital=True)} came there without the {call.operator} of group {call.group} that it "
            "began before it in earlier steps."
            for rank, call in skipped.items()
        )
        text = f"{circle.text.partition(_ONE_OF_THEM)[0]} {' '.join(told)}"
        return replace(circle, culprits=sorted(skipped), text=text)

    def _skipped(self, rank: int, awaited: Collection[str]) -> Call | None:
        """Return a call that a rank began each time before it came to one like its open call, but not this time.

        Args:
            awaited: the groups in which others wait for it.
        """
        last = self._open_call(rank)
        if last is None:
            return None
        before: list[dict[tuple[Any, ...], Call]] = [{}]
        for call in self.dumps[rank].calls:
            if call is last:
                break
            if _kind(call) == _kind(last):
                before.append({})
            else:
                before[-1][_kind(call)] = call
        *earlier, now = before[1:] or [{}]
        lacking = [[call for kind, call in one.items() if kind not in now] for one in earlier]
        if not lacking or not all(lacking):
            return None
        return next((call for one in lacking for call in one if call.group in awaited), None)

    def _first(self, stalled: Sequence[Fault]) -> list[Fault]:
        """Leave out those whose ranks wait in an earlier one, which they inherit; all where none is the first."""
        few = [fault for fault in stalled if fault.culprits] or stalled
        orders = [{rank: calls[0].order for rank, calls in self._calls(fault).items()} for fault in few]
        firsts = [
            fault
            for fault, order in zip(few, orders, strict=True)
            if not any(other.get(rank, order[rank]) < order[rank] for other in orders for rank in order)
        ]
        return firsts or list(few)

    def _calls(self, fault: Fault) -> dict[int, Calls]:
        """Return the calls that a fault is about, by rank; none of a message, whose number is none of collectives."""
        if "->" in fault.operator or "<-" in fault.operator:
            return {}
        return self.groups.get(fault.group, {}).get(fault.number, {})

    def _unseen_circle(self, stalled: Sequence[Fault]) -> list[Fault]:
        """Find ranks that wait alone, each in a group of its own, of which the dumps do not list the ranks.

        A group has at least two ranks, so each waits for another one; where all do, some wait in a circle.
        """
        alone = [fault for fault in stalled if len(fault.waiting) == 1 and not self.knows_members(fault.group)]
        if len(alone) < 2 or {fault.waiting[0] for fault in alone} != {*self.world}:
            return []
        alone.sort(key=lambda fault: fault.waiting)
        places = ", ".join(f"{ranks_text(fault.waiting)} in group {fault.group}" for fault in alone)
        text = (
            f"Groups wait for each other in a circle: {places}. Each waits for a rank that waits in another one, if "
            "these are the dumps of all ranks; which ranks belong to these groups, they do not say."
        )
        return [replace(alone[0], kind="group", culprits=[*self.world], waiting=[*self.world], text=text)]

    def _left(self, gone: Sequence[int]) -> str:
        """Return why there are no calls of these ranks."""
        why = {False: "left no dump: ended before, or the file is not among these.", True: "left a damaged dump."}
        ranks = {known: [rank for rank in gone if (rank in self.damaged) == known] for known in why}
        return " ".join(f"{ranks_text(ranks[one], capital=True)} {text}" for one, text in why.items() if ranks[one])

    @cached_property
    def overwritten(self) -> list[str]:
        """Return a sentence on ranks whose recorder has lost the collective that hangs; none where all kept it."""
        lost = []
        for rank, dump in self.dumps.items():
            oldest = {(call.group, call.is_p2p): call for call in reversed(dump.calls)}
            for call in oldest.values():
                one = None if call.is_p2p else dump.progress.get(call.group)
                # Dumps of open calls only have no completed ones before them.
                is_lost = dump.is_cut and self.holds_completed if one is None else one.completed + 1 < call.number
                if is_lost and call.number > 1 and not call.is_over:
                    lost.append(rank)
                    break
        if not lost:
            return []
        began = f"{ranks_text(lost, capital=True)} began more after the one that hangs than the recorder keeps"
        return [f"{began}, so that the cause may be overwritten: make it larger, with TORCH_FR_BUFFER_SIZE=20000."]

    def places(self) -> list[str]:
        """Return where the culprits are, a sentence each."""
        texts = []
        for rank in sorted(self.dumps.keys() & self.blamed)[:_MAX_PLACES]:
            calls = self.dumps[rank].calls
            own = next((call for call in calls if self._is_fault(call, rank)), None)
            call = own or self._open_call(rank) or next(reversed(calls), None)
            did = "has begun none" if self.holds_completed else "has no open call"
            if call is not None:
                at = f", at {user_line(stack)}" if (stack := call.stack) else ""
                last = "is in" if not call.is_over else "began" if call is not calls[-1] else "has last begun"
                what = "message" if call.is_p2p else "collective"
                did = f"{last} {what} {call.number} ({call.operator}) of group {call.group}{at}"
            texts.append(f"{ranks_text([rank], capital=True)} {did}.")
        return texts

    def _ahead(self, missing: Sequence[Fault], stalled: Sequence[Fault]) -> dict[str, Fault]:
        """Find, by group, a few ranks whose collective the others never begin, ahead of one that all began alike.

        NCCL's calls return at once: the few begin the next one, too, and their GPUs do not come to it.
        """
        found = {}
        for fault, other in product(missing, stalled):
            if not self._calls(fault):
                continue
            few = [rank for rank in fault.waiting if rank in other.waiting]
            many = set(fault.culprits) & set(other.waiting)
            begun, next_begun = self._calls(fault), self._calls(other)
            came_first = all(begun[rank][0].order < next_begun[rank][0].order for rank in few if rank in begun)
            if not other.culprits and begun and few and len(few) < len(many) == len(fault.culprits) and came_first:
                after = f"They wait in collective {other.number} of group {other.group}, which {ranks_text(few)} began"
                text = f"{fault.text} {after} after it."
                found[fault.group] = replace(fault, kind="group", culprits=few, text=text)
        return found

    def _crossed(self, stalled: Sequence[Fault]) -> list[Fault]:
        """Find two collectives that some ranks began in the other order: each blocks the other on the GPU."""
        for one, other in combinations(stalled, 2):
            orders: dict[bool, list[int]] = {}
            calls = self._calls(one), self._calls(other)
            for rank in sorted(calls[0].keys() & calls[1].keys()):
                orders.setdefault(calls[0][rank][0].order < calls[1][rank][0].order, []).append(rank)
            if len(orders) == 2:
                first, second = (f"collective {fault.number} of group {fault.group}" for fault in (one, other))
                text = (
                    f"{ranks_text(orders[True], capital=True)} began {first} before {second}, "
                    f"{ranks_text(orders[False])} after it."
                )
                return [replace(one, kind="order", culprits=min(orders.values(), key=len), text=text)]
        return []

    def _is_fault(self, call: Call, rank: int) -> bool:
        """Return whether a cause is about this call of a rank: it began something else than the others."""
        return any(
            (call.group, call.number, call.is_p2p) == (fault.group, fault.number, False) and rank in fault.culprits
            for fault in self.causes
        )

    def _open_call(self, rank: int) -> Call | None:
        return next((call for call in self.dumps[rank].calls if not call.is_over), None)

    def rows(self) -> list[dict[str, Any]]:
        """Return where each rank is: in the collective of the first cause, in another, or after its last."""
        rows = []
        cause = self.causes[0] if self.causes else None
        begun = self._calls(cause) if cause else {}
        for rank, dump in self.dumps.items():
            call = next(iter(begun.get(rank, ())), self._open_call(rank)) or next(reversed(dump.calls), None)
            rows.append(_row(rank, dump, call))
        return rows

    def notes(self) -> list[str]:
        notes = []
        told = {*self.dumps, *self.blamed, *self.damaged}
        if absent := [rank for rank in self.world if rank not in told]:
            notes.append(f"{ranks_text(absent, capital=True)} left no dump.")
        last = [call for dump in self.dumps.values() for call in dump.calls[-1:]]
        if last and not any(call.stack for call in last):
            notes.append("The dumps have no stacks: torch writes them into pickles only.")
        states = {call.state for dump in self.dumps.values() for call in dump.calls}
        missing = {rank for fault in self.causes if fault.kind == "missing" for rank in fault.culprits}
        if len(missing) > 1 and states & _OF_GLOO:
            notes.append(
                "gloo records no sends and receives: a rank that waits in one looks like one that did not come."
            )
        if self.groups.keys() - {group for dump in self.dumps.values() for group in dump.members}:
            notes.append(
                "No dump lists the ranks of its groups: each is taken to have those seen in it, the default group all."
            )
        return notes


_ONE_OF_THEM = (
    " At least one of these ranks begins its groups' collectives in another order than the rest, or left one out."
)


def _kind(call: Call) -> tuple[Any, ...]:
    """Return what is alike in the calls of one place in the script."""
    return call.group, call.is_p2p, call.operator, call.input_sizes


def _ahead_of_many(faults: Sequence[Fault]) -> list[Fault]:
    """Return what waits for a few ranks that wait for many others, where without these no ranks wait in a circle.

    Such ranks are in the wrong place: a loop that ended early, a collective that they begin alone or have left out.
    """
    for fault in sorted(faults, key=lambda one: len(one.waiting) / max(1, len(one.culprits))):
        rest = [other for other in faults if other is not fault]
        if len(fault.waiting) < len(fault.culprits) and not _circle(rest):
            few = {*fault.waiting}
            found = [replace(other, kind="group") for other in rest if {*other.culprits} <= few]
            return found or [replace(fault, kind="group", culprits=sorted(few))]
    return []


def _circle(faults: Sequence[Fault]) -> list[Fault]:
    """Return ranks of which each waits for the next, and the last for the first, as one fault; none without."""
    waits: dict[int, Fault] = {}
    for fault in faults:
        for rank in fault.waiting:
            waits.setdefault(rank, fault)
    for first in sorted(waits):
        chain = [first]
        while chain[-1] in waits and (following := min(waits[chain[-1]].culprits)) not in chain:
            chain.append(following)
        if chain[-1] in waits:
            chain = chain[chain.index(min(waits[chain[-1]].culprits)) :]
            pairs = zip(chain, [*chain[1:], chain[0]], strict=True)
            steps = (
                f"{ranks_text([one])} in group {waits[one].group} for {ranks_text([next_])}" for one, next_ in pairs
            )
            text = f"Groups wait for each other in a circle: {', '.join(steps)}.{_ONE_OF_THEM}"
            return [replace(waits[chain[0]], kind="group", culprits=sorted(chain), waiting=sorted(chain), text=text)]
    return []


def _mismatch(numbers: Numbers, number: int) -> tuple[str, list[int], str] | None:
    """Return what ranks do not agree on in a collective, which are in the minority, and a sentence on it."""
    begun = numbers[number]
    for kind, aspect in _ASPECTS.items():
        by_value: dict[tuple[object, ...], list[int]] = {}
        for rank in sorted(begun):
            if value := aspect(begun[rank]):
                by_value.setdefault(value, []).append(rank)
        if len(by_value) < 2:
            continue
        usual, *rest = sorted(by_value.values(), key=len, reverse=True)
        odd = sorted(rank for ranks in rest for rank in ranks)
        first, *others = (f"{_text(begun[ranks[0]])}" for ranks in (usual, *rest))
        said = (f"{ranks_text(ranks)} as {text}" for ranks, text in zip(rest, others, strict=True))
        text = f"{ranks_text(usual)} began collective {number} as {first}, {', '.join(said)}."
        culprits = odd if len(usual) > len(rest[0]) else sorted(begun)
        if order := _order(numbers, number, usual[0], rest[0][0]):
            return "order", culprits, f"{text} {order}"
        return kind, culprits, text
    return None


def _order(numbers: Numbers, number: int, usual: int, odd: int) -> str:
    """Return how the order of a rank's collectives differs from that of the others; "" where that can't be seen."""
    ours, theirs = numbers[number][usual], numbers[number][odd]
    known = [other for other, begun in sorted(numbers.items()) if _alike(begun.get(usual), theirs)]
    if later := [other for other in known if other > number]:
        return f"The others began that one as collective {later[0]}: the order differs."
    for before in (other - 1 for other in known if other < number):
        if _alike(numbers.get(before, {}).get(usual), ours):
            return f"Before, that one followed theirs (collectives {before}, {before + 1}): the order differs."
    # A collective that the others never begin is no matter of order, even if theirs comes next.
    following = (other for other, begun in sorted(numbers.items()) if other > number and _alike(begun.get(odd), ours))
    if known and (other := next(following, None)):
        return f"{ranks_text([odd], capital=True)} began theirs as collective {other}: the order differs."
    return ""


def _row(rank: int, dump: Dump, call: Call | None) -> dict[str, Any]:
    stack = call.stack if call else []
    fields = ("group", "number", "operator", "input_sizes", "output_sizes", "dtypes", "state", "created_ns")
    return {
        "rank": rank,
        "file": str(dump.path),
        **{name: getattr(call, name, None) for name in fields},
        "line": user_line(stack) if stack else None,
        "stack": [{"function": name, "file": file, "line": line} for file, line, name in stack],
    }


# NCCL's own tools count collectives, by operator; what each is, and who waits for whom, they do not say.


def _of_counts(dumps: Dumps) -> tuple[list[Fault], list[dict[str, Any]], list[str]]:
    did = "began" if dumps.source == "NCCL RAS" else "completed"
    faults: list[Fault] = []
    rows: list[dict[str, Any]] = []
    for one in dumps.communicators.values():
        faults += _behind(one, did)
        for rank, place in sorted(one.ranks.items()):
            counts = {operator: numbers[rank] for operator, numbers in one.counts.items() if numbers.get(rank)}
            rows.append({"rank": rank, "group": one.group, "counts": counts, "place": place})
    return faults, rows, ["Ranks are numbered within each communicator, as NCCL counts them."]


def _behind(one: Counts, did: str) -> Iterator[Fault]:
    for rank, state in sorted(one.silent.items()):
        text = f"In group {one.group}, {ranks_text([rank])} {state}."
        yield Fault("no dump", one.group, 0, "", [rank], sorted(one.ranks), text, is_cause=True)
    for operator, numbers in one.counts.items():
        lasts = {rank: (numbers.get(rank, 0), operator) for rank in sorted(one.ranks)}
        if text := who_is_behind(one.group, lasts, did):
            most = max(lasts.values())[0]
            behind = [rank for rank, (number, _) in lasts.items() if number < most]
            waiting = [rank for rank in lasts if rank not in behind]
            yield Fault("missing", one.group, most, operator, behind, waiting, text, is_cause=True)
