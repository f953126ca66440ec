"""How a benchmark's rows compare: what of naive runs is communication, and what the other modes save over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.bench.table import Row
from dptrace.model import scaling

__all__ = ["CommunicationShare", "Saving", "models_by_size", "savings", "shares", "superlinear_row", "usable"]

_BEYOND = 1.05
"""Of the ideal speedup: what is more than noise above it."""


@dataclass(frozen=True, slots=True)
class CommunicationShare:
    """A naive run's epoch, in seconds, where computing and communicating take turns."""

    row: Row
    compute_s: float
    comm_s: float
    fraction: float
    """Seed's s: communication in the epoch."""
    efficiency: float
    """Gustafson's, at this s."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How much shorter a mode's epoch is than naive's, for the same model on as many GPUs."""

    row: Row
    percent: float
    """Above 0 where it is shorter."""


def usable(rows: Sequence[Row]) -> list[Row]:
    """Give the rows that have an epoch's time, one for each model, mode and number of GPUs."""
    found: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        if row.epoch_s is not None:
            found.setdefault((row.model, row.mode, row.gpus), row)
    return list(found.values())


def models_by_size(rows: Sequence[Row]) -> list[str]:
    """Give the models, the smallest first where their sizes are known."""
    sizes = {row.model: row.parameters or 0 for row in rows}
    return sorted(sizes, key=sizes.__getitem__)


def shares(rows: Sequence[Row]) -> list[CommunicationShare]:
    """Give the naive rows as computing and communicating.

    Communication comes from recorded steps and the epoch from steps without the profiler: where it is noise that
    makes the part longer than the whole, the whole of it is communication.
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
    """Compare each parallel row with naive's, in percent of naive's epoch."""
    good = usable(rows)
    naive = {(row.model, row.gpus): row.epoch_s for row in good if row.mode == "naive"}
    found = []
    for row in good:
        base = naive.get((row.model, row.gpus))
        if base is not None and row.epoch_s is not None and row.mode != "naive" and row.gpus > 1:
            found.append(Saving(row, 100 * (base - row.epoch_s) / base))
    return found


def superlinear_row(rows: Sequence[Row]) -> Row | None:
    """Give the row whose speedup is the furthest above its number of GPUs, if it is so by more than noise."""
    found = [row for row in usable(rows) if row.speedup is not None and row.speedup > _BEYOND * row.gpus]
    return max(found, key=lambda row: (row.speedup or 0) / row.gpus, default=None)
