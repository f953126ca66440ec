"""DDP's gradient buckets: which all-reduce carries which parameters of the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import unique
from dptrace.timeline.model import Collective, Phase, Timeline


class Bucket(msgspec.Struct, frozen=True):
    """A gradient bucket, from DDP's logging data."""

    index: int
    bytes: int
    parameters: tuple[int, ...]
    """Indices into ``model.parameters()``, in the order in which their gradients became ready."""

    @property
    def name(self) -> str:
        """The name in tables: ``bucket 0``."""
        return f"bucket {self.index}"


class Buckets(msgspec.Struct, frozen=True, dict=True):
    """DDP's buckets and the instances that carry them."""

    buckets: tuple[Bucket, ...]
    bucket: NDArray[np.int32]
    """The bucket's index for each instance of the matches, or -1."""
    notes: tuple[str, ...]
    """Differences between the trace and DDP's logging data, one sentence each."""


def buckets(matches: Matches, metadata: Mapping[str, Any]) -> Buckets | None:
    """Find the buckets in each step; return None for a run without DDP's logging data.

    DDP reduces its buckets in order, so the buckets are the all-reduces of a backward pass with these sizes in turn.

    Args:
        metadata: the contents of ``run.json``.
    """
    buckets_logged = _ddp_logging_buckets(metadata)
    if not buckets_logged:
        return None
    bucket = np.full(len(matches), -1, np.int32)
    wanted = (matches.kind == "all_reduce") & (matches.phase == Phase.BACKWARD) & (matches.step != "")
    # Labeled all-reduces are not DDP's: layers shared by ranks are reduced in backward too.
    wanted &= np.array([not what.label for what in matches.collectives], np.bool_)
    if not (matches.bytes[wanted] > 0).any():  # recorded without sizes, as with --light
        return Buckets(buckets_logged, bucket, ())
    missed = []
    for step in dict.fromkeys(matches.step[wanted].tolist()):
        last = -1
        # Each group of replicas reduces its own buckets: with shared layers there are several groups.
        for group in unique(matches.group[wanted & (matches.step == step)]).tolist():
            rows = np.flatnonzero(wanted & (matches.step == step) & (matches.group == group))
            # In the order of their starts: concurrent all-reduces may end in a different order.
            rows = rows[np.argsort(matches.start_ns[matches.first[rows]], kind="stable")]
            indices = list(_in_turn([logged.bytes for logged in buckets_logged], matches.bytes[rows].tolist()))
            bucket[rows] = indices
            last = max(last, *indices)
        if last < len(buckets_logged) - 1:
            missed.append(str(step))
    notes = []
    if missed:
        sizes = ", ".join(f"{logged.bytes:,}" for logged in buckets_logged)
        steps = missed[0] + (f" and {len(missed) - 1} more" if len(missed) > 1 else "")
        notes.append(
            f"DDP reports buckets of {sizes} bytes, but not all of them were found in {steps}: DDP rebuilt its "
            "buckets, or a communication hook changed what is reduced."
        )
    return Buckets(buckets_logged, bucket, tuple(notes))


def _in_turn(sizes: list[int], seen: list[int]) -> Iterator[int]:
    """Yield for each size the index of the next bucket in turn if it has this size, else -1."""
    due = 0
    for size in seen:
        if size == sizes[due]:
            yield due
            due = (due + 1) % len(sizes)
        else:
            yield -1


def instance_names(matches: Matches, ddp: Buckets | None) -> list[str]:
    """Return the name of each instance: its bucket's, else the trainer's label at its launch, else empty."""
    labels = [what.label for what in matches.collectives]
    if ddp is None:
        return labels
    return [ddp.buckets[i].name if i >= 0 else label for i, label in zip(ddp.bucket.tolist(), labels, strict=True)]


def ddp_logging_data(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return DDP's logging data of the run, or of the first rank that has it; empty without any.

    Args:
        metadata: the contents of ``run.json``.
    """
    data = [entry.get("ddp") for entry in (metadata, *rank_entries(metadata))]
    return next((logged for logged in data if isinstance(logged, Mapping) and logged), {})


def _ddp_logging_buckets(metadata: Mapping[str, Any]) -> tuple[Bucket, ...]:
    data = ddp_logging_data(metadata)
    sizes = _numbers(data.get("rebuilt_bucket_sizes")) or _numbers(data.get("bucket_sizes"))
    parameters = str(data.get("rebuilt_per_bucket_param_indices") or "").split(",")
    lists = [_numbers(text.replace(" ", ",")) for text in parameters] if len(parameters) == len(sizes) else []
    return tuple(
        Bucket(index, size, tuple(lists[index]) if lists else ()) for index, size in enumerate(sizes) if size > 0
    )


def _numbers(text: object) -> list[int]:
    parts = [part.strip() for part in str(text or "").split(",")]
    return [int(part) for part in parts if part.isascii() and part.isdigit()]


# Short names of single collectives, for labels on them: ``AR bucket 0``, ``AG layers.3``, ``send F1 → rank 2``.

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
    found, known = [], dict[tuple[int, str], str]()
    for number, timeline in enumerate(timelines):
        for call, bucket in bucket_numbers(timeline).items():
            shared[first[number] + call] = shared[first[number] + call] or f"bucket {bucket}"
        calls = [timeline.collectives[call] for call in timeline.collective[timeline.collective >= 0].tolist()]
        # Few of many calls differ, and those of several ranks that are alike are one object.
        pairs = list(zip(map(id, calls), shared[first[number] : first[number + 1]].tolist(), strict=True))
        for pair, call in dict(zip(pairs, calls, strict=True)).items():
            if pair not in known:
                known[pair] = short_name(call, pair[1])
        found.append(tuple(map(known.__getitem__, pairs)))
    return tuple(found)


def bucket_numbers(timeline: Timeline) -> dict[int, int]:
    """Return the number of DDP's bucket by the index of its all-reduce among a timeline's collectives.

    DDP launches the all-reduces of its buckets in their order, once per backward pass. They are numbered where a step
    shows a single pass: sizes that repeat may be several, and steps of other sizes than most may lack some.
    """
    if not timeline.uses_ddp:
        return {}
    comm = np.flatnonzero(timeline.collective >= 0)
    calls = [timeline.collectives[call] for call in timeline.collective[comm].tolist()]
    passes: dict[tuple[int, str], list[int]] = {}
    steps = timeline.step[comm].tolist()
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
