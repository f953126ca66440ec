"""Why GPUs were idle, as a table: ms of a step for each rank and cause."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from dptrace.idle import CAUSES
from dptrace.run import Run
from dptrace.viewers.tables import MOST_RANKS_IN_ONE, milliseconds, rank_label

__all__ = ["idle_table"]

HEADINGS = {
    "data_loading_ns": "data\nloading",
    "host_bound_ns": "host-\nbound",
    "launch_latency_ns": "launch\nlatency",
    "waiting_ns": "waiting",
    "bubble_ns": "bubble",
}


def idle_table(run: Run, every: bool = False) -> Table | None:
    """Give a row for each rank, the mean of its steps, so that the causes add up; nothing where no GPU was idle.

    Args:
        every: leave no rank out, however many there are.
    """
    devices = [device for device in run.devices if len(device.timeline.windows)]
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return None
    title = Text("idle by cause, mean of the steps, ms", style="bold")
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1))
    # Only a pipeline has bubbles.
    told = [cause for cause in CAUSES if cause != "bubble_ns" or any(len(d.timeline.actions) for d in devices)]
    for heading in ("rank", *(HEADINGS[cause] for cause in told), "idle"):
        table.add_column(heading, justify="right" if heading != "rank" else "left", no_wrap=True)
    shown = devices if every else devices[:MOST_RANKS_IN_ONE]
    for device in shown:
        means = device.mean_idle()
        cells = (means[cause] for cause in told)
        table.add_row(rank_label(run, device.timeline), *map(milliseconds, (*cells, sum(means.values()))))
    if len(shown) < len(devices):
        table.add_row("…", *["…"] * (len(told) + 1))
    return table
