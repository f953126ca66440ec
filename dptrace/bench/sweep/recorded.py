"""Figures of the recorded run of a sweep's point: split, bucket times, and when gradients become ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.run.cross_rank import gradient_transfers, ready_before_last

if TYPE_CHECKING:
    from dptrace.run.cross_rank import CrossRankAnalysis
    from dptrace.run.run import Run

__all__ = ["RecordedFigures", "recorded_figures"]

_COMPUTE = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
_COMMUNICATION = ("exposed_comm_ns", "overlapped_comm_ns")


@dataclass(frozen=True)
class RecordedFigures:
    """Figures of one recorded run; times are means over ranks and steps unless stated otherwise."""

    compute_s: float
    comm_s: float
    exposed_s: float
    collectives: float
    """Number per step, on the first rank."""
    bytes: float
    """Bytes of the collectives of a step, on the first rank."""
    order: tuple[int, ...] = ()
    """Indices of the parameters in ``model.parameters()``, in the order in which DDP puts them in buckets."""
    bucket_bytes: tuple[int, ...] = ()
    """Bytes of DDP's buckets, in order."""
    ready_s: tuple[float, ...] = ()
    """When each bucket was ready, relative to the last one (0 or less)."""
    sent: tuple[tuple[int, float], ...] = ()
    """Bytes of each all-reduce in backward, and the seconds that it took, or would have taken alone."""
    buckets: tuple[dict[str, Any], ...] = ()
    """A row for each bucket in each step: ``step``, ``bucket``, ``bytes``, ``transfer_s``, ``wait_s``,
    ``exposed_s``; the last two are means over ranks."""
    notes: tuple[str, ...] = ()
    tflop: float | None = None
    """FLOPs of the model on one rank in a step, in units of 10¹²."""
    mfu_s: float | None = None
    """MFU of a step that takes a second."""

    @property
    def fraction(self) -> float | None:
        """s = T_comm / (T_comp + T_comm), communication overlapped or not; None where both are 0."""
        whole = self.compute_s + self.comm_s
        return self.comm_s / whole if whole else None


def recorded_figures(run: Run) -> RecordedFigures:
    """Return the figures of a run."""
    splits = run.splits

    def mean(*names: str) -> float:
        return sum(float(np.mean([split.figures[name].mean() for split in splits])) for name in names) / 1e9

    kinds = splits[0].comm.values()
    cross_rank = run.cross_rank
    found = cross_rank.buckets
    buckets = found.buckets if found else ()
    return RecordedFigures(
        compute_s=mean(*_COMPUTE),
        comm_s=mean(*_COMMUNICATION),
        exposed_s=mean("exposed_comm_ns"),
        collectives=float(sum(kind.count.mean() for kind in kinds)),
        bytes=float(sum(kind.bytes.mean() for kind in kinds)),
        order=tuple(place for bucket in buckets for place in bucket.parameters),
        bucket_bytes=tuple(bucket.bytes for bucket in buckets),
        ready_s=ready_before_last(cross_rank),
        sent=gradient_transfers(cross_rank),
        buckets=tuple(_rows(cross_rank)),
        notes=found.notes if found else (),
        tflop=run.efficiency.of_wall(1.0)[0],
        mfu_s=run.efficiency.of_wall(1.0)[1],
    )


def _rows(cross_rank: CrossRankAnalysis) -> list[dict[str, Any]]:
    if cross_rank.buckets is None:
        return []
    rows = []
    for row, bucket in zip(cross_rank.collectives(), cross_rank.buckets.bucket.tolist(), strict=True):
        members: Sequence[dict[str, Any]] = row["members"]
        if bucket >= 0 and row["complete"]:
            rows.append(
                {
                    "step": row["step"],
                    "bucket": bucket,
                    "bytes": row["bytes"],
                    "transfer_s": row["transfer_ns"] / 1e9,
                    "wait_s": float(np.mean([member["wait_ns"] for member in members])) / 1e9,
                    "exposed_s": float(np.mean([member["exposed_ns"] for member in members])) / 1e9,
                }
            )
    return rows
