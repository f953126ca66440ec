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

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.backward import forward_operators, in_autograd, recomputed_calls
from dptrace.analysis.kernels.call_tree import CallTree, Index, Labels
from dptrace.analysis.kernels.modules import annotations_of, modules_of
from dptrace.core.intervals import Int64
from dptrace.model.operator_costs import owns_kernels, owns_without_parts
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Timeline

__all__ = ["Attribution", "attribute", "calls_with_cost", "modules_of_calls"]


class Attribution(msgspec.Struct, frozen=True):
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

    def __len__(self) -> int:
        return len(self.interval)

    def filter(self, chosen: NDArray[np.bool_]) -> Attribution:
        """Select pieces."""
        return Attribution(*(getattr(self, column)[chosen] for column in self.__struct_fields__))


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
