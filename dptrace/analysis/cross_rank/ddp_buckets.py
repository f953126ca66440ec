"""DDP's gradient buckets: which all-reduce carries which parameters of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import unique
from dptrace.timeline.model import Phase

__all__ = ["Bucket", "Buckets", "buckets", "ddp_logging_data", "instance_names"]


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
    ranks = metadata.get("ranks")
    entries = [metadata, *(ranks if isinstance(ranks, list) else [])]
    data = [entry.get("ddp") for entry in entries if isinstance(entry, Mapping)]
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
