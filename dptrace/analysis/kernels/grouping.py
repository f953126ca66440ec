"""The groups of a table of kernels: what the pieces of a device's time have in common, and which call each is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.attribution import Attribution, calls_with_cost
from dptrace.analysis.kernels.call_tree import CallTree, Index
from dptrace.analysis.kernels.layers import layers_of
from dptrace.analysis.kernels.modules import module_paths, without_hashes
from dptrace.readers.trace import OperatorInputs
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Phase, Timeline

__all__ = ["GROUPINGS", "NEEDS_CALLS", "NOT_LAUNCHED", "Groups", "group"]

GROUPINGS = ("kernel", "operator", "operator-shape", "module", "layer", "annotation", "phase")
"""What rows can stand for."""
NEEDS_CALLS = frozenset(GROUPINGS) - {"kernel", "phase"}
"""Those that need the operators and labels of a second reading."""
NOT_LAUNCHED = "(not launched in the recording)"
"""The row of intervals without a launch in the file: they were launched before recording began."""
NO_INPUTS = OperatorInputs()
_PHASES = tuple(phase.name.lower() for phase in Phase)
_KINDS = tuple(kind.name.lower() for kind in Kind)


class Groups(msgspec.Struct, frozen=True):
    """The group and the call of each piece of one device's time."""

    keys: list[tuple[Any, ...]]
    """What each group is: the values of the columns of its row."""
    code: Index
    """Index into ``keys``."""
    instance: Index
    """Number of the call: the kernel, the operator's or the module's call; pieces of one call share it."""


def group(by: str, timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    """Group the pieces of a device's time.

    Keys are, by grouping: kernel (name, kind); operator (name, forward operator, phase); operator-shape (name,
    :class:`OperatorInputs`); module (path); layer (name); annotation (name); phase (name).
    """
    return _GROUPS[by](timeline, recorded, pieces)


def _by_kernel(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    name, kind = timeline.name[pieces.interval], timeline.kind[pieces.interval]
    keys, code = _distinct((name, kind))
    return Groups([(timeline.names[n], _KINDS[k]) for n, k in keys], code, pieces.interval)


def _by_phase(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    keys, code = _distinct((timeline.phase[pieces.interval],))
    return Groups([(_PHASES[phase],) for (phase,) in keys], code, pieces.interval)


def _by_operator(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    calls = recorded.calls
    owner = _names(calls.name, pieces.owner, pieces.call)
    forward = _names(calls.name, pieces.forward)
    keys, code = _distinct((owner, forward, timeline.phase[pieces.interval]))
    texts = _Texts(calls.names, "(no operator)")
    return Groups(
        [(texts[name], texts[known] if known >= 0 else "", _PHASES[phase]) for name, known, phase in keys],
        code,
        _instance(pieces.owner, pieces, recorded),
    )


def _by_shape(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    owner = _names(recorded.calls.name, pieces.owner, pieces.call)
    inputs = _names(np.where(calls_with_cost(recorded), recorded.inputs, -1), pieces.owner)
    keys, code = _distinct((owner, inputs))
    texts = _Texts(recorded.calls.names, "(no operator)")
    rows = [(texts[name], recorded.table[shape] if shape >= 0 else NO_INPUTS) for name, shape in keys]
    return Groups(rows, code, _instance(pieces.owner, pieces, recorded))


def _by_module(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    paths, path = module_paths(recorded, CallTree(recorded.calls))
    keys, code = _distinct((_names(path, pieces.module, pieces.call),))
    texts = _Texts(paths, "(no module)")
    return Groups([(texts[number],) for (number,) in keys], code, _instance(pieces.module, pieces, recorded))


def _by_layer(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    names, layer, own = layers_of(timeline, recorded, pieces)
    keys, code = _distinct((np.where(pieces.call < 0, -2, layer),))
    texts = _Texts(names, "(no layer)")
    return Groups([(texts[number],) for (number,) in keys], code, _instance(own, pieces, recorded))


def _by_annotation(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> Groups:
    keys, code = _distinct((_names(recorded.calls.name, pieces.annotation, pieces.call),))
    texts = _Texts(recorded.calls.names, "(no annotation)")
    names = [(without_hashes(texts[number]),) for (number,) in keys]
    return Groups(names, code, _instance(pieces.annotation, pieces, recorded))


_GROUPS: dict[str, Callable[[Timeline, OperatorCalls, Attribution], Groups]] = {
    "kernel": _by_kernel,
    "operator": _by_operator,
    "operator-shape": _by_shape,
    "module": _by_module,
    "layer": _by_layer,
    "annotation": _by_annotation,
    "phase": _by_phase,
}


class _Texts:
    """Names by index; -1 is *nothing*, and -2 what was not launched in the recording."""

    def __init__(self, names: Sequence[str], nothing: str) -> None:
        self._names, self._nothing = names, nothing

    def __getitem__(self, index: int) -> str:
        return self._names[index] if index >= 0 else NOT_LAUNCHED if index == -2 else self._nothing


def _names(column: NDArray[Any], where: Index, call: Index | None = None) -> Index:
    """Return the column at the calls *where*; -1 for none, and -2 where no *call* launched the piece."""
    found = np.where(where >= 0, column[where], -1) if len(column) else np.full(len(where), -1, np.int64)
    return found.astype(np.int64) if call is None else np.where(call < 0, -2, found).astype(np.int64)


def _instance(where: Index, pieces: Attribution, recorded: OperatorCalls) -> Index:
    """Return the call of each piece; where there is none, each interval is one of its own."""
    return np.where(where >= 0, where, len(recorded) + pieces.interval)


def _distinct(columns: tuple[NDArray[Any], ...]) -> tuple[list[tuple[int, ...]], Index]:
    """Return the distinct rows of columns of small numbers, and the index of each row's own.

    The columns are packed into one number, so that one sort suffices.
    """
    if not len(columns[0]):
        return [], np.empty(0, np.int64)
    packed, sizes = np.zeros(len(columns[0]), np.int64), []
    for column in columns:
        low, high = int(column.min()), int(column.max())
        sizes.append((low, high - low + 1))
        packed = packed * (high - low + 1) + (column.astype(np.int64) - low)
    known, code = np.unique(packed, return_inverse=True)
    parts: list[list[int]] = []
    for low, size in reversed(sizes):
        parts.append((known % size + low).tolist())
        known = known // size
    return list(zip(*reversed(parts), strict=True)), code.reshape(-1)
