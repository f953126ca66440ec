"""Bars of the kernels that take most of the devices' time, by phase and kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dptrace.analysis.kernels.summary import KernelSummary
from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.core.units import duration, milliseconds
from dptrace.run.kernels import kernel_summary
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import TALL, Bar, bar_chart, share
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "kernels", "kernels_table"]

TITLE = "Kernels"
NOTHING = "Nothing ran in this run."
FIGURES_ONLY = "This run was opened for its figures only, which drops the kernels."
MOST = 20
_PHASES = (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.OTHER)


def _summary(run: Run) -> KernelSummary | None:
    summary = None if run.figures_only else kernel_summary(run, "kernel")
    return summary if summary is not None and summary.rows else None


def kernels(run: Run) -> Drawing:
    """Draw the kernels with most time, mean per device and step, each by phase."""
    summary = _summary(run)
    if summary is None:
        return message(TITLE, FIGURES_ONLY if run.figures_only else NOTHING)
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
    return bar_chart(TITLE, text, bars, TALL, right=310)


def _parts(row: dict[str, Any], steps: int) -> Iterator[tuple[str, float, str]]:
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


VIEW = View("kernels", TITLE, kernels_table, kernels, in_report=True)
