"""The communication calls of all ranks in one table, with the keys that matching needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.array_file import let_go
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import Int64, unique
from dptrace.model.collectives import COLLECTIVES, POINT_TO_POINT, CollectiveKind
from dptrace.readers.trace import UNKNOWN_GROUP
from dptrace.timeline.model import Collective, Kind
from dptrace.timeline.steps import WHOLE_TRACE

NO_STEP = -1
"""Step index of a call outside all steps."""

_PAIR = 2
"""Ranks of a group in which a message's peer needs no record: it is the other one."""


class Group(msgspec.Struct, frozen=True):
    """A process group, as far as the traces describe it; the name is empty if unknown."""

    name: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks; empty if the traces do not list them."""
    size: int = 0
    """Number of ranks; 0 if unknown."""
    description: str = ""


class Calls(msgspec.Struct, frozen=True):
    """One row per communication interval, sorted by device and start."""

    device: NDArray[np.int32]
    index: NDArray[np.int32]
    """Index among its device's communication intervals."""
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """Time of the launch, or UNKNOWN, which sorts before all times."""
    step_index: NDArray[np.int32]
    """Index into ``step_names``, or NO_STEP."""
    step_names: tuple[str, ...]
    device_has_step: NDArray[np.bool_]
    """Steps × devices: whether the device's trace has that step."""
    signature: NDArray[np.int32]
    """Number of what must agree between ranks: kind, group, bytes, dtype, and the endpoints of a message."""
    family: NDArray[np.int32]
    """Number of what must agree even for calls without a recorded launch: kernel and group."""
    group: NDArray[np.int32]
    """Index into ``groups``."""
    groups: tuple[Group, ...]
    described: NDArray[np.bool_]
    """Whether the trace describes more than the kernel."""
    synchronizing: NDArray[np.bool_]
    """Whether it ends on all ranks at about the same time, by its kernel or else its kind."""
    seq: Int64
    """Sequence number in its group, or -1; sends and receives have -1, since each rank numbers its own."""
    phase: NDArray[np.uint8]
    collectives: tuple[Collective, ...]
    bytes: Int64
    endpoints: NDArray[np.int32]
    """Of a send or receive: source and target rank; -1 for other kinds and where not recorded."""
    unmatchable: NDArray[np.bool_]
    """Whether it cannot be matched: several groups share its group's name and their ranks are not listed, or it is a
    message whose peer is not recorded in a group of several ranks."""
    on_cpu: NDArray[np.bool_]
    """Of each device: whether it is a CPU, whose threads leave a collective only when they get a core."""

    def __len__(self) -> int:
        return len(self.device)


def unique_pairs(first: NDArray[Any], second: NDArray[Any]) -> tuple[Int64, Int64]:
    """Return the distinct pairs of two columns of non-negative numbers, in order."""
    width = int(second.max(initial=0)) + 1
    pairs = unique(first.astype(np.int64) * width + second)
    return pairs // width, pairs % width


class _Ids(dict[tuple[Any, ...], int]):
    def __missing__(self, key: tuple[Any, ...]) -> int:
        return self.setdefault(key, len(self))


_BEFORE_RANKS = attrgetter("kind", "bytes", "dtype", "group", "group_size")
_AFTER_RANKS = attrgetter("description", "peer", "synchronizes")


class _Members:
    """The ranks of a group, in keys: to hash a list of thousands for each call would take their number squared."""

    __slots__ = ("ranks",)

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks

    def __len__(self) -> int:
        return len(self.ranks)


_NO_MEMBERS = _Members(())


class _Numbers:
    """The numbers of signatures, families and groups, and the one object that stands for equal lists of ranks."""

    def __init__(self) -> None:
        self.signatures, self.families, self.groups = _Ids(), _Ids(), _Ids()
        self._members: dict[tuple[int, ...], _Members] = {(): _NO_MEMBERS}

    def properties(self, collectives: Sequence[Collective]) -> list[tuple[Any, ...]]:
        """Return the properties of calls, with members for ranks; each list of ranks is hashed once."""
        lists = {id(collective.ranks): collective.ranks for collective in collectives}
        members = {number: self._members.setdefault(ranks, _Members(ranks)) for number, ranks in lists.items()}
        found = []
        for collective in collectives:
            before, after = _BEFORE_RANKS(collective), _AFTER_RANKS(collective)
            found.append((*before, members[id(collective.ranks)], *after))
        return found


def calls_of(devices: Sequence[DeviceFigures]) -> Calls:
    """Build the table of all devices' calls."""
    numbers = _Numbers()
    step_names, device_has_step = _labels(devices)
    tables, collectives = [_EMPTY], list[Collective]()
    for place, device in enumerate(devices):
        columns, own = _columns(device, place, {step_name: i for i, step_name in enumerate(step_names)}, numbers)
        tables.append(columns)
        collectives += own
        let_go(device.timeline.start_ns)
    table = {name: np.concatenate([columns[name] for columns in tables]) for name in _EMPTY}
    groups = tuple(Group(name, members.ranks, *rest) for name, members, *rest in numbers.groups)
    unmatchable = _unmatchable(groups, table["group"], table["device"], table.pop("blind"))
    ranks = np.array([device.timeline.rank for device in devices], np.int32)
    unmatchable &= ~_between_global_ranks(groups, table, ranks)
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
    device: DeviceFigures, place: int, number: dict[str, int], numbers: _Numbers
) -> tuple[dict[str, NDArray[Any]], list[Collective]]:
    """Build one device's rows; return them and the collective of each."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    collectives = [timeline.collectives[i] if i >= 0 else _UNKNOWN for i in timeline.collective[comm].tolist()]
    steps = [number.get(name, NO_STEP) for name in timeline.windows.names] + [NO_STEP, NO_STEP]
    columns = {
        "device": np.full(len(comm), place),
        "index": np.arange(len(comm)),
        "start_ns": timeline.start_ns[comm],
        "end_ns": timeline.end_ns[comm],
        "launch_ns": timeline.launch_ns[comm],
        "step_index": np.array(steps)[timeline.step[comm]],
        "seq": np.array([c.seq if c.kind not in POINT_TO_POINT else -1 for c in collectives], np.int64),
        "bytes": np.array([c.bytes for c in collectives], np.int64),
        "phase": timeline.phase[comm],
        **_keys(collectives, timeline.rank, timeline.lane[comm].tolist(), numbers),
    }
    return {
        name: column.astype(_TYPES.get(name, np.int32), copy=False) for name, column in columns.items()
    }, collectives


def _unmatchable(
    groups: Sequence[Group], group: NDArray[np.int32], device: NDArray[np.int32], blind: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which calls cannot be matched; *blind* are messages whose peer is not recorded."""
    used = np.bincount(unique_pairs(group, device)[0], minlength=len(groups))
    shared = [
        g.name == UNKNOWN_GROUP or bool(g.size and not g.ranks and n > g.size)
        for g, n in zip(groups, used.tolist(), strict=True)
    ]
    return np.array(shared, np.bool_)[group] | (blind & (used[group] > _PAIR))


def _between_global_ranks(
    groups: Sequence[Group], table: Mapping[str, NDArray[Any]], ranks: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which messages of an unknown group name their peer by its global rank; all of them, or none.

    They do where each rank received as many from each other one as that sent. Ranks in a smaller group, counted from 0
    in each of them, would at times be the rank itself, or one that sent nothing.
    """
    unknown = np.array([group.name == UNKNOWN_GROUP for group in groups], np.bool_)
    messages = unknown[table["group"]] & (table["endpoints"][:, 0] >= 0)
    source, target = table["endpoints"][messages].astype(np.int64).T
    width, sent = int(table["endpoints"].max(initial=0)) + 1, ranks[table["device"][messages]] == source
    sends, receives = (np.bincount((source * width + target)[end], minlength=width * width) for end in (sent, ~sent))
    return messages if (source != target).all() and np.array_equal(sends, receives) else np.zeros_like(messages)


_UNKNOWN = Collective("other")


def _labels(devices: Sequence[DeviceFigures]) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the step names and which device has which; an unmarked trace is a step only if no trace has marks."""
    names = [device.timeline.windows.names for device in devices]
    if any(own != (WHOLE_TRACE,) for own in names):
        names = [() if own == (WHOLE_TRACE,) else own for own in names]
    step_names = tuple(dict.fromkeys(step_name for own in names for step_name in own))
    has_step = np.zeros((len(step_names), len(devices)), np.bool_)
    place = {step_name: i for i, step_name in enumerate(step_names)}
    for device, own in enumerate(names):
        has_step[[place[step_name] for step_name in own], device] = True
    return step_names, has_step


def _keys(collectives: list[Collective], rank: int, lanes: list[int], numbers: _Numbers) -> dict[str, NDArray[Any]]:
    """Number the keys of each call: signature, family and group, with its flags and endpoints.

    A call without a recorded launch does not name its group. On a stream that only one group uses, it belongs to that
    group, since each of NCCL's streams serves one group.
    """
    # Calls that are alike are one object, as they are stored: each is looked at once.
    keys = list(zip(map(id, collectives), lanes, strict=True))
    different = dict(zip(keys, collectives, strict=True))
    calls = dict(zip(different, numbers.properties(list(different.values())), strict=True))
    lane_group = _lane_groups([(lane, call) for (_, lane), call in calls.items()])
    known = {key: _numbered(call, lane_group.get(key[1], _NO_GROUP), rank, numbers) for key, call in calls.items()}
    table = np.array([known[key] for key in keys], np.int32).reshape(-1, 8)
    names = "signature", "family", "group", "described", "synchronizing", "blind"
    return {**{name: table[:, i] for i, name in enumerate(names)}, "endpoints": table[:, 6:]}


_NO_GROUP = ("", 0, _NO_MEMBERS, "")


def _numbered(call: tuple[Any, ...], lane_group: tuple[Any, ...], rank: int, numbers: _Numbers) -> tuple[int, ...]:
    kind, size, dtype, *group, peer, synchronizes = call
    described = bool(size or dtype or group[0] or group[2])
    name, members, ranks, description = group if described else lane_group
    point_to_point = kind in ("send", "recv")
    endpoints = _endpoints(kind, peer, rank, ranks.ranks) if point_to_point else (-1, -1)
    # For several sends and receives in one kernel, nothing else is known.
    described = described and (kind != "send_recv" and (not point_to_point or endpoints[0] >= 0))
    properties = COLLECTIVES.get(kind, CollectiveKind(kind))
    # Without its launch, a call cannot be distinguished from others with the same kernel.
    kernel = properties.nccl_kernel or kind
    counted = size if described and properties.equal_bytes else 0
    signature = ("send_recv" if point_to_point else kind, counted, dtype, name, ranks, endpoints)
    family = (kernel, name, ranks)
    key = (name, ranks, members or len(ranks), description)
    blind = point_to_point and endpoints[0] < 0
    return (
        numbers.signatures[signature],
        numbers.families[family],
        numbers.groups[key],
        described,
        properties.synchronizing if synchronizes is None else synchronizes,
        blind,
        endpoints[0],
        endpoints[1],
    )


def _lane_groups(calls: Sequence[tuple[int, tuple[Any, ...]]]) -> dict[int, tuple[Any, ...]]:
    """Return the group of each stream that only one group uses; of every stream if there is only one group.

    Args:
        calls: streams, and the properties of calls on them.
    """
    used = {(lane, *call[3:7]) for lane, call in calls if call[3] or call[5]}
    by_lane: dict[int, set[tuple[Any, ...]]] = {lane: set() for lane, _ in calls}
    for lane, name, size, ranks, description in used:
        by_lane[lane].add((name, size, ranks, description))
    every = set().union(*by_lane.values())
    if len(every) == 1:
        return dict.fromkeys(by_lane, every.pop())
    return {lane: found.pop() for lane, found in by_lane.items() if len(found) == 1}


def _endpoints(kind: str, peer: int, rank: int, ranks: tuple[int, ...]) -> tuple[int, int]:
    """Return the source and target rank of a send or receive; -1 if not recorded."""
    if peer < 0 and len(ranks) == 2 and rank in ranks:
        peer = ranks[1 - ranks.index(rank)]
    if peer < 0:
        return -1, -1
    return (rank, peer) if kind == "send" else (peer, rank)


# Where each rank stands in the mesh of a job: its number in each dimension, such as dp 1, pp 0, tp 3.

_NAME = re.compile(r"[a-z]\w{0,15}", re.ASCII)
_MESH = re.compile(r"^mesh_(?P<dimension>[a-z]\w{0,15})$")
"""Description of a group of torch's DeviceMesh: ``mesh_tp``."""
_MEGATRON = {
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
_ORDER = ("dp", "dp_replicate", "dp_shard", "pp", "cp", "ep", "tp")
_OUTER_FIRST = {"dp-tp": ("dp", "tp"), "3d": ("dp", "pp", "tp")}
"""The dimensions of the meshes of dptrace's trainers, by mode, for recordings without coordinates."""


def coordinates(groups: Iterable[Group], metadata: Mapping[str, Any], world_size: int) -> dict[int, dict[str, int]]:
    """Return the number of each rank in each dimension of the job's mesh; without the ranks of which nothing is known.

    Args:
        groups: the process groups of the traces, for what ``run.json`` does not say.
        metadata: the contents of ``run.json``: the ranks' own coordinates, or else a mode and its options.
        world_size: number of ranks in the job.

    >>> coordinates([Group("1", (1, 3), 2, "mesh_dp"), Group("2", (2, 3), 2, "mesh_tp")], {}, 4)[3]
    {'dp': 1, 'tp': 1}
    """
    recorded = _recorded(metadata)
    if recorded:
        return recorded
    found: dict[str, dict[int, int]] = {}
    unclear = set()
    for group in groups:
        dimension = _dimension(group.description)
        if not dimension or len(group.ranks) < 2:
            continue
        numbers = found.setdefault(dimension, {})
        for number, rank in enumerate(group.ranks):
            if numbers.setdefault(rank, number) != number:
                unclear.add(dimension)
    known = {dimension: numbers for dimension, numbers in found.items() if dimension not in unclear}
    if not known:
        return _from_mode(metadata, world_size)
    ordered = sorted(known, key=lambda dimension: (_ORDER.index(dimension) if dimension in _ORDER else -1, dimension))
    ranks = sorted({rank for numbers in known.values() for rank in numbers})
    return {rank: {name: known[name][rank] for name in ordered if rank in known[name]} for rank in ranks}


def _dimension(description: str) -> str:
    mesh = _MESH.match(description)
    return mesh["dimension"] if mesh else _MEGATRON.get(description, "")


def _recorded(metadata: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """Return the coordinates that the ranks have written into their entries of ``run.json``."""
    found = {}
    for entry in rank_entries(metadata):
        numbers, rank = entry.get("coordinates"), entry.get("rank")
        if (
            type(rank) is int
            and isinstance(numbers, dict)
            and numbers
            and all(map(_is_place, numbers, numbers.values()))
        ):
            found[rank] = dict(numbers)
    return found


def _is_place(name: object, number: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and type(number) is int and number >= 0


def _from_mode(metadata: Mapping[str, Any], world_size: int) -> dict[int, dict[str, int]]:
    """Return the coordinates in the mesh of one of dptrace's trainers, whose last dimension varies fastest."""
    mode, options = metadata.get("mode"), metadata.get("options")
    names = _OUTER_FIRST.get(mode) if isinstance(mode, str) and not metadata.get("script") else None
    if names is None or not isinstance(options, Mapping):
        return {}
    sizes = [options.get(name) for name in names[1:]]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return {}
    found = {}
    for rank in range(world_size):
        numbers, rest = {}, rank
        for name, size in zip(names[:0:-1], sizes[::-1], strict=True):
            rest, numbers[name] = divmod(rest, size or 1)
        found[rank] = {names[0]: rest} | {name: numbers[name] for name in names[1:]}
    return found


def place(numbers: Mapping[str, int]) -> str:
    """Write coordinates: ``dp 1 · pp 0 · tp 3``."""
    return " · ".join(f"{name} {number}" for name, number in numbers.items())
