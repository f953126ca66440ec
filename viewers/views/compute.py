"""Views of compute: kernels by phase, and operators under their GPU's limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dptrace.analysis.kernels.summary import KernelSummary, Roof, roof_of
from dptrace.analysis.per_gpu.split import PART_LABELS, UNKNOWN_PHASE, Part
from dptrace.core.units import byte_size, duration, milliseconds, number
from dptrace.core.units import share as units_share
from dptrace.errors import DptraceError
from dptrace.run.kernels import kernel_summary
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import TALL, Bar, bar_chart, share
from dptrace.viewers.base.marks import Dot, Drawing, Entry, Label, Line, log_axis, message
from dptrace.viewers.base.table import TextTable, shapes_text
from dptrace.viewers.views.registry import View

# Bars of the kernels that take most of the devices' time, by phase and kind.


KERNELS_TITLE = "Kernels"
NOTHING = "Nothing ran in this run."
FIGURES_ONLY = "This run was opened for its figures only, which drops the kernels."
MOST = 20
_PHASES = (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.OTHER)


def _summary(run: Run) -> KernelSummary | None:
    summary = None if run.figures_only else run.kernel_totals
    return summary if summary is not None and summary.rows else None


def kernels(run: Run) -> Drawing:
    """Draw the kernels with most time, mean per device and step, each by phase."""
    summary = _summary(run)
    if summary is None:
        return message(KERNELS_TITLE, FIGURES_ONLY if run.figures_only else NOTHING)
    steps = max(sum(len(timeline.windows) for timeline in run.timelines), 1)
    whole = sum(totals["total_ns"] for totals in summary.totals.values())
    bars = [
        Bar(
            row["kernel"],
            row["kernel"],
            list(_parts(row, steps)),
            f" · {share(row['total_ns'], whole)} · {row['count'] / steps:,.3g} × {duration(row['mean_ns'])}",
        )
        for row in summary.rows[:MOST]
    ]
    rest = summary.rows[MOST:]
    text = "Time in a step, mean over all ranks and steps; shares are of the time of all kernels, copies and sets."
    if rest:
        text += f" {len(rest):,} more take {share(sum(row['total_ns'] for row in rest), whole)}."
    return bar_chart(KERNELS_TITLE, text, bars, TALL, right=310)


def _parts(row: dict[str, Any], steps: int) -> Iterator[tuple[str, float, str]]:
    if row["other_ns"] is None:
        yield UNKNOWN_PHASE, row["compute_ns"] / steps, theme.PART_COLORS[Part.OTHER]
    else:
        for part in _PHASES:
            yield PART_LABELS[part], row[f"{part.name.lower()}_ns"] / steps, theme.PART_COLORS[part]
    yield "Communication", row["communication_ns"] / steps, theme.OVERLAPPED
    yield "Memory", row["memory_ns"] / steps, theme.MEMORY


def kernels_table(run: Run) -> TextTable:
    """Return time, count, quantiles and shares of each kernel."""
    summary = _summary(run)
    rows = tuple(
        (
            row["kernel"],
            row["kind"],
            f"{row['count']:,}",
            milliseconds(row["total_ns"]),
            *(f"{row[name] / 1e3:,.1f}" for name in ("mean_ns", "p50_ns", "p95_ns")),
            *("–" if row[name] is None else f"{100 * row[name]:.1f}" for name in ("share_of_step", "share_of_compute")),
        )
        for row in (summary.rows if summary else ())
    )
    times = "total ms", "mean µs", "p50 µs", "p95 µs", "% of step", "% of compute"
    note = "Over all ranks and steps." if rows else FIGURES_ONLY if run.figures_only else NOTHING
    return TextTable(("kernel", "kind", "count", *times), rows, 2, note)


KERNELS_VIEW = View("kernels", KERNELS_TITLE, kernels_table, kernels, in_report=True)


# FLOP/s over arithmetic intensity: every operator and shape as a dot under the roofline of its GPU.


TITLE = "Roofline: arithmetic intensity and FLOP/s of operators"
NO_FLOPS = "No operator of this run has both FLOPs and bytes: record shapes, with record_shapes=True of torch.profiler."
_LOOKS = {
    "matmul": ("#0072B2", "circle"),
    "attention": ("#D55E00", "triangle"),
    "convolution": ("#009E73", "square"),
}
_ROOF = "#4B5563"
_SMALLEST, _LARGEST = 6.0, 34.0
"""Diameters of dots in pixels; their area is the time of all calls."""
_LEAST = 0.001
"""Share of the time of all dots below which an operator is not drawn; the table has it."""
_MOST_ROWS = 40
"""Operators that the table lists."""

_Row = dict[str, Any]


def _rows(run: Run) -> tuple[list[_Row], str]:
    """Return the rows with a place in the picture, most time first, and why there are none."""
    try:
        rows = kernel_summary(run, "operator-shape").rows
    except DptraceError as error:
        return [], str(error)
    found = [row for row in rows if row["flops_per_byte"] and row["tflops"]]
    return found, "" if found else NO_FLOPS


def roofline(run: Run) -> Drawing:
    """Draw the operators of a run under the roofline of its GPUs."""
    rows, why = _rows(run) if len(run.devices) else ([], NO_FLOPS)
    if not rows:
        return message(TITLE, why)
    roof = roof_of(run.timelines, None if run.workload is None else run.workload.peak_tflops)
    whole = sum(row["total_ns"] for row in rows)
    rows = [row for row in rows if row["total_ns"] >= _LEAST * whole]
    types = sorted({row["dtype"] for row in rows if roof.flops_per_s(row["dtype"]) is not None})
    intensities = [row["flops_per_byte"] for row in rows] + [_ridge(roof, dtype) or 1.0 for dtype in types]
    rates = [row["tflops"] for row in rows] + [1.5e-12 * (roof.flops_per_s(dtype) or 0.0) for dtype in types]
    x = log_axis(intensities, lambda value: f"{value:g}", "arithmetic intensity, FLOP/byte")
    y = log_axis(rates, lambda value: f"{value:g}", "TFLOP/s", upwards=True)
    marks = [mark for dtype in types for mark in _roof_marks(roof, dtype, x.low, x.high, (y.high, y.low))]
    kinds = [kind for kind in _LOOKS if any(row["formula"] == kind for row in rows)]
    text = "Each dot is an operator with its shapes; its area is the time of all its calls, from 0.1 % of all on."
    if roof.gpu is not None:
        text += f" Lines: what {roof.gpu.name} allows."
    legend = tuple(Entry(_LOOKS[kind][0], kind, _LOOKS[kind][1]) for kind in kinds)
    return Drawing(TITLE, text, x, y, 420, (*marks, *_dots(rows)), legend)


def _ridge(roof: Roof, dtype: str) -> float | None:
    peak, bandwidth = roof.flops_per_s(dtype), roof.bytes_per_s
    return None if peak is None or not bandwidth else peak / bandwidth


def _roof_marks(
    roof: Roof, dtype: str, left: float, right: float, heights: tuple[float, float]
) -> Iterator[Line | Label]:
    """Draw the limits for a type: the bandwidth's slope up to the ridge, and the flat peak.

    Args:
        heights: ends of the y axis.
    """
    bottom, top = sorted(heights)
    # The height of a line of text.
    above = (top / bottom) ** 0.03
    peak, ridge = (roof.flops_per_s(dtype) or 0.0) / 1e12, _ridge(roof, dtype)
    if ridge is None:
        yield Line(((left, peak), (right, peak)), _ROOF)
    else:
        start = max(left, bottom / peak * ridge)
        yield Line(((start, peak * start / ridge), (ridge, peak), (right, peak)), _ROOF)
        yield Line(((ridge, bottom), (ridge, peak)), _ROOF, "4 4", 1.0)
        yield Label(ridge, bottom * above, f"ridge {number(ridge)}", _ROOF)
    name = "fp32 as TF32" if dtype == "fp32" and roof.gpu is not None and "tf32" in roof.gpu.tflops else dtype
    yield Label(
        ridge or left, peak * above, f"{name} {number(peak)} TFLOP/s", _ROOF, "left" if ridge else "right", bold=True
    )


def _dots(rows: Sequence[_Row]) -> Iterator[Dot]:
    """Draw the operators; the largest first, so that none hides a smaller one."""
    longest = max(row["total_ns"] for row in rows)
    for row in rows:
        color, shape = _LOOKS.get(row["formula"], ("#AA4499", "diamond"))
        size = max(_SMALLEST, _LARGEST * math.sqrt(row["total_ns"] / longest))
        yield Dot(row["flops_per_byte"], row["tflops"], color, _tip(row), shape=shape, size=size)


def _tip(row: _Row) -> str:
    about = f"{row['operator']} {shapes_text(row)} {row['dtype']}: {number(row['tflops'])} TFLOP/s"
    if row["share_of_peak"] is not None:
        about += f", {units_share(row['share_of_peak'])} of the peak"
    if row["share_of_roofline"] is not None and row["bound"] is not None:
        about += f", {units_share(row['share_of_roofline'])} of the roofline ({row['bound']})"
    calls = f"{row['count']:,} calls" if row["count"] != 1 else "1 call"
    about += f"; {number(row['flops_per_byte'])} FLOP/byte, {byte_size(row['bytes'])}; {calls}, "
    return about + f"{milliseconds(row['total_ns'])} ms"


def roofline_table(run: Run) -> TextTable:
    """Return the operators with FLOPs and bytes, most time first."""
    rows, why = _rows(run) if len(run.devices) else ([], NO_FLOPS)

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}"

    cells = tuple(
        (
            row["operator"],
            shapes_text(row),
            row["dtype"],
            f"{row['count']:,}",
            milliseconds(row["total_ns"]),
            number(row["flops_per_byte"]),
            number(row["tflops"]),
            percent(row["share_of_peak"]),
            percent(row["share_of_roofline"]),
            row["bound"] or "–",
        )
        for row in rows[:_MOST_ROWS]
    )
    columns = (
        "operator",
        "inputs",
        "type",
        "calls",
        "ms",
        "FLOP/byte",
        "TFLOP/s",
        "% of peak",
        "% of roof",
        "bound by",
    )
    note = why or "The roofline is the smaller of the peak and intensity × memory bandwidth."
    return TextTable(columns, cells, 3, note)


ROOFLINE_VIEW = View("roofline", TITLE, roofline_table, roofline)
