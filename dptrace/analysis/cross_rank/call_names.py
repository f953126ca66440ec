"""Short names of single collectives, for labels on them: ``AR bucket 0``, ``AG layers.3``, ``send F1 → rank 2``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dptrace.analysis.matching.match import Matches
from dptrace.timeline.model import Collective, Timeline

__all__ = ["bucket_numbers", "call_names", "short_name"]

_KINDS = {
    "all_reduce": "AR",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "recv": "receive",
}
"""Abbreviations of the field; the other kinds keep their names."""
_ARROWS = {"send": "→", "recv": "←"}
_LABEL = re.compile(r"^\w+::(?P<what>[^()]*?)(?: \((?P<where>.+)\))?$")
_PIPELINE = re.compile(r"^PP:\d*(?:SEND|RECV)_(?P<action>\w+)$")
_RING = re.compile(r"^Ring::(?P<phase>[\w-]+) \(chunk (?P<send>\d+) out, (?P<recv>\d+) in\)$")
_SAID_BY_KIND = re.compile("all_?reduce|all_?gather|reduce_?scatter|post_backward_reduce|all_?to_?all")
"""Words of labels that repeat what the kind says."""


def call_names(timelines: Sequence[Timeline], matches: Matches, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return for each device the name of each of its collectives, in the order of its timeline; empty where unknown.

    Args:
        timelines: of the devices of *matches*.
        names: the name of each instance of *matches*, see ``ddp_buckets.instance_names``.
    """
    shared = np.full(sum(int((timeline.collective >= 0).sum()) for timeline in timelines), "", object)
    counts = [int((timeline.collective >= 0).sum()) for timeline in timelines]
    first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    shared[first[matches.device] + matches.index] = np.array(names, object)[matches.instance]
    found = []
    for number, timeline in enumerate(timelines):
        for call, bucket in bucket_numbers(timeline).items():
            shared[first[number] + call] = shared[first[number] + call] or f"bucket {bucket}"
        calls = timeline.collective[timeline.collective >= 0].tolist()
        own = shared[first[number] : first[number + 1]].tolist()
        # Few of many calls differ.
        known = {pair: short_name(timeline.collectives[pair[0]], pair[1]) for pair in set(zip(calls, own, strict=True))}
        found.append(tuple(known[pair] for pair in zip(calls, own, strict=True)))
    return tuple(found)


def bucket_numbers(timeline: Timeline) -> dict[int, int]:
    """Return the number of DDP's bucket by the index of its all-reduce among a timeline's collectives.

    DDP launches the all-reduces of its buckets in their order, once per backward pass. They are numbered where a step
    shows a single pass: sizes that repeat may be several, and steps of other sizes than most may lack some.
    """
    comm = np.flatnonzero(timeline.collective >= 0)
    calls = [timeline.collectives[call] for call in timeline.collective[comm].tolist()]
    passes: dict[tuple[int, str], list[int]] = {}
    steps = timeline.step[comm].tolist() if timeline.uses_ddp else []
    for call, step in sorted(enumerate(steps), key=lambda pair: int(timeline.launch_ns[comm[pair[0]]])):
        what = calls[call]
        if step >= 0 and what.gradients and what.kind == "all_reduce" and not what.label:
            passes.setdefault((step, what.group), []).append(call)
    sizes = {key: tuple(calls[call].bytes for call in found) for key, found in passes.items()}
    usual = Counter(size for size in sizes.values() if not _repeats(size)).most_common(1)
    chosen = [found for key, found in passes.items() if usual and sizes[key] == usual[0][0]]
    return {call: bucket for found in chosen for bucket, call in enumerate(found)}


def _repeats(sizes: tuple[int, ...]) -> bool:
    """Return whether sizes are those of a shorter row several times."""
    count = len(sizes)
    return any(sizes == sizes[:part] * (count // part) for part in range(1, count // 2 + 1) if count % part == 0)


def short_name(collective: Collective, instance: str = "") -> str:
    """Return the name of a collective by its bucket, the trainer's label or its peer; empty without any of them.

    Args:
        instance: its name across ranks: ``bucket 0``.

    >>> short_name(Collective("all_reduce"), "bucket 0")
    'AR bucket 0'
    >>> short_name(Collective("all_gather", label="FSDP::all_gather (layers.3)"))
    'AG layers.3'
    >>> short_name(Collective("all_to_all", label="MoE::dispatch (1.mlp)"))
    'A2A dispatch 1.mlp'
    >>> short_name(Collective("send", peer=2, label="PP:0SEND_F1"))
    'send F1 → rank 2'
    """
    label = collective.label
    if instance and instance != label and not label:
        what = instance
    elif ring := _RING.match(label):
        chunk = (
            f"chunk {ring[collective.kind]}" if collective.kind in _ARROWS else f"{ring['send']} out, {ring['recv']} in"
        )
        what = f"{ring['phase']} {chunk}"
    elif pipeline := _PIPELINE.match(label):
        what = pipeline["action"]
    elif named := _LABEL.match(label):
        said = _SAID_BY_KIND.fullmatch(named["what"]) is not None
        what = " ".join(part for part in ("" if said else named["what"], named["where"]) if part)
    else:
        what = label
    peer = (
        f"{_ARROWS[collective.kind]} rank {collective.peer}"
        if collective.kind in _ARROWS and collective.peer >= 0
        else ""
    )
    if not what and not peer:
        return ""
    kind = _KINDS.get(collective.kind, "" if collective.kind == "other" else collective.kind)
    return " ".join(part for part in (kind, what, peer) if part)
