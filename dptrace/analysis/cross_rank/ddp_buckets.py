"""DDP's buckets among the collectives: which all-reduce carries which of the model's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.timeline.model import Phase

__all__ = ["Bucket", "Buckets", "buckets", "instance_names"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One of the pieces in which DDP reduces the gradients, as DDP's own logging data tells it."""

    index: int
    bytes: int
    parameters: tuple[int, ...]
    """Their places in ``model.parameters()``, in the order in which their gradients became ready."""

    @property
    def name(self) -> str:
        """Give what it is called: ``bucket 0``."""
        return f"bucket {self.index}"


@dataclass(frozen=True)
class Buckets:
    """DDP's buckets, and the instances that carry them."""

    buckets: tuple[Bucket, ...]
    bucket: NDArray[np.int32]
    """Of each instance of the matches: index of the bucket, or -1."""
    notes: tuple[str, ...]
    """Where the collectives in the trace are not those that DDP tells of, a sentence each."""


def buckets(matches: Matches, metadata: Mapping[str, Any]) -> Buckets | None:
    """Name the buckets of each step; give nothing for a run of which DDP's logging data is not known.

    DDP reduces its buckets in order, so those are the all-reduces of a backward pass that have their sizes in turn.

    Args:
        info: the contents of ``run.json``.
    """
    buckets_logged = _ddp_logging_buckets(metadata)
    if not buckets_logged:
        return None
    bucket = np.full(len(matches), -1, np.int32)
    wanted = (matches.kind == "all_reduce") & (matches.phase == Phase.BACKWARD) & (matches.step != "")
    # What has a label is another's: layers that ranks share are reduced in backward, too.
    wanted &= np.array([not what.label for what in matches.collectives], np.bool_)
    missed = []
    for step in dict.fromkeys(matches.step[wanted].tolist()):
        last = -1
        # Each group of replicas reduces its own: with shared layers there are several.
        for group in np.unique(matches.group[wanted & (matches.step == step)]).tolist():
            rows = np.flatnonzero(wanted & (matches.step == step) & (matches.group == group))
            # In the order in which they began: two that run at once may end in another.
            rows = rows[np.argsort(matches.start_ns[matches.first[rows]], kind="stable")]
            found = list(_in_turn([logged.bytes for logged in buckets_logged], matches.bytes[rows].tolist()))
            bucket[rows] = found
            last = max(last, *found)
        if last < len(buckets_logged) - 1:
            missed.append(str(step))
    notes = []
    if missed:
        sizes = ", ".join(f"{logged.bytes:,}" for logged in buckets_logged)
        steps = missed[0] + (f" and {len(missed) - 1} more" if len(missed) > 1 else "")
        notes.append(
            f"DDP tells of buckets of {sizes} bytes, but not all of them were found in {steps}: they were made "
            "anew, or a communication hook reduces something else."
        )
    return Buckets(buckets_logged, bucket, tuple(notes))


def _in_turn(sizes: list[int], seen: list[int]) -> Iterator[int]:
    """Give for each size seen the bucket that was due and has that size, else -1."""
    due = 0
    for size in seen:
        if size == sizes[due]:
            yield due
            due = (due + 1) % len(sizes)
        else:
            yield -1


def instance_names(matches: Matches, found: Buckets | None) -> list[str]:
    """Give each instance's own name: its bucket's, else the trainer's label where it was launched, else nothing."""
    labels = [what.label for what in matches.collectives]
    if found is None:
        return labels
    return [found.buckets[i].name if i >= 0 else label for i, label in zip(found.bucket.tolist(), labels, strict=True)]


def _ddp_logging_buckets(metadata: Mapping[str, Any]) -> tuple[Bucket, ...]:
    """Read DDP's logging data: of the run, or of the first rank that has it."""
    ranks = metadata.get("ranks")
    entries = [metadata, *(ranks if isinstance(ranks, list) else [])]
    data: Mapping[str, Any] = next(
        (e["ddp"] for e in entries if isinstance(e, Mapping) and isinstance(e.get("ddp"), Mapping)), {}
    )
    sizes = _numbers(data.get("rebuilt_bucket_sizes")) or _numbers(data.get("bucket_sizes"))
    parameters = str(data.get("rebuilt_per_bucket_param_indices") or "").split(",")
    lists = [_numbers(text.replace(" ", ",")) for text in parameters] if len(parameters) == len(sizes) else []
    return tuple(
        Bucket(index, size, tuple(lists[index]) if lists else ()) for index, size in enumerate(sizes) if size > 0
    )


def _numbers(text: object) -> list[int]:
    parts = [part.strip() for part in str(text or "").split(",")]
    return [int(part) for part in parts if part.isascii() and part.isdigit()]
