"""The groups of a table of kernels: what the pieces of a device's time have in common, and which call each is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.attribution import (
    Attribution,
    CallTree,
    Index,
    Labels,
    calls_with_cost,
    module_labels,
    module_paths,
    without_hashes,
)
from dptrace.model.flops import Cost, OperatorCall, decoded_list
from dptrace.model.operator_costs import cost
from dptrace.readers.provenance import Provenance, plain_name
from dptrace.readers.trace import OperatorInputs
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Phase, Timeline

# Layers of a model: the repeated blocks that a user thinks of, and the collectives that serve them.
#
# A layer is the part of a module's path up to its first number (``layers.3`` of ``layers.3.attn.qkv``); where paths are
# those of ``nn.Module`` events, the outermost module that is repeated (``Block_3`` of ``GPT_0/Block_3/Linear_7``).


_PATH = re.compile(r"\((?P<path>[A-Za-z_][\w.]*|\d+[\w.]*)\)$")
"""The module or parameter in a collective's label: ``FSDP::all_gather (layers.3)``, ``DP::all_reduce (0.weight)``."""


def layer_names(paths: Sequence[str]) -> list[str]:
    """Return the layer of each module's path.

    >>> layer_names(["GPT", "embed", "layers.3", "layers.3.attn.qkv"])
    ['GPT', 'embed', 'layers.3', 'layers.3']
    >>> layer_names(["GPT_0", "GPT_0/Embedding_0", *(f"GPT_0/Block_{i}/Linear_{i}" for i in (0, 1))])
    ['GPT_0', 'Embedding_0', 'Block_0', 'Block_1']
    """
    around = _around_blocks([tuple(path.split("/")) for path in paths if "/" in path])
    return [_layer(tuple(path.split("/")), around) for path in paths]


def _around_blocks(paths: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the paths of the modules around the outermost repeated blocks: several of a class next to each other.

    Blocks hold modules themselves; without such ones, any repeated modules count.
    """
    known = {path[:depth] for path in paths for depth in range(1, len(path) + 1)}
    holding = {path[:-1] for path in known}
    for chosen in (known & holding, known):
        alike: dict[tuple[Any, ...], list[tuple[str, ...]]] = {}
        for path in chosen:
            alike.setdefault((*path[:-1], path[-1].rpartition("_")[0]), []).append(path)
        blocks = {path for several in alike.values() if len(several) > 1 for path in several if len(path) > 1}
        outermost = {path for path in blocks if not any(path[:depth] in blocks for depth in range(1, len(path)))}
        if outermost:
            return {path[:depth] for path in outermost for depth in range(1, len(path))}
    return set()


def _layer(parts: tuple[str, ...], around: set[tuple[str, ...]]) -> str:
    if len(parts) > 1 or parts in around:
        return next((parts[depth] for depth in range(len(parts)) if parts[: depth + 1] not in around), parts[-1])
    words = parts[0].split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return words[0] if number is None else ".".join(words[: number + 1])


def layers_of(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution) -> tuple[list[str], Index, Index]:
    """Return the names of layers, the layer of each piece, or -1, and the module call that is the layer's own, or -1.

    A collective belongs to the layer that its label names, else to the module around its launch; in backward, else to
    the layer whose gradients completed it: the last before it on its thread.
    """
    paths, path = module_paths(recorded, CallTree(recorded.calls))
    names = layer_names(paths)
    numbers: dict[str, int] = {}
    of_path = np.array([numbers.setdefault(name, len(numbers)) for name in names] or [-1], np.int64)
    layer = np.where(path >= 0, of_path[path], -1) if len(path) else path
    own = _own_calls(recorded, paths, names, path)
    found = np.where(pieces.module >= 0, layer[pieces.module], -1) if len(layer) else pieces.module
    instance = np.where(pieces.module >= 0, own[pieces.module], -1) if len(own) else pieces.module
    found = _with_collectives(timeline, recorded, pieces, found.copy(), numbers)
    return list(numbers), found, np.where(found >= 0, instance, -1)


def _own_calls(recorded: OperatorCalls, paths: list[str], names: list[str], path: Index) -> Index:
    """Return for each module call the one around it that is the layer itself, else the module call."""
    whole = np.array([paths[i].split("/")[-1] == names[i] for i in range(len(paths))] or [False], np.bool_)
    is_layer = module_labels(recorded) & (path >= 0)
    if len(is_layer):
        is_layer &= whole[path]
    inner = CallTree(recorded.calls).innermost(is_layer)
    return np.where(inner >= 0, inner, np.arange(len(path)))


def _with_collectives(
    timeline: Timeline, recorded: OperatorCalls, pieces: Attribution, found: Index, numbers: dict[str, int]
) -> Index:
    comm = np.flatnonzero(timeline.kind[pieces.interval] == Kind.COMMUNICATION)
    for piece in comm.tolist():
        label = timeline.collectives[timeline.collective[pieces.interval[piece]]].label
        if match := _PATH.search(label):
            name = layer_names([match["path"]])[0]
            found[piece] = numbers.setdefault(name, len(numbers))
    known = pieces.call >= 0
    calls = recorded.calls
    start = np.where(known, calls.start_ns[pieces.call], 0) if len(calls) else pieces.call
    thread = np.where(known, calls.thread[pieces.call], -1) if len(calls) else pieces.call
    # In the order of their launches on each thread, a collective without a layer takes the last one before it.
    order = np.lexsort((start, thread))
    last = np.maximum.accumulate(np.where(found[order] >= 0, np.arange(len(order)), -1))
    before = np.empty(len(order), np.int64)
    before[order] = np.where(last >= 0, order[last], -1)
    open_ = comm[(found[comm] < 0) & known[comm] & (before[comm] >= 0)]
    open_ = open_[(thread[before[open_]] == thread[open_]) & (timeline.phase[pieces.interval[open_]] == 1)]
    found[open_] = found[before[open_]]
    return found


GROUPINGS = ("kernel", "operator", "operator-shape", "module", "layer", "source", "annotation", "phase")
"""What rows can stand for."""
NEEDS_CALLS = frozenset(GROUPINGS) - {"kernel", "phase"}
"""Those that need the operators and labels of a second reading."""
NOT_LAUNCHED = "(not launched in the recording)"
"""The row of intervals without a launch in the file: they were launched before recording began."""
NO_INPUTS = OperatorInputs()
NOT_COMPILED, UNKNOWN_SOURCE = "(not compiled)", "(compiled; source unknown)"
"""The rows of kernels outside compiled graphs, and of those in graphs that no file of inductor's describes."""
_PHASES = tuple(phase.name.lower() for phase in Phase)
_KINDS = tuple(kind.name.lower() for kind in Kind)


class Groups(msgspec.Struct, frozen=True):
    """The group and the call of each piece of one device's time."""

    keys: list[tuple[Any, ...]]
    """What each group is: the values of the columns of its row; equal ones are one row."""
    code: Index
    """Index into ``keys``."""
    instance: Index
    """Number of the call: the kernel, the operator's or the module's call; pieces of one call share it."""


def group(
    by: str, timeline: Timeline, recorded: OperatorCalls, pieces: Attribution, provenance: Provenance | None = None
) -> Groups:
    """Group the pieces of a device's time.

    Keys are, by grouping: kernel (name, kind); operator (name, forward operator, phase); operator-shape (name,
    :class:`Shape`); module (path); layer (name); source (lines, code, FX nodes, modules), which needs *provenance*;
    annotation (name); phase (name).
    """
    if by == "source":
        assert provenance is not None
        return _by_source(timeline, recorded, pieces, provenance)
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
    rows = [(texts[name], _shape(texts[name], recorded.table[at] if at >= 0 else NO_INPUTS)) for name, at in keys]
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


_GRAPH = re.compile(r"^## Call CompiledFxGraph (\S+) ##$")


def _by_source(timeline: Timeline, recorded: OperatorCalls, pieces: Attribution, provenance: Provenance) -> Groups:
    """Group by the lines that inductor compiled into each kernel; what is not compiled has none.

    A kernel that a graph calls several times is another one each time. So calls are counted, within each call of a
    graph and for each name, by the start of the call that launched them::

        graph call 7: addmm (0 of 2), triton_poi_fused_gelu_0 (0 of 1), addmm (1 of 2)
    """
    calls, known = recorded.calls, pieces.call >= 0
    graph = _graphs_around(recorded, pieces.call)
    # Triton's kernels have their names on the device; on a CPU, and for libraries' kernels, it is the operator's.
    triton = np.array([name.startswith("triton_") for name in timeline.names] or [False], np.bool_)
    own = triton[timeline.name[pieces.interval]] if not timeline.on_cpu else np.zeros(len(pieces), np.bool_)
    operator = np.where(pieces.owner >= 0, pieces.owner, pieces.call)
    name = np.where(own, timeline.name[pieces.interval], len(timeline.names) + _names(calls.name, operator))
    call = np.where(own, pieces.call, operator)
    place, count = _places(graph, name, np.where(known, calls.start_ns[call], 0) if len(calls) else call, call)

    keys, code = _distinct((np.where(known, _names(calls.name, graph), -2), np.where(graph < 0, 0, name), place, count))
    names = [*timeline.names, *calls.names]
    rows = []
    for key, kernel, nth, several in keys:
        found = None
        if key >= 0:
            match = _GRAPH.match(calls.names[key])
            found = provenance.source(match[1] if match else "", plain_name(names[kernel]), nth, several)
        if found is None:
            nothing = NOT_LAUNCHED if key == -2 else NOT_COMPILED if key == -1 else UNKNOWN_SOURCE
            rows.append((nothing, "", "", ""))
        else:
            lines = ", ".join(found.lines) or UNKNOWN_SOURCE
            rows.append((lines, found.code, ", ".join(found.nodes), ", ".join(found.modules)))
    return Groups(rows, code, _instance(call, pieces, recorded))


def _graphs_around(recorded: OperatorCalls, call: Index) -> Index:
    """Return the call of a compiled graph around each call, or -1: an operator in a trace, or, of a CPU, a label."""
    calls, found = recorded.calls, np.full(len(call), -1, np.int64)
    known = np.flatnonzero(call >= 0)
    if not len(calls) or not len(known):
        return found
    is_graph = np.array([bool(_GRAPH.match(name)) for name in calls.names], np.bool_)
    around, own = CallTree(calls).innermost(is_graph[calls.name]), call[known]
    label = Labels(calls).around(calls.thread[own], calls.start_ns[own])
    of_label = np.where(label >= 0, around[label], -1)
    found[known] = np.where(around[own] >= 0, around[own], of_label)
    return found


def _places(graph: Index, name: Index, start: Index, call: Index) -> tuple[Index, Index]:
    """Return which of the calls of its name in its graph's call each piece is of, and how many there are."""
    place, count = np.zeros(len(graph), np.int64), np.zeros(len(graph), np.int64)
    inside = np.flatnonzero(graph >= 0)
    order = inside[np.lexsort((call[inside], start[inside], name[inside], graph[inside]))]
    if not len(order):
        return place, count
    first = np.append(True, (graph[order[1:]] != graph[order[:-1]]) | (name[order[1:]] != name[order[:-1]]))
    number = np.cumsum(first | np.append(True, call[order[1:]] != call[order[:-1]]))
    group = np.cumsum(first) - 1
    low = number[first]
    place[order] = number - low[group]
    count[order] = (np.append(low[1:], number[-1] + 1) - low)[group]
    return place, count


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


# Shapes of operators as columns of a table, with what one call of each computes and moves.


class Shape(msgspec.Struct, frozen=True):
    """What calls of one operator have in common in a row: sizes, types and cost of a call."""

    dims: str
    dtypes: str
    cost: Cost | None


@cache
def _shape(name: str, inputs: OperatorInputs) -> Shape:
    call = OperatorCall.recorded(name, inputs.dims, inputs.dtypes, inputs.concrete, inputs.strides)
    return Shape(inputs.dims, inputs.dtypes, cost(call) if call.dims else None)


def shape_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Replace the shape of a row by its columns: sizes, types, FLOPs and bytes of a call, and the mean rates."""
    shape, ns = row["input_dims"], row["kernel_ns"]
    known = shape.cost
    flops, size = (known.flops, known.bytes) if known else (None, None)
    dtypes = [str(dtype) for dtype in decoded_list(shape.dtypes)]
    columns = {
        "operator": row["operator"],
        "input_dims": decoded_list(shape.dims),
        "dtype": known.dtype if known else next((dtype for dtype in dtypes if dtype), ""),
        "input_types": dtypes,
        "flops": flops,
        "bytes": size,
        "tflops": None if flops is None or not ns else round(flops * row["count"] / ns / 1e3, 6),
        "gbps": None if size is None or not ns else round(size * row["count"] / ns, 6),
        "formula": known.kind if known else None,
        "counted_flops": known.counted_flops if known else None,
        "model_flops": known.model_flops if known else None,
        "flops_exact": known.exact if known and flops is not None else None,
    }
    rank = {"rank": row["rank"]} if "rank" in row else {}
    return rank | columns | {name: value for name, value in row.items() if name not in columns and name != "rank"}
