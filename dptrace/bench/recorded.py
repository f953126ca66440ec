"""What a recorded run says of one training: its split, its collectives, and the buckets of DDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dptrace.run.cross_rank import gradient_transfers, ready_before_last

if TYPE_CHECKING:
    from dptrace.run.cross_rank import CrossRankAnalysis
    from dptrace.run.run import Run


class RecordedFigures(msgspec.Struct, frozen=True):
    """Figures of one recorded run, as its result keeps them; times are means over ranks and steps unless stated."""

    compute_s: float
    exposed_s: float
    overlapped_s: float
    wall_s: float
    """Of a step."""
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
    """FLOPs of the model on one rank in a step, in units of 10¹²: a timed step's rate follows from its own time."""
    mfu_s: float | None = None
    """MFU of a step that takes a second."""

    @property
    def comm_s(self) -> float:
        """Communication, overlapped or not."""
        return self.exposed_s + self.overlapped_s

    @property
    def fraction(self) -> float | None:
        """s = T_comm / (T_comp + T_comm), communication overlapped or not; None where both are 0."""
        whole = self.compute_s + self.comm_s
        return self.comm_s / whole if whole else None


def recorded_figures(run: Run) -> RecordedFigures:
    """Return the figures of a run."""
    splits, cross_rank = run.splits, run.cross_rank

    def mean_s(name: str) -> float:
        return float(np.mean([split.figures[f"{name}_ns"].mean() for split in splits])) / 1e9

    kinds, found = splits[0].comm.values(), cross_rank.buckets
    buckets = found.buckets if found else ()
    tflop, mfu_s = run.efficiency.of_wall(1.0)
    return RecordedFigures(
        compute_s=sum(map(mean_s, ("forward", "backward", "optimizer", "other"))),
        exposed_s=mean_s("exposed_comm"),
        overlapped_s=mean_s("overlapped_comm"),
        wall_s=mean_s("wall"),
        collectives=float(sum(kind.count.mean() for kind in kinds)),
        bytes=float(sum(kind.bytes.mean() for kind in kinds)),
        order=tuple(place for bucket in buckets for place in bucket.parameters),
        bucket_bytes=tuple(bucket.bytes for bucket in buckets),
        ready_s=ready_before_last(cross_rank),
        sent=gradient_transfers(cross_rank),
        buckets=tuple(_bucket_rows(cross_rank)),
        notes=found.notes if found else (),
        tflop=tflop,
        mfu_s=mfu_s,
    )


def _bucket_rows(cross_rank: CrossRankAnalysis) -> list[dict[str, Any]]:
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
