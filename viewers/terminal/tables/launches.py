"""The launch side in the terminal: how far the host runs ahead of the devices, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from dptrace.analysis.kernels.attribution import LaunchFigures
from dptrace.core.units import duration, milliseconds, plural, share
from dptrace.viewers.base.format import plain
from dptrace.viewers.terminal.tables.split import MAX_RANKS, titled_table

__all__ = ["launch_sentence", "print_host"]


def print_host(
    rows: Sequence[Mapping[str, Any]], figures: Sequence[LaunchFigures], console: Console, most: int = 30
) -> None:
    """Print a sentence for each device, and the first *most* rows of host time."""
    for one in figures[:MAX_RANKS]:
        console.print(Text(f"rank {one.rank}: {launch_sentence(one)}"))
    if not rows:
        console.print("The files have no calls of the host.")
        return
    table = titled_table("host time by call, on the threads that launch")
    ranked = "rank" in rows[0]
    headings = (["rank"] if ranked else []) + ["call", "kind", "count", "self\nms", "total\nms", "mean\nµs"]
    for heading in (*headings, "self, %\nof step", "launches"):
        table.add_column(heading, justify="left" if heading in ("call", "kind") else "right", overflow="fold")
    for row in rows[:most]:
        table.add_row(
            *([str(row["rank"])] if ranked else []),
            plain(row["call"]),
            row["kind"],
            f"{row['count']:,}",
            *(milliseconds(row[name]) for name in ("self_ns", "total_ns")),
            f"{row['mean_ns'] / 1e3:,.1f}",
            "–" if row["share_of_step"] is None else f"{100 * row['share_of_step']:.1f}",
            f"{row['launches']:,}",
        )
    console.print(table)
    if len(rows) > most:
        console.print(f"{plural(len(rows) - most, 'more row')}; --top shows them.", style="dim")


def launch_sentence(figures: LaunchFigures) -> str:
    """Describe how far the host runs ahead of a device, in one line."""
    if figures.delay_p50_ns is None or figures.delay_p95_ns is None:
        return "no launches: the operators ran on the CPU." if not figures.launches else "no launches in the steps."
    text = f"{figures.launches:,} launches, started {duration(figures.delay_p50_ns)} later (median; p95 "
    text += f"{duration(figures.delay_p95_ns)}); {figures.queue_depth_p50:.0f} queued (median; p95 "
    text += f"{figures.queue_depth_p95:.0f}), {share(figures.empty_queue_share or 0)} found an empty queue"
    if figures.graph_kernels:
        text += f"; {figures.graph_kernels:,} kernels by graphs, {share(figures.graph_share or 0)} of device time"
    if figures.synchronizing_calls is not None:
        waits = plural(figures.synchronizing_calls, "synchronizing call")
        text += f"; {waits}, {duration(figures.synchronizing_ns or 0)}"
    return f"{text}."
