"""To what each piece of a device's time belongs: its operator, module, annotation, and forward operator.

A kernel belongs to the call that launched it, by correlation id, and so to what encloses that call on its thread::

    nn.Module: Linear_3 ├──────────────────────────┤
    aten::linear          ├──────────────────────┤      outermost operator
    aten::addmm             ├───────────────────┤       owner: the outermost one with a FLOP formula
    cudaLaunchKernel            ├┤                      innermost operator: aten::addmm
    kernel                             ├────────────┤

On a CPU, the pieces are the operators inside those of the timeline, each with its time without the operators inside it.
So on both, the pieces add up to the timeline's intervals exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, sums
from dptrace.model.operator_costs import owns_kernels, owns_without_parts
from dptrace.timeline.host_calls import CallKind, Flame, HostCalls, OperatorCalls
from dptrace.timeline.model import UNKNOWN, Kind, Timeline
from dptrace.timeline.steps import WRAPPER

# What a call inherits from the calls around it, and the label around an instant.


Index = NDArray[np.int64]
"""Indices of calls; -1 for none."""


class CallTree:
    """The nesting of host calls: each has the index of the one around it.

    A column is passed down level by level, so that the cost is that of a few passes over it::

        parent   -1  0  1  1          aten::linear ⊃ aten::addmm ⊃ two launches
        own       0  1 -1 -1          the operators among them
        innermost 0  1  1  1          outermost 0  0  0  0
    """

    def __init__(self, calls: HostCalls) -> None:
        self.calls = calls
        self.parent = calls.parent.astype(np.int64)
        order = np.argsort(calls.depth, kind="stable")
        edges = np.searchsorted(calls.depth[order], np.arange(1, int(calls.depth.max(initial=0)) + 2))
        self._levels = [order[low:high] for low, high in pairwise(edges)]

    def innermost(self, chosen: NDArray[np.bool_]) -> Index:
        """Return for each call the innermost of the *chosen* calls that is it or lies around it."""
        found = np.where(chosen, np.arange(len(chosen)), -1)
        for level in self._levels:
            own = found[level]
            found[level] = np.where(own >= 0, own, found[self.parent[level]])
        return found

    def outermost(self, chosen: NDArray[np.bool_]) -> Index:
        """Return for each call the outermost of the *chosen* calls that is it or lies around it."""
        found = np.where(chosen, np.arange(len(chosen)), -1)
        for level in self._levels:
            above = found[self.parent[level]]
            found[level] = np.where(above >= 0, above, found[level])
        return found

    def holds(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which calls have a *chosen* call inside them."""
        found = np.zeros(len(chosen), np.bool_)
        for level in reversed(self._levels):
            found[self.parent[level[chosen[level] | found[level]]]] = True
        return found

    def self_ns(self) -> Int64:
        """Return the time of each call without the calls inside it; a call ends no later than the one around it."""
        start, end = self.calls.start_ns, self.calls.end_ns.copy()
        for level in self._levels:
            end[level] = np.minimum(end[level], end[self.parent[level]])
        own = np.maximum(end - start, 0)
        nested = np.flatnonzero(self.parent >= 0)
        rest: Int64 = own - sums(self.parent[nested], own[nested], len(own))
        return rest


class Labels:
    """The annotations and modules of each thread, to be looked up by thread and time."""

    def __init__(self, calls: HostCalls) -> None:
        self.calls = calls
        self._labels = np.flatnonzero(calls.flame == Flame.LABELS)
        times = calls.start_ns
        self._origin = int(times.min(initial=0)) if len(times) else 0
        self._span = int(calls.end_ns.max(initial=self._origin)) - self._origin + 2
        self._keys = self._key(calls.thread[self._labels], times[self._labels])

    def _key(self, thread: NDArray[np.int32], time: Int64) -> Int64:
        return thread.astype(np.int64) * self._span + np.clip(time - self._origin, 0, self._span - 1)

    def around(self, thread: NDArray[np.int32], time: Int64) -> Index:
        """Return the innermost label around each (thread, time), or -1; both of its ends belong to it."""
        if not len(self._labels):
            return np.full(len(time), -1, np.int64)
        calls, place = self.calls, np.searchsorted(self._keys, self._key(thread, time), side="right") - 1
        found = np.where(place >= 0, self._labels[place], -1)
        found[(found >= 0) & (calls.thread[found] != thread)] = -1
        while len(ended := np.flatnonzero((found >= 0) & (calls.end_ns[found] < time))):
            found[ended] = calls.parent[found[ended]]
        return found


# The forward operator that each backward function differentiates: autograd numbers the nodes of its graph.
#
# Several nested forward operators carry one number; the last to start created the node. Numbers count per thread, and a
# backward function names the thread by a number of autograd's own.


def in_autograd(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls are the engine's run of one node."""
    calls = recorded.calls
    wrappers = np.array([name.startswith(WRAPPER) for name in calls.names], np.bool_)
    return recorded.is_operator & (wrappers[calls.name] if len(wrappers) else False)


def recomputed_calls(recorded: OperatorCalls, tree: CallTree) -> NDArray[np.bool_]:
    """Return which calls repeat forward work within backward.

    In backward, an operator creates a node of its own only if it runs to be differentiated.
    """
    calls = recorded.calls
    aten = np.array([name.startswith("aten::") for name in calls.names], np.bool_)
    if not len(aten):
        return np.zeros(len(recorded), np.bool_)
    creates = recorded.is_operator & aten[calls.name] & (recorded.sequence >= 0) & (recorded.forward_thread == 0)
    inside = tree.innermost(in_autograd(recorded)) >= 0
    return tree.outermost(creates & inside) >= 0


def forward_operators(recorded: OperatorCalls, tree: CallTree) -> Index:
    """Return for each call the forward operator whose backward it is a part of, or -1."""
    numbered = recorded.is_operator & (recorded.sequence >= 0)
    # Backward functions with a number.
    nodes = numbered & ((recorded.forward_thread > 0) | in_autograd(recorded))
    forward = np.full(len(recorded), -1, np.int64)
    creators = np.flatnonzero(numbered & ~nodes)
    calls, node = recorded.calls, np.flatnonzero(nodes)
    if not len(creators) or not len(node):
        return forward
    for number in np.unique(recorded.forward_thread[node]):
        of_number = node[recorded.forward_thread[node] == number]
        own = _of_one_thread(recorded, creators, recorded.sequence[of_number])
        forward[of_number] = _last_started(
            recorded.sequence[own], calls.start_ns[own], recorded.sequence[of_number], calls.start_ns[of_number], own
        )
    innermost = tree.innermost(nodes)
    return np.where(innermost >= 0, forward[innermost], -1)


def _of_one_thread(recorded: OperatorCalls, creators: Index, numbers: Int64) -> Index:
    """Return the creators of the thread that has most of the *numbers*."""
    threads = recorded.calls.thread[creators]
    known = np.unique(threads)
    if len(known) == 1:
        return creators
    held = [int(np.isin(numbers, recorded.sequence[creators[threads == thread]]).sum()) for thread in known]
    own: Index = creators[threads == known[int(np.argmax(held))]]
    return own


def _last_started(numbers: Int64, start: Int64, wanted: Int64, before: Int64, creators: Index) -> Index:
    """Return the last creator of each *wanted* number that started before a time, or -1.

    Creators and queries are sorted together by number and time; the last creator so far is the answer if it has the
    number: (7, 10 µs) (7, 12 µs) [7, 50 µs] → the one at 12 µs.
    """
    count = len(numbers)
    order = np.lexsort((np.append(start, before), np.append(numbers, wanted)))
    seen = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    last = np.where(seen >= 0, order[seen], -1)
    found = np.full(len(wanted), -1, np.int64)
    queries = order >= count
    found[order[queries] - count] = last[queries]
    same = (found >= 0) & (numbers[found] == wanted)
    return np.where(same, creators[found], -1)


# Modules and annotations around launches, and the paths of modules.
#
# A module is, where the file has them: ``nn.Module: Linear_3`` (``with_modules`` or ``with_stack``), a module that
# ``dptrace record --modules`` marks, or what an FSDP label names. Without any, annotations take their place.

MODULE_LABEL = "dptrace::module "
"""Start of the labels that the recorder puts around a module's forward: ``dptrace::module layers.3.attn``."""
_MODULE_EVENT = "nn.Module: "
_FSDP = re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)\S+ \((?P<path>[\w.]+)\)$")
_HASH = re.compile(r"\b(?=\w*\d)[a-z0-9]{24,}\b")
_NOT_THE_USERS = (
    *("ProfilerStep#", "Optimizer.", "dptrace::", "enumerate(DataLoader)", "DistributedDataParallel."),
    *("torch.distributed.ddp.", "torch::distributed::", "nccl:", "gloo:", "c10d::", "PyTorch Profiler"),
)
"""Starts of labels that torch or the recorder writes around parts of a step."""


def without_hashes(name: str) -> str:
    """Return a name without what differs between ranks: the hash of a compiled graph.

    >>> without_hashes("## Call CompiledFxGraph fol2qbtfeekvnergtmmcekc67deitzxm5vsaptq ##")
    '## Call CompiledFxGraph … ##'
    """
    return _HASH.sub("…", name)


def has_modules(names: Iterable[str]) -> bool:
    """Return whether the names of a file's events include one of a module, rather than only annotations.

    >>> has_modules(["## forward ##", "nn.Module: Linear_3"])
    True
    """
    return any(name.startswith((MODULE_LABEL, _MODULE_EVENT)) or _FSDP.match(name) for name in names)


def module_labels(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls are modules, or annotations in place of them."""
    calls = recorded.calls
    names = calls.names
    if not len(calls):
        return np.zeros(0, np.bool_)
    label = calls.flame == Flame.LABELS
    marked = np.array([name.startswith((MODULE_LABEL, _MODULE_EVENT)) for name in names], np.bool_)
    modules: NDArray[np.bool_] = label & ((calls.kind == CallKind.MODULE) | marked[calls.name])
    sharded = np.array([bool(_FSDP.match(name)) for name in names], np.bool_)
    of_shards: NDArray[np.bool_] = label & sharded[calls.name]
    return (modules if modules.any() else _users_labels(recorded)) | of_shards


def _users_labels(recorded: OperatorCalls) -> NDArray[np.bool_]:
    calls = recorded.calls
    users = np.array([not name.startswith(_NOT_THE_USERS) for name in calls.names], np.bool_)
    chosen: NDArray[np.bool_] = (calls.kind == CallKind.ANNOTATION) & users[calls.name]
    return chosen


def modules_of(
    recorded: OperatorCalls, tree: CallTree, labels: Labels, call: Index, forward: Index, node: Index
) -> Index:
    """Return the innermost module of each piece: around its launch; in backward, around the forward operator.

    Args:
        call: the launching call of each piece, or -1.
        forward: the forward operator that it differentiates, or -1.
        node: the engine's run of a node around it, or -1. Modules inside it (recomputation) count first.
    """
    if not len(recorded):
        return np.full(len(call), -1, np.int64)
    calls, module = recorded.calls, tree.innermost(module_labels(recorded))

    def around(where: Index) -> Index:
        found = np.full(len(where), -1, np.int64)
        known = np.flatnonzero(where >= 0)
        label = labels.around(calls.thread[where[known]], calls.start_ns[where[known]])
        found[known] = np.where(label >= 0, module[label], -1)
        return found

    own, of_forward = around(call), around(forward)
    inside_node = (own >= 0) & ((node < 0) | (calls.start_ns[own] >= calls.start_ns[node]))
    return np.where(inside_node | (of_forward < 0), own, of_forward)


def annotations_of(recorded: OperatorCalls, tree: CallTree, labels: Labels, call: Index) -> Index:
    """Return the innermost of the user's annotations around each launch: on its thread, else on the main thread."""
    found = np.full(len(call), -1, np.int64)
    if not len(recorded):
        return found
    calls, annotation = recorded.calls, tree.innermost(_users_labels(recorded))
    known = np.flatnonzero(call >= 0)
    time = calls.start_ns[call[known]]
    label = labels.around(calls.thread[call[known]], time)
    own = np.where(label >= 0, annotation[label], -1)
    main = _main_thread(recorded)
    if main >= 0:
        elsewhere = labels.around(np.full(len(known), main, np.int32), time)
        own = np.where((own < 0) & (elsewhere >= 0), annotation[elsewhere], own)
    found[known] = own
    return found


def _main_thread(recorded: OperatorCalls) -> int:
    """Return the thread that runs the loop, else the one with most annotations; -1 without any."""
    calls = recorded.calls
    if "main" in calls.threads:
        return calls.threads.index("main")
    annotated = calls.thread[calls.kind == CallKind.ANNOTATION]
    return int(np.bincount(annotated).argmax()) if len(annotated) else -1


def module_paths(recorded: OperatorCalls, tree: CallTree) -> tuple[list[str], Index]:
    """Return the paths of all modules, and for each call the index of its own, or -1 where it is no module.

    A module that the recorder marks has the attribute path (``layers.3.attn``); others those of the modules around
    them: ``GPT_0/Block_3/Linear_1``.
    """
    calls, labels = recorded.calls, module_labels(recorded)
    path, above = np.full(len(recorded), -1, np.int64), tree.innermost(labels)
    numbers: dict[str, int] = {}
    paths: list[str] = []
    chosen = np.flatnonzero(labels)
    for depth in np.unique(calls.depth[chosen]):
        level = chosen[calls.depth[chosen] == depth]
        parent = tree.parent[level]
        around = np.where(parent >= 0, above[parent], -1)
        outer = np.where(around >= 0, path[around], -1)
        pairs, which = np.unique(np.stack((calls.name[level], outer), axis=1), axis=0, return_inverse=True)
        whole = [_path(calls.names[name], paths[outside] if outside >= 0 else "") for name, outside in pairs.tolist()]
        number = np.array([numbers.setdefault(text, len(numbers)) for text in whole], np.int64)
        paths = list(numbers)
        path[level] = number[which.reshape(-1)]
    return _whole(paths), path


def _whole(paths: list[str]) -> list[str]:
    """Complete the paths of modules that are repeated in backward, without the modules around them.

    The number in a module's name distinguishes it from others of its class.
    """
    known: dict[str, set[str]] = {}
    for path in paths:
        above, _, own = path.rpartition("/")
        known.setdefault(own, set()).update([above] if above else [])
    whole = []
    for path in paths:
        around = known.get(path.partition("/")[0], set())
        whole.append(f"{min(around)}/{path}" if len(around) == 1 else path)
    return whole


def _path(name: str, outer: str) -> str:
    if name.startswith(MODULE_LABEL):
        return name.removeprefix(MODULE_LABEL)
    if sharded := _FSDP.match(name):
        return sharded["path"]
    own = without_hashes(name.removeprefix(_MODULE_EVENT))
    return f"{outer}/{own}" if outer else own


class Attribution(Columns, frozen=True):
    """Pieces of a device's time; one entry per piece in each column, -1 where there is no such call."""

    interval: Index
    """Index of the interval in the timeline."""
    ns: Int64
    call: Index
    """Index of the call that launched it; on a CPU, of the operator itself."""
    operator: Index
    """The innermost operator around the launch."""
    outermost: Index
    """The outermost operator; the engine's run of a node counts only if nothing else is there."""
    owner: Index
    """The outermost operator with a FLOP formula, else the innermost operator."""
    forward: Index
    """In backward, the forward operator that it differentiates."""
    module: Index
    """The innermost module (a label); in backward, that of the forward operator."""
    annotation: Index
    """The innermost annotation of the user's."""
    recompute: NDArray[np.bool_]
    """Whether it repeats forward work within backward."""


def attribute(timeline: Timeline, recorded: OperatorCalls) -> Attribution:
    """Attribute each interval of a timeline, or each operator inside it on a CPU.

    A GPU's is computed once, and held as long as the calls are: both tables and findings need it.

    Args:
        timeline: the intervals of one device.
        recorded: the calls of its rank's file.
    """
    if timeline.on_cpu:
        return _attribute(timeline, recorded)
    held = recorded.attributed
    if id(timeline) not in held:
        held[id(timeline)] = timeline, _attribute(timeline, recorded)
    found: Attribution = held[id(timeline)][1]
    return found


def _attribute(timeline: Timeline, recorded: OperatorCalls) -> Attribution:
    tree = CallTree(recorded.calls)
    interval, ns, call = _pieces(timeline, recorded, tree)
    calls, operators = recorded.calls, recorded.is_operator
    engine = in_autograd(recorded)
    innermost = tree.innermost(operators)
    below_engine, owner = tree.outermost(operators & ~engine), tree.outermost(_owners(recorded, tree))
    outermost = np.where(below_engine >= 0, below_engine, innermost)
    owner = np.where(owner >= 0, owner, innermost)
    again, forward = recomputed_calls(recorded, tree), forward_operators(recorded, tree)

    def at(column: Index) -> Index:
        return _at(column, call)

    recompute = (at(again.astype(np.int64)) > 0) & (timeline.kind[interval] == Kind.COMPUTE)
    labels = Labels(calls)
    return Attribution(
        interval=interval,
        ns=ns,
        call=call,
        operator=at(innermost),
        outermost=at(outermost),
        owner=at(owner),
        forward=np.where(recompute, -1, at(forward)),
        module=modules_of(
            recorded, tree, labels, call, np.where(recompute, -1, at(forward)), at(tree.innermost(engine))
        ),
        annotation=annotations_of(recorded, tree, labels, call),
        recompute=recompute,
    )


def modules_of_calls(recorded: OperatorCalls, call: Index) -> Index:
    """Return the innermost module (a label) of each call, as kernels have it that it launched; -1 for none.

    Args:
        call: indices of calls, or -1.
    """
    tree, labels = CallTree(recorded.calls), Labels(recorded.calls)
    again = _at(recomputed_calls(recorded, tree).astype(np.int64), call) > 0
    forward = np.where(again, -1, _at(forward_operators(recorded, tree), call))
    return modules_of(recorded, tree, labels, call, forward, _at(tree.innermost(in_autograd(recorded)), call))


def _at(column: Index, call: Index) -> Index:
    """Return a column at some calls, -1 where there is no call."""
    return np.where(call >= 0, column[call], -1) if len(column) else np.full(len(call), -1, np.int64)


def calls_with_cost(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls count by their own formula, not by those of the operators inside them.

    The time of ``aten::linear`` outside its ``aten::addmm`` is its own, but its FLOPs are those of ``aten::addmm``.
    """
    return ~_named(recorded, owns_without_parts) | _owners(recorded, CallTree(recorded.calls))


def _owners(recorded: OperatorCalls, tree: CallTree) -> NDArray[np.bool_]:
    """Return which calls have a FLOP formula, so that the time of all below them is their own."""
    owns, of_parts = (_named(recorded, test) for test in (owns_kernels, owns_without_parts))
    return owns | (of_parts & ~tree.holds(owns))


def _named(recorded: OperatorCalls, test: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return which calls are operators whose name passes a test."""
    names = recorded.calls.names
    passing = np.fromiter((test(name) for name in names), np.bool_, len(names))
    return recorded.is_operator & (passing[recorded.calls.name] if len(names) else False)


def _pieces(timeline: Timeline, recorded: OperatorCalls, tree: CallTree) -> tuple[Index, Int64, Index]:
    """Return the interval, time and call of each piece."""
    place = recorded.calls.device_index(timeline)
    launching = recorded.calls.device_call.astype(np.int64)
    call = np.where(place >= 0, launching[place], -1) if len(launching) else np.full(len(timeline), -1, np.int64)
    interval, ns = np.arange(len(timeline)), timeline.end_ns - timeline.start_ns
    if not timeline.on_cpu:
        return interval, ns, call
    expanded = (timeline.kind == Kind.COMPUTE) & (call >= 0)
    around = np.full(len(recorded), -1, np.int64)
    around[call[expanded]] = interval[expanded]
    root = tree.outermost(around >= 0)
    inside = np.flatnonzero((root >= 0) & recorded.is_operator)
    whole = ~expanded
    return (
        np.append(interval[whole], around[root[inside]]),
        np.append(ns[whole], tree.self_ns()[inside]),
        np.append(call[whole], inside),
    )


# The launch side: how far the host runs ahead of a device, what its time goes to, and what it waits for.

_KINDS = {CallKind.OPERATOR: "operator", CallKind.RUNTIME: "runtime", CallKind.ALLOCATOR: "allocator"}
_SYNCHRONIZING = "synchronizing"


class LaunchFigures(msgspec.Struct, frozen=True):
    """How the work of one device was launched; None where the file does not show it."""

    rank: int
    launches: int
    """Intervals whose launch is in the file."""
    delay_p50_ns: float | None
    delay_p95_ns: float | None
    """From the start of the launching call to the start of the work."""
    queue_depth_p50: float | None
    queue_depth_p95: float | None
    """Launched and not yet started, when a launch begins."""
    empty_queue_share: float | None
    """Launches that find nothing launched and not yet started: the device waits for the host, or soon will."""
    graph_kernels: int | None = None
    """Intervals launched by a graph (cudaGraphLaunch, hipGraphLaunch)."""
    graph_share: float | None = None
    """Their share of the time of all intervals."""
    synchronizing_calls: int | None = None
    synchronizing_ns: int | None = None
    """Calls in which the host waits for the device: cudaStreamSynchronize, blocking copies, ``.item()``."""


def queue_depth(launch_ns: Int64, start_ns: Int64) -> Int64:
    """Return for each launch how much was launched before it and had not started.

    Args:
        launch_ns, start_ns: when each interval was launched, and when it started, in ns.

    >>> queue_depth(np.array([0, 1, 9]), np.array([2, 5, 10])).tolist()
    [0, 1, 0]
    """
    launched, started = (np.searchsorted(np.sort(times), launch_ns) for times in (launch_ns, start_ns))
    return launched - started


def launch_figures(timeline: Timeline, recorded: OperatorCalls | None = None) -> LaunchFigures:
    """Compute the launch figures of one device, those of its calls too where they were read."""
    known = (timeline.launch_ns != UNKNOWN) & (timeline.step >= 0)
    launch, start = timeline.launch_ns[known], timeline.start_ns[known]
    delay, depth = np.maximum(start - launch, 0), queue_depth(launch, start)
    figures = LaunchFigures(timeline.rank, 0, None, None, None, None, None)
    if not timeline.on_cpu and len(launch):
        times = [share for values in (delay, depth) for share in np.quantile(values, (0.5, 0.95)).tolist()]
        empty = round(float((depth == 0).mean()), 6)
        figures = LaunchFigures(timeline.rank, len(launch), times[0], times[1], times[2], times[3], empty)
    return figures if recorded is None or timeline.on_cpu else _with_calls(figures, timeline, recorded)


def _with_calls(figures: LaunchFigures, timeline: Timeline, recorded: OperatorCalls) -> LaunchFigures:
    calls, place = recorded.calls, recorded.calls.device_index(timeline)
    call = np.where(place >= 0, calls.device_call[place], -1) if len(calls.device_call) else place
    graph = np.array(["GraphLaunch" in name for name in calls.names], np.bool_)
    by_graph = (call >= 0) & (timeline.step >= 0)
    by_graph &= graph[calls.name[call]] if len(calls) else False
    ns = timeline.end_ns - timeline.start_ns
    whole = int(ns[timeline.step >= 0].sum())
    waiting = _outer_waits(recorded) & _in_steps(timeline, recorded)
    return msgspec.structs.replace(
        figures,
        graph_kernels=int(by_graph.sum()),
        graph_share=round(int(ns[by_graph].sum()) / whole, 6) if whole else None,
        synchronizing_calls=int(waiting.sum()),
        synchronizing_ns=int((calls.end_ns - calls.start_ns)[waiting].sum()),
    )


def _outer_waits(recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return the synchronizing calls that no other one encloses: ``.item()`` copies and then synchronizes."""
    waits = recorded.calls.kind == CallKind.SYNCHRONIZING
    outer = CallTree(recorded.calls).outermost(waits)
    chosen: NDArray[np.bool_] = waits & (outer == np.arange(len(waits)))
    return chosen


def _in_steps(timeline: Timeline, recorded: OperatorCalls) -> NDArray[np.bool_]:
    """Return which calls begin in the steps of the timeline: from the first one's start to the last launch."""
    calls = recorded.calls
    own = timeline.launch_ns[(timeline.step >= 0) & (timeline.launch_ns != UNKNOWN)]
    begin = timeline.host.step_ns[0] if len(timeline.host.step_ns) else own.min(initial=np.iinfo(np.int64).max)
    end = max(int(own.max(initial=0)), int(timeline.windows.bounds[-1]) if len(timeline.windows.bounds) else 0)
    chosen: NDArray[np.bool_] = (calls.start_ns >= begin) & (calls.start_ns <= end)
    for gap in timeline.windows.gaps:
        since, step = timeline.windows.bounds[gap], timeline.windows.step_of_span[gap + 1]
        chosen &= (calls.start_ns < since) | (calls.start_ns >= timeline.host.step_ns[step])
    return chosen


def host_rows(
    timelines: Sequence[Timeline], recorded: Sequence[OperatorCalls], per_rank: bool = False
) -> list[dict[str, Any]]:
    """Return the host time of each operator and runtime call on the threads that launch, most self time first.

    Self time is without the calls inside; so rows add up. Total time counts a call inside one of its name once.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for timeline, calls in zip(timelines, recorded, strict=True):
        for own, figures in _host_figures(timeline, calls):
            key: tuple[Any, ...] = (*own, timeline.rank) if per_rank else own
            whole = found.setdefault(key, [0] * len(figures))
            whole[:] = [one + more for one, more in zip(whole, figures, strict=True)]
    wall = {timeline.rank: 0 for timeline in timelines}
    for timeline in timelines:
        wall[timeline.rank] += timeline.windows.wall_ns
    rows = []
    for key, (count, self_ns, total, launches) in found.items():
        length = wall[key[2]] if per_rank else sum(wall.values())
        rows.append(
            ({"rank": key[2]} if per_rank else {})
            | {"call": key[0], "kind": key[1], "count": count, "self_ns": self_ns, "total_ns": total}
            | {"mean_ns": round(total / count, 1), "share_of_step": round(self_ns / length, 6) if length else None}
            | {"launches": launches}
        )
    return sorted(rows, key=lambda row: -row["self_ns"])


def _host_figures(timeline: Timeline, recorded: OperatorCalls) -> list[tuple[tuple[str, str], list[int]]]:
    """Return count, self time, total time and launched intervals by name and kind of call, on one rank."""
    calls, tree = recorded.calls, CallTree(recorded.calls)
    if not len(calls):
        return []
    chosen = np.flatnonzero((calls.flame == Flame.CALLS) & _in_steps(timeline, recorded))
    name, kind, parent = calls.name[chosen], calls.kind[chosen], tree.parent[chosen]
    again = (parent >= 0) & (calls.name[parent] == name)
    total = np.where(again, 0, calls.end_ns[chosen] - calls.start_ns[chosen])
    # Work that operators launch counts for them and for the call that launches it.
    launched = np.zeros(len(calls), np.int64)
    own = calls.device_call[calls.device_call >= 0]
    np.add.at(launched, own, 1)
    operator = tree.innermost(recorded.is_operator)[own]
    np.add.at(launched, operator[(operator >= 0) & (operator != own)], 1)
    keys, code = np.unique(np.stack((name, kind.astype(np.int32)), axis=1), axis=0, return_inverse=True)
    sums = np.zeros((len(keys), 4), np.int64)
    columns = np.ones(len(chosen), np.int64), tree.self_ns()[chosen], total, launched[chosen]
    np.add.at(sums, code.reshape(-1), np.stack(columns, axis=1))
    return [
        ((calls.names[number], _KINDS.get(CallKind(of_kind), _SYNCHRONIZING)), figures)
        for (number, of_kind), figures in zip(keys.tolist(), sums.tolist(), strict=True)
    ]
