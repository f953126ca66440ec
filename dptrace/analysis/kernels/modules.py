"""Modules and annotations around launches, and the paths of modules.

A module is, where the file has them: ``nn.Module: Linear_3`` (``with_modules`` or ``with_stack``), a module that
``dptrace record --modules`` marks, or what an FSDP label names. Without any, annotations take their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.kernels.call_tree import CallTree, Index, Labels
from dptrace.timeline.host_calls import CallKind, Flame, OperatorCalls

__all__ = [
    "MODULE_LABEL",
    "annotations_of",
    "has_modules",
    "module_labels",
    "module_paths",
    "modules_of",
    "without_hashes",
]

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
