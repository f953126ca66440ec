"""Bus bandwidth over message size: every collective as a dot, on two logarithmic axes, with the fitted line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dptrace.analysis.cross_rank.transfers import AlphaBeta
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base.marks import Dot, Drawing, Entry, Line, log_axis, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import NO_COMMUNICATION
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "bandwidth", "bandwidth_table"]

TITLE = "Size and bandwidth of collectives"
NOT_KNOWN = "No collective of this run has both a known size and a known transfer time."
_LOOKS = (
    *(("#0072B2", "circle"), ("#D55E00", "triangle"), ("#009E73", "square"), ("#AA4499", "diamond")),
    *(("#332288", "triangle"), ("#8A6D00", "square"), ("#4B5563", "circle")),
)
"""Color and shape by kind, distinguishable for color-blind readers."""
_FINEST = 150
"""Resolution of an axis: dots closer than this are drawn as one."""
_FIT_POINTS = 40


def bandwidth(run: Run) -> Drawing:
    """Draw the bus bandwidth of every collective by its size."""
    matches, timing = run.cross_rank.matches, run.cross_rank.timing
    known = np.flatnonzero((matches.bytes > 0) & (timing.busbw > 0))
    if not len(known):
        return message(TITLE, NOT_KNOWN if len(matches) else NO_COMMUNICATION)
    kinds = sorted(set(matches.kind[known].tolist()))
    looks = {kind: _LOOKS[index % len(_LOOKS)] for index, kind in enumerate(kinds)}
    x = log_axis(matches.bytes[known].tolist(), byte_size, "message size")
    y = log_axis((timing.busbw[known] / 1e9).tolist(), lambda value: f"{value:g}", "bus bandwidth, GB/s", upwards=True)
    lines = [line for fit in run.cross_rank.fits for line in _line(fit, matches, looks)]
    legend = tuple(Entry(looks[kind][0], kind, looks[kind][1]) for kind in kinds)
    text = "As nccl-tests defines it, from the transfer time."
    text += " Dashed: the fit, latency + time per byte." if lines else ""
    return Drawing(TITLE, text, x, y, 340, (*lines, *_dots(run, known, looks)), legend)


def _dots(run: Run, known: Int64, looks: dict[str, tuple[str, str]]) -> Iterator[Dot]:
    """Draw the collectives; those of one kind that would overlap become one dot."""
    matches, timing = run.cross_rank.matches, run.cross_rank.timing
    size, rate = matches.bytes[known].astype(np.float64), timing.busbw[known] / 1e9
    kinds, code = np.unique(matches.kind[known].astype(str), return_inverse=True)
    places = [np.rint(np.log10(values) * _FINEST / 3) for values in (size, rate)]
    cells = np.stack((code, *places))
    _, first, count = np.unique(cells, axis=1, return_index=True, return_counts=True)
    for at, many in zip(first.tolist(), count.tolist(), strict=True):
        kind, row = str(kinds[code[at]]), int(known[at])
        color, shape = looks[kind]
        about = f"{kind}, {byte_size(size[at])}: {rate[at]:.3g} GB/s, {milliseconds(float(timing.transfer_ns[row]))} ms"
        about += f", {matches.step[row]}" if matches.step[row] and many == 1 else f" ({many} like it)"
        yield Dot(float(size[at]), float(rate[at]), color, about, shape=shape)


def _line(fit: AlphaBeta, matches: Matches, looks: dict[str, tuple[str, str]]) -> Iterator[Line]:
    """Draw the bandwidth of the fit over the sizes that it was fitted to."""
    mine = (matches.kind == fit.kind) & (matches.group == fit.group) & matches.complete & (matches.bytes > 0)
    if fit.alpha_s is None or fit.kind not in looks or not mine.any():
        return
    sizes = np.geomspace(int(matches.bytes[mine].min()), int(matches.bytes[mine].max()), _FIT_POINTS).tolist()
    points = [(size, rate / 1e9) for size in sizes if (rate := fit.busbw(round(size)))]
    yield Line(tuple(points), looks[fit.kind][0], "5 4")


def bandwidth_table(run: Run) -> TextTable:
    """Return the fit of each kind and group: latency, bandwidth, and the size where data dominates latency."""
    rows = []
    for fit in run.cross_rank.fits:
        about = fit.kind, run.cross_rank.matches.groups[fit.group].name or "–", str(fit.ranks), str(fit.count)
        if fit.alpha_s is None:
            rows.append((*about, "–", "–", "–", "–", fit.reason))
            continue
        beta, crossover = fit.beta_s_per_byte, fit.crossover_bytes
        rate = f"{1e-9 / beta:.3g}" if beta else "–"
        fit_cells = f"{fit.alpha_s * 1e6:.1f}", rate, byte_size(crossover) if crossover else "–"
        rows.append((*about, *fit_cells, "–" if fit.r2 is None else f"{fit.r2:.2f}", ""))
    columns = ("kind", "group", "ranks", "count", "latency µs", "GB/s", "half at", "R²", "why not")
    note = "Transfer time = latency + bytes / rate, fitted to collectives of which all ranks are here."
    return TextTable(columns, tuple(rows), 2, note if rows else NO_COMMUNICATION)


VIEW = View("bandwidth", TITLE, bandwidth_table, bandwidth, in_report=True, shows_cross_rank=True)
