"""Bars of idle time by cause: the mean of each rank's steps."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.kernels.attribution import launch_figures
from dptrace.analysis.per_gpu.split import CAUSE_LABELS, CAUSES
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import DENSE, FLAT, NO_STEP, TALL, Bar, bar_chart, rank_labels, share, with_steps
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "idle", "idle_table"]

TITLE = "Idle time by cause"
NOT_IDLE = "No GPU was idle in a step of this run."


_CAUSES = {cause: CAUSE_LABELS[cause].removeprefix("Idle: ") for cause in CAUSES}


def idle(run: Run) -> Drawing:
    """Draw each rank's idle time by cause: the mean of its steps."""
    devices = with_steps(run)
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return message(TITLE, NOT_IDLE if devices else NO_STEP)
    bars = []
    for rank, device in zip(rank_labels(run, devices), devices, strict=True):
        means = device.mean_idle()
        bars.append(Bar(rank, rank, [(name, means[c], theme.CAUSE_COLORS[c]) for c, name in _CAUSES.items()]))
    subtitle = "Mean of each rank's steps. Shares are of its idle time."
    return bar_chart(TITLE, subtitle, bars, TALL if len(devices) <= DENSE else FLAT)


def idle_table(run: Run) -> TextTable:
    """Return each rank's idle time by cause, in ms."""
    devices = with_steps(run)
    rows = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means = device.mean_idle()
        rows.append((label, *(milliseconds(means[cause]) for cause in CAUSES), milliseconds(sum(means.values()))))
    columns = ("rank", *_CAUSES.values(), "idle")
    note = f"In ms, means over the steps. {_queues(run)}".strip()
    return TextTable(columns, tuple(rows), 1, note if rows else NO_STEP)


def _queues(run: Run) -> str:
    """Describe how far the hosts run ahead of the devices: where queues are empty, idle time is theirs."""
    figures = [launch_figures(timeline) for timeline in run.timelines]
    known = [one for one in figures if one.empty_queue_share is not None and one.queue_depth_p50 is not None]
    if not known:
        return ""
    starved = max(known, key=lambda one: one.empty_queue_share or 0)
    depth = float(np.median([one.queue_depth_p50 or 0 for one in known]))
    text = f"When the host launches, {depth:.0f} kernels are queued (median)"
    return f"{text}; on rank {starved.rank}, {share(starved.empty_queue_share or 0, 1)} of launches find none."


VIEW = View("idle", TITLE, idle_table, idle, in_report=True)
