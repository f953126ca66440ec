"""What devices compute, as a table in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.kernels.attribution import LaunchFigures
from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.kernels.summary import KernelSummary
from dptrace.core.units import byte_size, duration, milliseconds, number, plural, share
from dptrace.run.kernels import kernel_summary
from dptrace.run.run import Run
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.table import column_table, plain, shapes_text
from dptrace.viewers.terminal.split import MAX_RANKS, findings_list

Row = Mapping[str, Any]
Cell = Callable[[Row], str]


def _ms(name: str) -> Cell:
    return lambda row: "–" if row.get(name) is None else milliseconds(row[name])


def _us(name: str) -> Cell:
    return lambda row: "–" if row.get(name) is None else f"{row[name] / 1e3:,.1f}"


def _percent(name: str) -> Cell:
    return lambda row: "–" if row.get(name) is None else f"{100 * row[name]:.1f}"


def _text(name: str) -> Cell:
    return lambda row: str(row.get(name) or "")


def _number(name: str, digits: int = 1) -> Cell:
    return lambda row: "–" if row.get(name) is None else f"{row[name]:,.{digits}f}"


def _gigaflop(row: Row) -> str:
    return "–" if row["flops"] is None else f"{row['flops'] / 1e9:,.3f}"


def _source(row: Row) -> str:
    """Return the lines of a row without their folders, then the text of the first."""
    lines: dict[str, list[str]] = {}
    for line in str(row["source"]).split(", "):
        file, _, number = line.rpartition(":")
        lines.setdefault(re.split(r"[/\\]", file)[-1], []).append(number)
    places = ", ".join(f"{file}:{','.join(numbers)}" if file else numbers[0] for file, numbers in lines.items())
    return f"{places}  {row['code']}".rstrip()


_NAMES: dict[str, dict[str, Cell]] = {
    "kernel": {"kernel": _text("kernel"), "kind": _text("kind")},
    "operator": {
        "operator": _text("operator"),
        "outermost": _text("outermost_operator"),
        "backward of": _text("forward_operator"),
        "phase": _text("phase"),
    },
    "operator-shape": {"operator": _text("operator"), "inputs": shapes_text, "type": _text("dtype")},
    "module": {"module": _text("module")},
    "layer": {"layer": _text("layer")},
    "source": {"source": _source, "module": _text("module"), "FX nodes": _text("fx_nodes")},
    "annotation": {"annotation": _text("annotation")},
    "phase": {"phase": _text("phase")},
}
_TIMES: dict[str, Cell] = {
    "calls": lambda row: f"{row['count']:,}",
    "total\nms": _ms("total_ns"),
    "% of\nstep": _percent("share_of_step"),
    "% of\ncompute": _percent("share_of_compute"),
    "mean\nµs": _us("mean_ns"),
    "p50\nµs": _us("p50_ns"),
    "p95\nµs": _us("p95_ns"),
}
_SHOWN = {
    "layer": ("calls", "total\nms", "% of\nstep"),
    "source": ("calls", "total\nms", "% of\nstep"),
    "operator": ("calls", "total\nms", "% of\nstep", "% of\ncompute", "mean\nµs"),
    "operator-shape": ("calls", "total\nms", "% of\nstep", "mean\nµs"),
}
"""The times of tables that have much else to show."""
_MORE: dict[str, dict[str, Cell]] = {
    "kernel": {"launch\ndelay µs": _us("launch_delay_ns")},
    "module": {"forward\nms": _ms("forward_ns"), "backward\nms": _ms("backward_ns")},
    "layer": {
        "forward\nms": _ms("forward_ns"),
        "backward\nms": _ms("backward_ns"),
        "recompute\nms": _ms("recompute_ns"),
        "collectives\nms": _ms("communication_ns"),
        "exposed\nms": _ms("exposed_comm_ns"),
    },
    "operator-shape": {
        "GFLOP\na call": _gigaflop,
        "TFLOP/s": _number("tflops"),
        "GB/s": _number("gbps", 0),
        "% of\nroof": _percent("share_of_roofline"),
        "bytes\na call": lambda row: "–" if row["bytes"] is None else byte_size(row["bytes"]),
    },
}
_SPREAD: dict[str, Cell] = {
    "max /\nmedian": _number("max_over_median", 2),
    "slowest\nrank": lambda row: "–" if row.get("slowest_rank") is None else str(row["slowest_rank"]),
}


_LEAVING = (
    *("p95 µs", "launch delay µs", "max / median", "slowest rank", "p50 µs", "bytes a call", "GB/s", "GFLOP a call"),
    *("% of compute", "mean µs", "FX nodes", "recompute ms", "collectives ms", "kind", "launches", "TFLOP/s"),
    *("% of roof", "calls", "% of step"),
    # What tells rows of one name apart stays longest.
    *("module", "backward of", "type", "phase", "outermost"),
)
"""Columns that a narrow terminal goes without, in this order."""


def print_kernels(
    summary: KernelSummary,
    rows: Sequence[Row],
    console: Console,
    full_names: bool = False,
    most: int = 30,
    findings: tuple[Finding, ...] = (),
    on_cpu: bool = False,
) -> None:
    """Print rows of a summary, and the totals that all of its rows add up to.

    Args:
        full_names: print the names of kernels whole.
        most: number of rows to print.
        findings: what slows compute, printed above the table.
        on_cpu: whether the run has no GPU, so that what computes is operators.
    """
    if not summary.rows:
        console.print(f"This run has no {'operators' if on_cpu else 'kernels'} of this kind.")
        return
    console.print(*_totals(summary), *_steps(summary), *_flops(summary), sep="\n")
    if findings:
        console.print("", findings_list(findings), "", sep="\n")
    names = dict(_NAMES[summary.by])
    if summary.by == "kernel":
        names["kernel"] = _text("name") if full_names else _uncut(summary)
    ranked = "rank" in summary.rows[0]
    times = {name: _TIMES[name] for name in _SHOWN.get(summary.by, _TIMES)}
    spread = _SPREAD if len(summary.ranks) > 1 and not ranked and summary.by != "operator-shape" else {}
    numbers = {**times, **_MORE.get(summary.by, {}), **spread}
    what = summary.by
    if on_cpu and what == "kernel":
        what, names, numbers = "operator", {"operator": names["kernel"], "kind": names["kind"]}, {**times, **spread}
    names = {"rank": lambda row: str(row["rank"]), **names} if ranked else names
    table = _table(f"time by {what.replace('-', ' and ')}", names, numbers, rows[:most])
    table.cuts_names = summary.by == "kernel" and not full_names
    console.print(table)
    if len(rows) > most:
        rest = milliseconds(sum(row["total_ns"] for row in rows[most:]))
        console.print(f"{plural(len(rows) - most, 'more row')}, {rest} ms; --top shows them.", style="dim")


def _uncut(summary: KernelSummary) -> Cell:
    """Return the short names of kernels, whose middle only a narrow terminal goes without."""
    uncut = short_names((row["name"] for row in summary.rows if "…" in row["kernel"]), cut=False)
    return lambda row: uncut.get(str(row["name"])) or str(row["kernel"])


def kernel_parts(run: Run, most: int = 20) -> list[RenderableType]:
    """Return a narrow table of the kernels with most time; nothing where nothing ran."""
    summary = kernel_summary(run, "kernel")
    if not summary.rows:
        return []
    what = "operators" if run.on_cpu else "kernels"
    numbers = {name: _TIMES[name] for name in ("calls", "total\nms", "% of\nstep", "mean\nµs")}
    names = {what.removesuffix("s"): _uncut(summary)}
    title = f"{what} with most time, of {len(summary.rows):,}; dptrace kernels lists all"
    table = _table(title, names, numbers, summary.rows[:most])
    table.cuts_names = True
    return [table]


def _table(title: str, names: Mapping[str, Cell], numbers: Mapping[str, Cell], rows: Sequence[Row]) -> Fitting:
    def shown(cell: Cell) -> Callable[[Row], Text]:
        return lambda row: plain(cell(row))

    columns = {heading: shown(cell) for heading, cell in {**names, **numbers}.items()}
    return column_table(title, columns, rows, names, leaving=_LEAVING)


def _flops(summary: KernelSummary) -> list[Text]:
    """Return a line on all FLOPs that have a formula."""
    found = summary.flops
    if found is None or found.tflops is None:
        return []
    line = f"matrix products, convolutions, attention: {100 * found.covered:.0f} % of compute in steps, "
    line += f"{number(found.tflops)} TFLOP/s over the steps"
    if found.mfu is not None and found.hfu is not None and found.peak_tflops is not None:
        line += f", MFU {share(found.mfu)} of {number(found.peak_tflops)} TFLOP/s ({found.dtype})"
        line += f", HFU {share(found.hfu)}" if found.hfu > found.mfu * 1.001 else ""
    return [Text(line)]


def _steps(summary: KernelSummary) -> list[Text]:
    """Return a line with what "% of step" refers to, and what it leaves out; none without steps."""
    if not summary.wall_ns:
        return []
    outside = summary.outside_steps_ns
    line = f"steps: {milliseconds(summary.wall_ns)} ms, all steps of {plural(len(summary.ranks), 'rank')} together"
    rest = f"; % of step leaves out {milliseconds(outside)} ms that was launched outside of them" if outside else ""
    return [Text(line + rest)]


def _totals(summary: KernelSummary) -> Iterator[Text]:
    """Yield a line for each kind: the sum of durations, and the time with any running where that is less."""
    for kind, totals in summary.totals.items():
        total, busy = totals["total_ns"], totals["busy_ns"]
        if total:
            spent, running = milliseconds(total), milliseconds(busy)
            overlap = f" ({running} ms busy: streams overlap)" if running != spent else ""
            yield Text(f"{kind}: {spent} ms{overlap}")


# The launch side in the terminal: how far the host runs ahead of the devices, and where its time goes.


def print_host(
    rows: Sequence[Mapping[str, Any]], figures: Sequence[LaunchFigures], console: Console, most: int = 30
) -> None:
    """Print a sentence for each device, and the first *most* rows of host time."""
    for one in figures[:MAX_RANKS]:
        console.print(Text(f"rank {one.rank}: {launch_sentence(one)}"))
    if not rows:
        console.print("The files have no calls of the host.")
        return
    names = {"rank": lambda row: str(row["rank"])} if "rank" in rows[0] else {}
    names |= {"call": _text("call"), "kind": _text("kind")}
    numbers = {"count": _TIMES["calls"], "self\nms": _ms("self_ns"), "total\nms": _ms("total_ns")}
    numbers |= {"mean\nµs": _us("mean_ns"), "self, %\nof step": _percent("share_of_step")}
    numbers |= {"launches": lambda row: f"{row['launches']:,}"}
    console.print(_table("host time by call, on the threads that launch", names, numbers, rows[:most]))
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
