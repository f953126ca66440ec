"""Layers of a model: the repeated blocks that a user thinks of, and the collectives that serve them.

A layer is the part of a module's path up to its first number (``layers.3`` of ``layers.3.attn.qkv``); where paths are
those of ``nn.Module`` events, the outermost module that is repeated (``Block_3`` of ``GPT_0/Block_3/Linear_7``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dptrace.analysis.kernels.attribution import Attribution
from dptrace.analysis.kernels.call_tree import CallTree, Index
from dptrace.analysis.kernels.modules import module_labels, module_paths
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Timeline

__all__ = ["layer_names", "layers_of"]

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
