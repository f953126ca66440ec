"""Compare a benchmark's rows: the communication share of naive runs, and what other modes save over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.bench.table import Row
from dptrace.model import scaling

__all__ = ["CommunicationShare", "Saving", "models_by_size", "savings", "shares", "superlinear_row", "usable"]

_BEYOND = 1.05
"""Factor over the ideal speedup above which the excess is more than noise."""


@dataclass(frozen=True, slots=True)
class CommunicationShare:
    """An epoch of a naive run, in seconds: compute and communication take turns in it."""

    row: Row
    compute_s: float
    comm_s: float
    fraction: float
    """s: communication as a share of the epoch."""
    efficiency: float
    """Gustafson's efficiency at this s."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How much shorter a mode's epoch is than that of naive, for the same model and number of GPUs."""

    row: Row
    percent: float
    """Above 0 where the epoch is shorter."""


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have an epoch time, one per model, mode and number of GPUs."""
    found: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        if row.epoch_s is not None:
            found.setdefault((row.model, row.mode, row.gpus), row)
    return list(found.values())


def models_by_size(rows: Sequence[Row]) -> list[str]:
    """Return the models, smallest first where their sizes are known."""
    sizes = {row.model: row.parameters or 0 for row in rows}
    return sorted(sizes, key=sizes.__getitem__)


def shares(rows: Sequence[Row]) -> list[CommunicationShare]:
    """Return the compute and communication time of the naive rows.

    Communication comes from recorded steps and the epoch from steps without the profiler. Where noise makes
    communication longer than the epoch, the whole epoch counts as communication.
    """
    found = []
    for row in usable(rows):
        if row.mode == "naive" and row.gpus > 1 and row.comm_s is not None and row.epoch_s is not None:
            comm = min(row.comm_s, row.epoch_s)
            fraction = scaling.communication_fraction(comm, row.epoch_s)
            efficiency = scaling.gustafson_efficiency(fraction, row.gpus)
            found.append(CommunicationShare(row, row.epoch_s - comm, comm, fraction, efficiency))
    return found


def savings(rows: Sequence[Row]) -> list[Saving]:
    """Compare each parallel row with naive on as many GPUs, in percent of naive's epoch."""
    good = usable(rows)
    naive = {(row.model, row.gpus): row.epoch_s for row in good if row.mode == "naive"}
    found = []
    for row in good:
        base = naive.get((row.model, row.gpus))
        if base is not None and row.epoch_s is not None and row.mode != "naive" and row.gpus > 1:
            found.append(Saving(row, 100 * (base - row.epoch_s) / base))
    return found


def superlinear_row(rows: Sequence[Row]) -> Row | None:
    """Return the row whose speedup exceeds its number of GPUs most; None where none does by more than noise."""
    found = [row for row in usable(rows) if row.speedup is not None and row.speedup > _BEYOND * row.gpus]
    return max(found, key=lambda row: (row.speedup or 0) / row.gpus, default=None)
