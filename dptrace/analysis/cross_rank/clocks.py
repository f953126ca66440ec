"""Offsets between the clocks of the ranks, their uncertainty, and whether a difference exceeds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.analysis.matching.pairing import READ_NS, Offset, estimate_offsets
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import Int64, unique
from dptrace.core.units import MINUS, device_names, duration, plural, ranks_text, signed_duration
from dptrace.timeline.model import UNKNOWN, Kind, Timeline

# Bounds on clock offsets from messages between ranks: a message cannot arrive before it was sent, and gloo sends one
# when its receiver has asked for it.


_MAX_SETS = 512
"""Most sets of ranks compared with each other; the work grows with the third power."""
_BELIEVED = 100
"""One message in this many, the tightest, is ignored: a wrong bound is worse than a loose one."""
_ENDS_NS = 20_000
"""How long before the end of its kernel a GPU has sent the last of a message, at most."""


def connect_by_messages(
    messages: _Messages,
    offsets: list[Offset],
    reference: list[int],
    misfits: Sequence[int] = (),
) -> set[int]:
    """Compare, in place, the clocks of devices that only messages connect; return these devices.

    A receive ends after its message was sent. This bounds the offset of the two clocks from one side; messages in the
    other direction, or around a ring, bound it from the other side; with gloo, a send ends after its receive began. The
    offset is the midpoint. Sets of devices between which nothing connects, as replicas of a pipeline, stay apart.

    Args:
        misfits: devices whose collectives do not match the others'; their messages are ignored.
    """
    heads = sorted(set(reference) - set(misfits))
    if not 1 < len(heads) <= _MAX_SETS:
        return set()
    bounds = _closed(_bounds(messages, offsets, reference, heads))
    connected, firsts = set(), [0]
    for place, head in enumerate(heads[1:], 1):
        least, most = -bounds[place, firsts], bounds[firsts, place]
        bounded = np.flatnonzero(np.isfinite(least) & np.isfinite(most) & (least <= most))
        if not len(bounded):
            firsts.append(place)
            continue
        to = bounded[0]
        middle, half_range = float(least[to] + most[to]) / 2, float(most[to] - least[to]) / 2
        for device, other in enumerate(reference):
            if other == head:
                offset = offsets[device]
                offsets[device] = replace(
                    offset, ahead_ns=offset.ahead_ns + middle, uncertainty_ns=offset.uncertainty_ns + half_range
                )
                reference[device] = heads[firsts[to]]
                connected.add(device)
    return connected


def _bounds(
    messages: _Messages,
    offsets: Sequence[Offset],
    reference: Sequence[int],
    heads: Sequence[int],
) -> NDArray[np.float64]:
    """Return, for each pair of sets of devices, the most by which the second's clock can be ahead, in ns."""
    bounds = np.full((len(heads), len(heads)), np.inf)
    place = np.full(len(offsets), -1)
    place[list(heads)] = np.arange(len(heads))
    set_of = place[np.asarray(reference, np.int64)]
    one, other, began, ended = messages
    ahead, drift, at, open_ns = (
        np.array([getattr(offset, name) for offset in offsets])
        for name in ("ahead_ns", "drift", "at_ns", "uncertainty_ns")
    )
    # By how much the second clock is ahead at most: its end minus the first's beginning, on the clocks' references.
    aheads = (ahead[one] + drift[one] * (began - at[one])) - (ahead[other] + drift[other] * (ended - at[other]))
    most_ns = (ended - began) + aheads + open_ns[one] + open_ns[other]
    first, second = set_of[one], set_of[other]
    known = (first >= 0) & (second >= 0)
    pair, most_ns = first[known] * len(heads) + second[known], most_ns[known]
    order = np.lexsort((most_ns, pair))
    pairs, begin, count = np.unique(pair[order], return_index=True, return_counts=True)
    bounds.flat[pairs] = most_ns[order[begin + count // _BELIEVED]]
    np.fill_diagonal(bounds, 0.0)
    return bounds


class _Messages(NamedTuple):
    """Calls of two devices of which the first begins before the second ends, on one clock; an entry each."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    began_ns: Int64
    ended_ns: Int64

    @classmethod
    def of(cls, matches: Matches, devices: Sequence[DeviceFigures]) -> _Messages:
        """Take the send before its receive; with gloo, also the receive before its send."""
        pairs = matches.first[:-1][(matches.kind == "send_recv") & (np.diff(matches.first) == 2)]
        members, none = np.stack((pairs, pairs + 1), axis=1), np.empty(0, np.int64)
        count = np.array([int((device.timeline.collective >= 0).sum()) for device in devices], np.int64)
        found = [_sends(device) for device in devices] if len(pairs) else []
        sends, began = (np.concatenate(columns) for columns in zip(*found, strict=True)) if found else (none, none)
        call = (np.cumsum(count) - count)[matches.device[members]] + matches.index[members]
        sent = sends[call].astype(np.bool_)
        known = sent.sum(axis=1) == 1
        members, call, sent = members[known], call[known], sent[known]
        order = np.where(sent[:, :1], [[0, 1]], [[1, 0]])
        members, call = np.take_along_axis(members, order, 1), np.take_along_axis(call, order, 1)
        on_cpu = np.array([device.timeline.on_cpu for device in devices], np.bool_)
        both = on_cpu[matches.device[members]].all(axis=1)
        first, second = (np.concatenate((members[:, i], members[both, 1 - i])) for i in (0, 1))
        began_ns = np.concatenate((began[call[:, 0]], began[call[both, 1]]))
        return cls(matches.device[first], matches.device[second], began_ns, matches.end_ns[second])


def _sends(device: DeviceFigures) -> tuple[NDArray[np.bool_], Int64]:
    """Return whether each of a device's communication intervals is a send, and when its message was not whole yet.

    Gloo sends a message before its interval begins: in the call that launches it. A GPU's kernel sends until it ends.
    """
    timeline = device.timeline
    collective_ids = timeline.collective[timeline.collective >= 0].tolist()
    comm = timeline.kind == Kind.COMMUNICATION
    start, end, launch = timeline.start_ns[comm], timeline.end_ns[comm], timeline.launch_ns[comm]
    before = np.maximum(start, end - _ENDS_NS)
    if timeline.on_cpu:
        before = np.where(launch == UNKNOWN, start, np.minimum(start, launch))
    return np.array([timeline.collectives[i].kind == "send" for i in collective_ids], np.bool_), before


def _closed(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tightest bounds over all paths."""
    for between in range(len(bounds)):
        bounds = np.minimum(bounds, bounds[:, between : between + 1] + bounds[between])
    return bounds


# Ranks that share a clock: CPUs of one machine need no clock comparison.


def shared_clock_devices(
    devices: Sequence[DeviceFigures],
    metadata: Mapping[str, Any],
    offsets: Sequence[Offset] = (),
    reference: Sequence[int] = (),
) -> list[int]:
    """Return for each device the first device that shares its clock: itself if no earlier one does.

    GPU kernels are excluded: the driver converts their times from the GPU's clock to the host's. Where ``run.json``
    does not name a rank's host, its trace may. Since several machines may have that name, it counts only where the
    collectives agree: by the clocks as they are, no rank leaves one before all others have arrived. No name counts
    where the ends of collectives show that the clocks of its ranks are a constant time apart.

    Args:
        metadata: the contents of ``run.json``, which names each rank's host.
        offsets, reference: of the devices, from the ends of their collectives; without them, ``run.json`` decides.
    """
    entries = rank_entries(metadata)
    # Different machines may have the same host name, so the node that the launcher assigned counts too.
    host = {entry.get("rank"): (entry.get("node"), str(entry["host"])) for entry in entries if entry.get("host")}
    first: dict[object, int] = {}
    shared = []
    for place, device in enumerate(devices):
        timeline = device.timeline
        machine: object = host.get(timeline.rank)
        if machine is None and timeline.host_name and offsets and offsets[place].agrees:
            machine = reference[place], timeline.host_name
        shared.append(first.setdefault(machine, place) if timeline.on_cpu and machine is not None else place)
    pairs = [(place, other) for place, other in enumerate(shared) if offsets and reference[place] == reference[other]]
    wrong = {other for place, other in pairs if _apart(offsets[place], offsets[other])}
    return [place if other in wrong else other for place, other in enumerate(shared)]


_ONE_MACHINE_NS = 1_000_000
"""How far apart what happens at once is recorded on one machine at most, as where a thread has to wait for a core."""
_BEFORE_NS = 100_000
"""By how much a message is recorded to arrive before it was sent, on one machine, at most."""
_SHARED_APART_NS = 1e9
"""On one clock, ends of the same collectives are never this far apart; those of two recordings are."""


def _apart(offset: Offset, other: Offset) -> bool:
    """Whether two clocks with one reference are a constant time apart, which the same collectives show."""
    ahead_ns = abs(offset.ahead_ns - other.ahead_ns)
    near_ns = max(_ONE_MACHINE_NS, offset.transfer_ns, other.transfer_ns)
    constant = abs(offset.drift - other.drift) <= _DRIFT
    return constant and offset.uncertainty_ns + other.uncertainty_ns + near_ns < ahead_ns <= _SHARED_APART_NS


def _without_contradicted(shared: list[int], messages: _Messages) -> list[int]:
    """Return which devices share a clock, without those of a machine whose messages arrive before they are sent."""
    heads = list(range(len(shared)))
    if shared == heads or len(heads) > _MAX_SETS:
        return shared
    most = _bounds(messages, [Offset(0.0, 0.0, 0, 0.0, 0)] * len(heads), heads, heads)
    pairs = np.argwhere(most < -_BEFORE_NS).tolist()
    wrong = {shared[place] for place, other in pairs if shared[place] == shared[other]}
    return [place if other in wrong else other for place, other in enumerate(shared)]


def unify_shared_clocks(offsets: list[Offset], reference: list[int], shared: Sequence[int]) -> None:
    """Assign devices that share a clock the offset of the first of them, in place."""
    for place, other in enumerate(shared):
        if other != place:
            uncertainty = offsets[other].uncertainty_ns + READ_NS
            offsets[place] = replace(offsets[other], uncertainty_ns=uncertainty)
            reference[place] = reference[other]
    for place in range(len(reference)):
        while reference[place] != reference[reference[place]]:
            reference[place] = reference[reference[place]]


UNKNOWN_NS = -1
"""A time that the traces do not show, such as the uncertainty between two clocks that nothing compares."""


class Clocks(msgspec.Struct, frozen=True):
    """How far the clock of each device is ahead of its reference's; one entry per device in each column."""

    offset_ns: Int64
    """Offset at ``at_ns``; 0 if unknown."""
    drift_ppm: NDArray[np.float64]
    """Change of the offset in parts per million; 0 unless it is significant."""
    at_ns: Int64
    uncertainty_ns: Int64
    """Uncertainty against the reference; 0 for the reference itself."""
    collectives: NDArray[np.int32]
    """Number of collectives behind the offset; the smallest number along the chain if other devices lie between."""
    reference: NDArray[np.int32]
    """The device it is compared with; itself if nothing connects it with an earlier device."""
    corrected: NDArray[np.bool_]
    """Whether the offset exceeds its uncertainty: only these clocks are corrected."""
    misfit: NDArray[np.bool_]
    """Whether its collectives end too differently for any clock offset, so that they are different collectives."""
    notes: tuple[str, ...]
    """Notes on the clocks for the user, one sentence each."""

    def align(self, device: int, times: Int64) -> Int64:
        """Convert times of a device's clock to its reference's, in ns; unchanged if the clock is not corrected."""
        if not self.corrected[device]:
            return times
        drift = self.drift_ppm[device] * 1e-6 * (times - self.at_ns[device])
        aligned: Int64 = times - self.offset_ns[device] - np.rint(drift).astype(np.int64)
        return aligned

    def unalign(self, device: int, times: Int64) -> Int64:
        """Convert times of a device's reference to its own clock, in ns: to far less than a clock's uncertainty."""
        return 2 * times - self.align(device, times)

    def between(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> Int64:
        """Return the uncertainty between pairs of devices in ns; UNKNOWN_NS if their clocks cannot be compared."""
        apart = self.uncertainty_ns[first] + self.uncertainty_ns[second]
        connected = self.reference[first] == self.reference[second]
        return np.where(first == second, 0, np.where(connected, apart, UNKNOWN_NS))

    def resolve(self, figure_ns: int, first: int, second: int) -> int | None:
        """Return a difference between two devices' times, or None if it is within the uncertainty of their clocks."""
        open_ns = int(self.between(np.array([first], np.int32), np.array([second], np.int32))[0])
        return figure_ns if open_ns != UNKNOWN_NS and abs(figure_ns) > open_ns else None


def estimate(matches: Matches, devices: Sequence[DeviceFigures], metadata: Mapping[str, Any] | None = None) -> Clocks:
    """Compare the clocks of a run's devices.

    A synchronizing collective ends on all ranks at nearly the same time, however late a rank arrived, so the offset is
    the median difference of these ends. Devices that share no such collective are compared through other devices, with
    the uncertainties added; those without any connection, by the messages they sent each other. Ranks on the CPUs of
    one machine share one clock, as ``run.json`` or the traces say.

    Args:
        metadata: the contents of ``run.json``, which names the host of each rank.
    """
    synchronizing = matches.synchronizing[matches.instance]
    offsets, reference = estimate_offsets(
        matches.instance[synchronizing],
        matches.device[synchronizing],
        matches.start_ns[synchronizing],
        matches.end_ns[synchronizing],
        len(devices),
    )
    messages = _Messages.of(matches, devices)
    shared = shared_clock_devices(devices, metadata or {}, offsets, reference)
    shared = _without_contradicted(shared, messages)
    misfits = _misfits(offsets, reference, shared)
    shared = [i if i in misfits else other for i, other in enumerate(shared)]
    unify_shared_clocks(offsets, reference, shared)
    for i in misfits:
        offsets[i], reference[i] = replace(offsets[i], ahead_ns=0.0, drift=0.0, uncertainty_ns=0.0, count=0), i
    by_messages = connect_by_messages(messages, offsets, reference, misfits)
    names = device_names([(device.timeline.rank, device.timeline.device) for device in devices])
    ahead = np.array([offset.ahead_ns for offset in offsets])
    uncertainty = np.array([offset.uncertainty_ns for offset in offsets])
    drift = np.array([offset.drift for offset in offsets])
    return Clocks(
        offset_ns=np.rint(ahead).astype(np.int64),
        drift_ppm=drift * 1e6,
        at_ns=np.array([offset.at_ns for offset in offsets], np.int64),
        uncertainty_ns=np.ceil(uncertainty).astype(np.int64),
        collectives=np.array([offset.count for offset in offsets], np.int32),
        reference=np.array(reference, np.int32),
        corrected=(np.abs(ahead) > uncertainty) | (drift != 0),
        misfit=np.isin(np.arange(len(devices)), misfits),
        notes=(
            *_shared_note(shared),
            *_notes(offsets, reference, names, misfits, shared, by_messages),
            *_apart_note(devices, reference, names),
        ),
    )


def why_unknown(matches: Matches, clocks: Clocks, most_ns: float) -> str:
    """Return why who waits for whom is unknown: ranks meet whose clocks may be *most_ns* apart; empty if none do."""
    rows = np.flatnonzero(matches.complete[matches.instance])
    first = matches.device[matches.first[matches.instance[rows]]]
    open_ns = clocks.between(matches.device[rows], first)
    unknown = open_ns == UNKNOWN_NS
    unsure = unknown if unknown.any() else open_ns > most_ns
    if not unsure.any():
        return ""
    devices = unique(np.concatenate((matches.device[rows[unsure]], first[unsure]))).tolist()
    of = f"The clocks of {ranks_text(sorted({matches.device_ids[one][0] for one in devices}))}"
    why = (
        "are not known to agree: nothing that they recorded bounds how far they are apart"
        if unknown.any()
        else f"are known to {duration(int(open_ns.max()))} only"
    )
    return f"{of} {why}, so who waits for whom is unknown."


def _shared_note(shared: Sequence[int]) -> tuple[str, ...]:
    if len(shared) > 1 and not any(shared):
        return ("All ranks ran on the CPUs of one machine and share one clock.",)
    if any(other != i for i, other in enumerate(shared)):
        return ("Ranks on the CPUs of the same machine share one clock.",)
    return ()


_SEPARATE_NS = 60_000_000_000
"""Ranks of one run are recorded at the same time, give or take how far the clocks of machines are off."""


def _apart_note(devices: Sequence[DeviceFigures], reference: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """Say where ranks that no collective connects were recorded at another time: they look like another run."""
    spans = [device.timeline.windows.bounds for device in devices]
    for i, (other, span) in enumerate(zip(reference, spans, strict=True)):
        if other == i and len(span) and len(spans[0]):
            before, after = int(spans[0][0] - span[-1]), int(span[0] - spans[0][-1])
            if (gap := max(before, after)) > _SEPARATE_NS:
                times = f"{timedelta(seconds=round(gap / 1e9))} h {'after' if gap == after else 'before'}"
                own = names[i].replace("rank", "Rank", 1)
                text = f"{own} was recorded {times} {names[0]}, by their clocks. These look like two runs"
                return (f"{text}; if they are, open each on its own.",)
    return ()


_MAX_LISTED = 8
"""Devices that a note names."""
_DRIFT = 1e-3
"""Drift that no computer clock reaches: real clocks drift by less than 1e-4."""
_APART_NS = 20e6
"""Uncertainty of an offset from which collectives do not agree on it."""
_ENOUGH = 8
"""From this many collectives on, ends of the same collectives scatter by less than 20 ms."""


def _misfits(offsets: Sequence[Offset], reference: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Return the devices whose collectives cannot be those of their references, whatever their clocks show.

    Ends may scatter, as where cores are busy; where no rank leaves before all others have arrived, they fit.
    """
    misfits = []
    for i, (other, first) in enumerate(zip(reference, shared, strict=True)):
        if first == i and other != i and _misfit(offsets[i]):
            misfits.append(i)
        elif first != i and other in (first, reference[first]):
            ahead_ns = offsets[i].ahead_ns - (offsets[first].ahead_ns if other != first else 0)
            misfits += [i] if abs(ahead_ns) > _SHARED_APART_NS else []
    return misfits


def _misfit(offset: Offset) -> bool:
    scattered = offset.uncertainty_ns > _APART_NS and offset.count >= _ENOUGH
    return not offset.agrees and (abs(offset.drift) > _DRIFT or scattered)


def exclude_misfits(matches: Matches, clocks: Clocks) -> Matches:
    """Return the matches where no collective of a misfit with other devices is complete: it is not one collective.

    What matching reports about a misfit is left out: the note on its clock says that nothing of it matches.
    """
    if not clocks.misfit.any() or not len(matches):
        return matches
    mixed = np.logical_or.reduceat(clocks.misfit[matches.device], matches.first[:-1]) & (np.diff(matches.first) > 1)
    notes = tuple((device, note) for device, note in matches.device_notes if not clocks.misfit[device])
    return replace(matches, complete=matches.complete & ~mixed, device_notes=notes)


def _notes(
    offsets: Sequence[Offset],
    reference: Sequence[int],
    names: Sequence[str],
    misfits: Sequence[int],
    shared: Sequence[int],
    by_messages: Collection[int],
) -> tuple[str, ...]:
    compared = [i for i, other in enumerate(reference) if other != i and shared[i] == i]
    alone = [i for i, other in enumerate(reference) if other == i and i not in reference[:i] and i > 0]
    alone = [i for i in alone if i not in misfits]
    off = [i for i in compared if abs(offsets[i].ahead_ns) > offsets[i].uncertainty_ns or offsets[i].drift]
    notes = []
    if compared and not off:
        worst = max(offsets[i].uncertainty_ns for i in compared)
        notes.append(
            f"The clocks of the ranks agree within {duration(worst)}, as far as the traces show; no time is corrected."
        )
    if len(off) > _MAX_LISTED:
        ends = [one(off, key=lambda i: offsets[i].ahead_ns) for one in (min, max)]
        named = [f"{names[i]}'s is {_off(offsets[i])} {names[reference[i]]}'s" for i in ends]
        notes.append(
            f"{len(off):,} ranks' clocks are off those that they are compared with, and corrected; "
            f"{', '.join(named)}. Each one's offset: --json, or Run.clock_offsets()."
        )
    for i in off if len(off) <= _MAX_LISTED else ():
        source = "messages between them" if i in by_messages else f"{plural(offsets[i].count, 'collective')}"
        drifts = f", drifting by {offsets[i].drift * 1e6:,.1f} ppm".replace("-", MINUS) if offsets[i].drift else ""
        notes.append(
            f"{names[i].replace('rank', 'Rank', 1)}'s clock is {_off(offsets[i])} {names[reference[i]]}'s "
            f"(± {duration(offsets[i].uncertainty_ns)}, from {source}{drifts})."
        )
    if misfits:
        notes.append(
            f"The collectives of {_listed(names, misfits)} do not match the other ranks': their ends differ by more "
            "than any clock offset explains, so their waits, transfers and clocks are not compared. Check that all "
            "traces are from one recording and number their steps the same way."
        )
    if alone:
        notes.append(
            f"No collective connects {_listed(names, alone)} with {names[0]}: the offset of their clocks is unknown."
        )
    return tuple(notes)


def _off(offset: Offset) -> str:
    return f"{duration(abs(offset.ahead_ns))} {'ahead of' if offset.ahead_ns > 0 else 'behind'}"


def _listed(names: Sequence[str], devices: Sequence[int]) -> str:
    first, *others = (names[i] for i in devices[:_MAX_LISTED])
    more = f" and {len(devices) - _MAX_LISTED} more" if len(devices) > _MAX_LISTED else ""
    word = first.replace("rank", "ranks", 1) if others or more else first
    return ", ".join([word, *(name.removeprefix("rank ") for name in others)]) + more


# Move the times of a run's GPUs onto one clock, for pictures and exports that show them together.


_SEEN = 2e-5
"""Share of a step from which a time that is off shows: a tenth of a pixel where the step fills a wide screen."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The correction that moves one GPU's times onto the shared clock."""

    rank: int
    by_ns: int = 0
    """Offset added in the middle of its recording."""
    uncertainty_ns: int = 0
    move: Callable[[Int64], Int64] | None = None
    """Maps times to the shared clock; None where the correction is smaller than its uncertainty."""

    def __call__(self, times: Int64) -> Int64:
        """Move times, keeping their order."""
        return times if self.move is None else self.move(times)

    def back(self, times: Int64) -> Int64:
        """Return times of the shared clock on the GPU's own, to far less than the uncertainty."""
        return 2 * times - self(times)

    def __str__(self) -> str:
        return f"rank {self.rank} by {signed_duration(self.by_ns)} ± {duration(self.uncertainty_ns)}"


def shifts_of(timelines: Sequence[Timeline], clocks: Clocks) -> tuple[Shift, ...]:
    """Return the clock correction of each timeline: none where it is not larger than its uncertainty.

    A drift that changes the offset by less than the uncertainty, or by what no picture of a step shows, is ignored too:
    then the clock is only shifted, and every duration stays as recorded.
    """
    return tuple(_shift(timeline, clocks, number) for number, timeline in enumerate(timelines))


def _shift(timeline: Timeline, clocks: Clocks, number: int) -> Shift:
    # The columns of a large run are mapped from files: only their ends are touched.
    times = np.concatenate((timeline.start_ns[:1], timeline.end_ns[-1:], timeline.windows.bounds))
    if not len(times):
        return Shift(timeline.rank)
    low, high = int(times.min()), int(times.max())
    moments = np.array([low, (low + high) // 2, high], np.int64)
    first, middle, last = (clocks.align(number, moments) - moments).tolist()
    uncertainty = int(clocks.uncertainty_ns[number])
    if max(map(abs, (first, middle, last))) <= uncertainty:
        return Shift(timeline.rank, middle, uncertainty)
    windows = timeline.windows
    step = np.median(windows.wall_by_step) if len(windows) else 0
    if abs(last - first) <= max(uncertainty, _SEEN * step):
        return Shift(timeline.rank, middle, uncertainty, lambda times: times + middle)
    return Shift(timeline.rank, middle, uncertainty, lambda times: clocks.align(number, times))
