"""What each transfer of a run costs: its latency and its bytes, by the lines fitted to the run's transfers."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, median, unique
from dptrace.errors import DptraceError
from dptrace.model.alpha_beta import MIN_SIZE_RATIO, Line, weighted_line
from dptrace.model.collectives import COLLECTIVES, Algorithm, algorithm_of
from dptrace.replay.graph.build import Model
from dptrace.replay.simulation.changes import no_collectives, with_times

__all__ = ["Floats", "TransferCosts", "all_reduce_line", "has_known_size", "transfer_costs", "with_transfers"]

Floats = NDArray[np.float64]
_FEWEST_R2 = 0.2
"""A line that explains less says nothing about the latency: all of the time then counts as transfer."""

_SLOWEST_HOP = 2.0
"""A hop has this much more than the shortest time of a collective's hop at most."""


class TransferCosts(msgspec.Struct, frozen=True):
    """The transfers that take time, one entry per transfer in each column."""

    task: Int64
    latency_ns: Floats
    """What part of its time does not depend on its bytes; 0 where the sizes of the run do not show it."""
    moving_ns: Floats
    """The rest of its time."""
    bytes: Floats
    hops: Floats
    share: Floats
    """Of the algorithm that it presumably uses: how often it pays a link's latency, and moves its bytes over a link."""

    def __len__(self) -> int:
        return len(self.task)


def transfer_costs(model: Model) -> TransferCosts:
    """Price the transfers of a model.

    Raises:
        DptraceError: the run has no collectives.
    """
    graph, transfers = model.graph, model.transfers
    # Where each rank leaves on its own, the meeting before takes no time.
    number = unique(transfers.instance)
    if not len(number):
        raise no_collectives(model)
    task = transfers.task[number]
    latency, hops, share = (np.zeros(len(number)) for _ in range(3))
    lines = {(fit.kind, fit.group): fit for fit in model.run.cross_rank.fits}
    groups = model.run.cross_rank.matches.groups
    for kind, group in set(zip(transfers.kind[number].tolist(), transfers.group[number].tolist(), strict=True)):
        same = (transfers.kind[number] == kind) & (transfers.group[number] == group)
        fit = lines.get((kind, group))
        if fit is not None and fit.alpha_s and (fit.r2 or 0.0) >= _FEWEST_R2:
            latency[same] = fit.alpha_s * 1e9
        ranks = fit.ranks if fit is not None else max(2, groups[group].size)
        algorithm = _algorithm(model, kind)
        hops[same] = algorithm.hops(ranks) if algorithm else 1.0
        share[same] = algorithm.share(ranks) if algorithm else 1.0
    durations = graph.duration_ns[task].astype(np.float64)
    fixed = np.minimum(latency, durations)
    return TransferCosts(task, fixed, durations - fixed, transfers.bytes[number].astype(np.float64), hops, share)


def _algorithm(model: Model, kind: str) -> Algorithm | None:
    known = kind in COLLECTIVES and COLLECTIVES[kind].algorithm
    return algorithm_of("gloo" if model.run.on_cpu else "nccl", kind) if known else None


def with_transfers(model: Model, of: TransferCosts) -> Model:
    """Return the model with other durations of its transfers."""
    durations = model.graph.duration_ns.copy()
    durations[of.task] = np.maximum(np.rint(of.latency_ns + of.moving_ns), 0).astype(np.int64)
    return with_times(model, durations)


def all_reduce_line(model: Model) -> Line:
    """Fit the line of the model's all-reduces; without latency where they have one size only.

    Raises:
        DptraceError: the run has no all-reduces with known sizes.
    """
    of, transfers = transfer_costs(model), model.transfers
    kinds = dict(zip(transfers.task.tolist(), transfers.kind.tolist(), strict=True))
    reduces = np.array([kinds[task] == "all_reduce" for task in of.task.tolist()], np.bool_)
    duration_ns = of.latency_ns + of.moving_ns
    reduces &= (of.bytes > 0) & (duration_ns > 0)
    if not reduces.any():
        raise DptraceError(
            f"{model.run.path}: no all-reduce with a known size, so messages of other sizes can't be predicted. Record "
            "two ranks or more, with a torch that writes the sizes of collectives."
        )
    size, seconds = of.bytes[reduces].astype(np.int64), duration_ns[reduces] / 1e9
    sizes, which, count = np.unique(size, return_inverse=True, return_counts=True)
    # Small messages decide the latency, large ones the bandwidth: both count by their relative error.
    typical = np.array([median(seconds[which == i]) for i in range(len(sizes))])
    if sizes[-1] < MIN_SIZE_RATIO * sizes[0]:
        return Line(0.0, float(seconds.sum() / size.sum()))
    line = weighted_line(sizes, typical, np.sqrt(count) / typical)
    # No message is much faster than its latency. Waits for ranks that were not recorded would look like latency.
    timed = (of.bytes > 0) & (duration_ns > 0)
    hop_s = float((duration_ns[timed] / of.hops[timed]).min()) / 1e9
    most = _SLOWEST_HOP * hop_s * float(of.hops[reduces].min())
    if line.alpha_s <= most:
        return line
    weight = count / typical**2
    return Line(most, max(0.0, float((weight * sizes * (typical - most)).sum() / (weight * sizes**2.0).sum())))


def has_known_size(model: Model, of: TransferCosts, option: str) -> NDArray[np.bool_]:
    """Return which transfers have known sizes; the others keep what they took.

    Raises:
        DptraceError: none has.
    """
    known: NDArray[np.bool_] = of.bytes > 0
    if not known.any():
        raise DptraceError(
            f"{model.run.path}: {option} needs the sizes of messages, and the trace has none. Record with a torch that "
            "writes them (2.1 or later), without --light."
        )
    return known
