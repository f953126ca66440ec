"""Every rank's communication in one table: what is needed to tell which calls are the same collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64
from dptrace.timeline.model import UNKNOWN_GROUP, Collective, Kind
from dptrace.timeline.steps import WHOLE_TRACE

__all__ = ["NO_STEP", "Calls", "Group", "calls_of", "distinct"]

NO_STEP = -1
"""Label of a call outside all steps."""

_SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have come, so all leave about together."""
_SIZED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send", "recv"})
"""Kinds in which all ranks see the same bytes; what is gathered, scattered or exchanged may be cut unevenly."""
_PAIR = 2
_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
# NCCL has one kernel for all of these, so a call whose launch is not in the file can't be told from the others.
_FAMILY = dict.fromkeys(("send", "recv", "send_recv", "all_to_all", "gather", "scatter"), "send_recv")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, as far as the traces tell of it; without a name where they don't."""

    name: str = ""
    ranks: tuple[int, ...] = ()
    """In the whole job; empty where the traces don't list them."""
    size: int = 0
    """How many ranks it has; 0 where that is not known."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Calls:
    """One row per communication interval of every device, device by device, in order of start."""

    device: NDArray[np.int32]
    index: NDArray[np.int32]
    """Which of its device's communication intervals it is."""
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """When it was launched, or UNKNOWN, which is before all."""
    step_index: NDArray[np.int32]
    """Index into ``labels``, or NO_LABEL."""
    step_names: tuple[str, ...]
    device_has_step: NDArray[np.bool_]
    """Labels by devices: whether the device's trace has that step."""
    signature: NDArray[np.int32]
    """Equal where two ranks can tell the same of one collective: kind, group, bytes, dtype, and who sends to whom."""
    family: NDArray[np.int32]
    """Equal where what is left of a collective can be the same when the launch is not in the file: kernel and group."""
    group: NDArray[np.int32]
    """Index into ``groups``."""
    groups: tuple[Group, ...]
    described: NDArray[np.bool_]
    """Whether the trace tells more than the kernel."""
    synchronizing: NDArray[np.bool_]
    """Whether its kind ends on all ranks about together."""
    seq: Int64
    """Sequence number in its group, or -1; those of sends and receives are each rank's own and left out."""
    phase: NDArray[np.uint8]
    collectives: tuple[Collective, ...]
    bytes: Int64
    endpoints: NDArray[np.int32]
    """Of a send and a receive: the ranks it goes from and to; -1 in all others, and where that is not told."""
    unmatchable: NDArray[np.bool_]
    """Whether nothing can be matched with it: several groups have its group's name, and their ranks are not listed, or
    it is sent or received and nothing tells which of several ranks is at the other end."""
    on_cpu: NDArray[np.bool_]
    """Of each device: whether threads do what GPUs do elsewhere, and leave a collective when they get a core."""

    def __len__(self) -> int:
        return len(self.device)


def distinct(first: NDArray[Any], second: NDArray[Any]) -> tuple[Int64, Int64]:
    """Give the pairs of two columns of numbers from 0, each pair once, in order."""
    width = int(second.max(initial=0)) + 1
    pairs = np.unique(first.astype(np.int64) * width + second)
    return pairs // width, pairs % width


class _Ids(dict[tuple[Any, ...], int]):
    def __missing__(self, key: tuple[Any, ...]) -> int:
        return self.setdefault(key, len(self))


_ABOUT = attrgetter("kind", "bytes", "dtype", "group", "group_size", "ranks", "description", "peer")


def calls_of(devices: Sequence[DeviceFigures]) -> Calls:
    """Make the table."""
    numbers = _Ids(), _Ids(), _Ids()
    step_names, device_has_step = _labels(devices)
    tables, collectives = [_EMPTY], list[Collective]()
    for place, device in enumerate(devices):
        columns, own = _columns(device, place, {step_name: i for i, step_name in enumerate(step_names)}, numbers)
        tables.append(columns)
        collectives += own
    table = {name: np.concatenate([columns[name] for columns in tables]) for name in _EMPTY}
    groups = tuple(Group(*key) for key in numbers[2])
    unmatchable = _unmatchable(groups, table["group"], table["device"], table.pop("blind"))
    return Calls(
        **table,
        step_names=step_names,
        device_has_step=device_has_step,
        groups=groups,
        collectives=tuple(collectives),
        unmatchable=unmatchable,
        on_cpu=np.array([device.timeline.on_cpu for device in devices], np.bool_),
    )


_TYPES = {
    **dict.fromkeys(("device", "index", "step_index", "signature", "family", "group"), np.int32),
    **dict.fromkeys(("start_ns", "end_ns", "launch_ns", "seq", "bytes"), np.int64),
    **dict.fromkeys(("described", "synchronizing", "blind"), np.bool_),
    "phase": np.uint8,
}
_EMPTY: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, kind in _TYPES.items()}
_EMPTY["endpoints"] = np.empty((0, 2), np.int32)


def _columns(
    device: DeviceFigures, place: int, number: dict[str, int], numbers: tuple[_Ids, _Ids, _Ids]
) -> tuple[dict[str, NDArray[Any]], list[Collective]]:
    """Make one device's rows, and give the collective of each."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    own = [timeline.collectives[i] if i >= 0 else _UNKNOWN for i in timeline.collective[comm].tolist()]
    steps = [number.get(name, NO_STEP) for name in timeline.windows.names] + [NO_STEP, NO_STEP]
    columns = {
        "device": np.full(len(comm), place),
        "index": np.arange(len(comm)),
        "start_ns": timeline.start_ns[comm],
        "end_ns": timeline.end_ns[comm],
        "launch_ns": timeline.launch_ns[comm],
        "step_index": np.array(steps)[timeline.step[comm]],
        "seq": np.array([c.seq if c.kind not in _POINT_TO_POINT else -1 for c in own], np.int64),
        "bytes": np.array([c.bytes for c in own], np.int64),
        "phase": timeline.phase[comm],
        **_keys(own, timeline.rank, timeline.lane[comm].tolist(), numbers),
    }
    return {name: column.astype(_TYPES.get(name, np.int32), copy=False) for name, column in columns.items()}, own


def _unmatchable(
    groups: Sequence[Group], group: NDArray[np.int32], device: NDArray[np.int32], blind: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell which calls nothing can be matched with; *blind* are those that don't tell who is at the other end."""
    used = np.bincount(distinct(group, device)[0], minlength=len(groups))
    shared = [
        g.name == UNKNOWN_GROUP or bool(g.size and not g.ranks and n > g.size)
        for g, n in zip(groups, used.tolist(), strict=True)
    ]
    unmatchable: NDArray[np.bool_] = np.array(shared, np.bool_)[group] | (blind & (used[group] > _PAIR))
    return unmatchable


_UNKNOWN = Collective("other")


def _labels(devices: Sequence[DeviceFigures]) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Give the steps' names, and which device has which; a trace without marks is a step only where none has marks."""
    names = [device.timeline.windows.names for device in devices]
    if any(own != (WHOLE_TRACE,) for own in names):
        names = [() if own == (WHOLE_TRACE,) else own for own in names]
    step_names = tuple(dict.fromkeys(step_name for own in names for step_name in own))
    found = np.zeros((len(step_names), len(devices)), np.bool_)
    place = {step_name: i for i, step_name in enumerate(step_names)}
    for device, own in enumerate(names):
        found[[place[step_name] for step_name in own], device] = True
    return step_names, found


def _keys(
    own: list[Collective], rank: int, lanes: list[int], numbers: tuple[_Ids, _Ids, _Ids]
) -> dict[str, NDArray[Any]]:
    """Number what makes calls alike, and tell what their kinds mean.

    A call whose launch is not in the file does not name its group; on a stream that only one group uses it is that
    group's, since NCCL's streams each serve one.
    """
    abouts = list(map(_ABOUT, own))
    lane_group = _lane_groups(abouts, lanes)
    known: dict[tuple[Any, ...], tuple[int, ...]] = {}
    rows = []
    for about, lane in zip(abouts, lanes, strict=True):
        row = known.get((about, lane))
        if row is None:
            row = known[about, lane] = _numbered(about, lane_group.get(lane, _NO_GROUP), rank, numbers)
        rows.append(row)
    table = np.array(rows, np.int32).reshape(-1, 8)
    names = "signature", "family", "group", "described", "synchronizing", "blind"
    return {**{name: table[:, i] for i, name in enumerate(names)}, "endpoints": table[:, 6:]}


_NO_GROUP = ("", 0, (), "")


def _numbered(
    about: tuple[Any, ...], lane_group: tuple[Any, ...], rank: int, numbers: tuple[_Ids, _Ids, _Ids]
) -> tuple[int, ...]:
    kind, size, dtype, *group, peer = about
    signatures, families, groups = numbers
    told = bool(size or dtype or group[0] or group[2])
    name, members, ranks, description = group if told else lane_group
    point_to_point = kind in ("send", "recv")
    endpoints = _endpoints(kind, peer, rank, ranks) if point_to_point else (-1, -1)
    # Of several sends and receives in one kernel no more is known than that they are that.
    told = told and (kind != "send_recv" and (not point_to_point or endpoints[0] >= 0))
    counted = size if told and kind in _SIZED else 0
    signature = ("send_recv" if point_to_point else kind, counted, dtype, name, ranks, endpoints)
    family = (_FAMILY.get(kind, kind), name, ranks)
    key = (name, ranks, members or len(ranks), description)
    blind = point_to_point and endpoints[0] < 0
    return (
        signatures[signature],
        families[family],
        groups[key],
        told,
        kind in _SYNCHRONIZING,
        blind,
        endpoints[0],
        endpoints[1],
    )


def _lane_groups(abouts: list[tuple[Any, ...]], lanes: list[int]) -> dict[int, tuple[Any, ...]]:
    """Give the group of each stream that only one group uses; of every stream where there is only one at all."""
    used = {(lane, *about[3:7]) for about, lane in set(zip(abouts, lanes, strict=True)) if about[3] or about[5]}
    by_lane: dict[int, set[tuple[Any, ...]]] = {lane: set() for lane in lanes}
    for lane, name, size, ranks, description in used:
        by_lane[lane].add((name, size, ranks, description))
    every = set().union(*by_lane.values())
    if len(every) == 1:
        return dict.fromkeys(by_lane, every.pop())
    return {lane: found.pop() for lane, found in by_lane.items() if len(found) == 1}


def _endpoints(kind: str, peer: int, rank: int, ranks: tuple[int, ...]) -> tuple[int, int]:
    """Give which rank a send or a receive goes from and to, where that is told."""
    if peer < 0 and len(ranks) == 2 and rank in ranks:
        peer = ranks[1 - ranks.index(rank)]
    if peer < 0:
        return -1, -1
    return (rank, peer) if kind == "send" else (peer, rank)
