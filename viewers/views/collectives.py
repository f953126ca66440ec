"""Views of collectives: time by kind, bandwidth by size, buckets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dptrace.analysis.cross_rank.transfers import AlphaBeta, Latency, with_phase_in_name
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.split import OVERLAPPED_LABEL, by_kind
from dptrace.core.intervals import Int64
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import NO_COMMUNICATION, TALL, Bar, RowLayout, bar_chart
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Line, log_axis, message, time_axis
from dptrace.viewers.base.table import TextTable, collective_columns
from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps import exposed_bar_parts

# Bars of communication by kind: exposed and overlapped time per rank and step.


COMMUNICATION_TITLE = "Communication by kind"


def communication(run: Run) -> Drawing:
    """Draw the waiting, exposed and overlapped time of each kind of collective, per GPU and step."""
    kinds = sorted(by_kind(run.splits), key=lambda kind: -(kind.exposed_ns or 0) - (kind.overlapped_ns or 0))
    if not kinds:
        return message(COMMUNICATION_TITLE, NO_COMMUNICATION)
    if kinds[0].exposed_ns is None:
        why = next(split.unknown["exposed_comm_ns"] for split in run.splits if "exposed_comm_ns" in split.unknown)
        return message(COMMUNICATION_TITLE, f"What of it is exposed is unknown, because {why}.")
    bars, waits = [], run.cross_rank.mean_waits_by_kind()
    for kind in kinds:
        parts = (
            *exposed_bar_parts(kind.exposed_ns or 0, waits[kind.kind], None),
            (OVERLAPPED_LABEL, kind.overlapped_ns or 0, theme.OVERLAPPED),
        )
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        bars.append(Bar(kind.kind, kind.kind, parts, f" · {kind.count:.4g} call{'s' * (kind.count != 1)}{size}"))
    subtitle = "Mean over all ranks and steps. Shares are of the time of that kind."
    return bar_chart(COMMUNICATION_TITLE, subtitle, bars, TALL, right=220)


def communication_table(run: Run) -> TextTable:
    """Return count, bytes and times of each kind of collective, per GPU and step."""
    columns = collective_columns(run)
    rows = tuple(tuple(cell(kind) for cell in columns.values()) for kind in by_kind(run.splits))
    return TextTable(tuple(columns), rows, 1, "Mean per rank and step." if rows else NO_COMMUNICATION)


COMMUNICATION_VIEW = View("communication", COMMUNICATION_TITLE, communication_table, communication, in_report=True)


# Bus bandwidth over message size: every collective as a dot, on two logarithmic axes, with the fitted line.


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
"""Of a fitted curve."""


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
    rates = ((size, fit.busbw(round(size))) for size in sizes)
    points = [(size, rate / 1e9) for size, rate in rates if rate]
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


BANDWIDTH_VIEW = View("bandwidth", TITLE, bandwidth_table, bandwidth, in_report=True, shows_cross_rank=True)


# Transfer times of similar collectives: a row of dots per bucket, or per kind and size; slow ones stand out.


BUCKETS_TITLE = "Transfer time of each bucket, or of each kind and size"
MISSING = "No collective has all of its ranks here, so wait and transfer time are unknown."
MAX_ROWS = 24
_NORMAL, _SLOW = "#0072B2", theme.EXPOSED
_SPREAD = 40
"""Ratio of the longest to the shortest time from which the axis is logarithmic."""
_BUCKET_FINEST = 400
"""Resolution of the axis: dots closer than this are drawn as one."""


def buckets(run: Run) -> Drawing:
    """Draw the transfer time of each instance in a row per bucket, the largest total first."""
    latencies = with_phase_in_name(run.cross_rank.latencies)
    if not latencies:
        return message(BUCKETS_TITLE, MISSING if len(run.cross_rank.matches) else NO_COMMUNICATION)
    shown = [latency for latency in latencies if latency.transfer_ns.max() > 0][:MAX_ROWS]
    if not shown:
        return message(BUCKETS_TITLE, MISSING)
    times = np.concatenate([latency.transfer_ns for latency in shown])
    times = times[times > 0]
    low, high = float(times.min()), float(times.max())
    axis = log_axis([low, high], _time) if high > _SPREAD * low else time_axis(high * 1.02)
    rows = RowLayout(18)
    marks: list[Dot | Line] = []
    for latency in shown:
        y = rows.row(_name(latency)) + 9
        middle = float(latency.quantile(0.5))
        marks += [Line(((middle, y - 9), (middle, y + 9)), "#111827", width=2), *_bucket_dots(latency, y, axis)]
    slow = any(latency.slow.any() for latency in shown)
    legend: tuple[Entry, ...] = (Entry(_NORMAL, "one collective", "circle"),)
    legend += (Entry(_SLOW, "slow: over 1.5 times the median of its row", "diamond"),) if slow else ()
    text = "Transfer time, without waiting for the last rank. The line is the median."
    if len(latencies) > len(shown):
        text += f" {len(latencies) - len(shown)} rows that took less in all are not shown."
    return Drawing(BUCKETS_TITLE, text, axis, rows.axis(), rows.y, tuple(marks), legend)


def _time(ns: float) -> str:
    return f"{ns / 1e6:g} ms" if ns >= 1e6 else f"{ns / 1e3:g} µs"


def _name(latency: Latency) -> str:
    size = byte_size(latency.bytes) if latency.bytes else "size unknown"
    return f"{latency.name or latency.kind} {size}"


def _bucket_dots(latency: Latency, y: float, axis: Axis) -> Iterator[Dot]:
    """Draw the instances; those that would overlap become one dot."""
    place = [round(axis.place(ns) * _BUCKET_FINEST) if ns > 0 else 0 for ns in latency.transfer_ns.tolist()]
    _, first, count = np.unique(np.stack((place, latency.slow)), axis=1, return_index=True, return_counts=True)
    for at, many in zip(first.tolist(), count.tolist(), strict=True):
        ns, slow = int(latency.transfer_ns[at]), bool(latency.slow[at])
        if ns > 0:
            tip = f"{_name(latency)}: {milliseconds(ns)} ms" + (f" ({many} like it)" if many > 1 else "")
            look = (_SLOW, f"{tip}, slow") if slow else (_NORMAL, tip)
            yield Dot(ns, y, *look, shape="diamond" if slow else "circle")


def buckets_table(run: Run) -> TextTable:
    """Return count, size, transfer times, wait and bandwidth of each bucket, or of each kind and size."""
    cross_rank = run.cross_rank
    rows = tuple(
        (
            latency.kind,
            latency.name or "–",
            str(len(latency.instances)),
            byte_size(latency.bytes),
            *(f"{latency.quantile(share) / 1e6:.3f}" for share in (0, 0.5, 0.9, 1)),
            "–" if latency.wait_ns is None else milliseconds(latency.wait_ns),
            "–" if latency.busbw is None else f"{latency.busbw / 1e9:.3g}",
            str(int(latency.slow.sum())),
        )
        for latency in with_phase_in_name(cross_rank.latencies)
    )
    times = "least ms", "p50 ms", "p90 ms", "most ms", "mean wait ms"
    columns = ("kind", "bucket", "count", "bytes", *times, "busbw GB/s", "slow")
    nothing = MISSING if len(cross_rank.matches) else NO_COMMUNICATION
    note = "Transfer times: of each collective that of the rank which did not wait."
    return TextTable(columns, rows, 2, note if rows else nothing)


BUCKETS_VIEW = View("buckets", BUCKETS_TITLE, buckets_table, buckets, in_report=True, shows_cross_rank=True)
