"""The measured memory of a run in the terminal: peaks, what was alive at them, calls of the allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from dptrace.core.units import byte_size, milliseconds
from dptrace.run.memory import (
    NO_MEMORY,
    DeviceReport,
    at_peaks,
    block_rows,
    by_device,
    call_rows,
    device_reports,
    memory_notes,
    peak_rows,
    unallocated_bytes,
)
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import TextTable, plain, print_text_table, step_label

_FEW_DEVICES = 8
"""Rows of a table by device, unless all are asked for."""
_FEW_ROWS = 10
"""Rows of a table of operators, modules or blocks."""
CPU_NOTE = "CPU memory counts from the start of the recording; what was allocated before is unknown."
_PHASES = ("forward", "backward", "optimizer", "other")


def device_name(report: DeviceReport) -> str:
    """Return ``rank 0 GPU 0`` or ``rank 0 CPU``."""
    return f"rank {report.rank} {report.device.label}"


def print_memory(run: Run, console: Console, all_rows: bool = False) -> None:
    """Print the peaks of all devices, and what was alive at the highest of them.

    Args:
        all_rows: leave no row out, and show each device.
    """
    reports = device_reports(run)
    console.print(plain(headline(run).line), style="bold")
    console.print()
    for title, table in _tables(reports, all_rows):
        print_text_table(table, title, console)
        console.print()
    if not reports and NO_MEMORY not in memory_notes(run):
        console.print(NO_MEMORY)
    for note in (*run.notes, *memory_notes(run)):
        console.print(plain(f"! {note}"))


def _tables(reports: Sequence[DeviceReport], all_rows: bool) -> Iterator[tuple[str, TextTable]]:
    if not reports:
        return
    yield "peak of each device", _short(peaks_table(reports), all_rows, _FEW_DEVICES)
    yield "peak of each phase", _short(_phases(reports, all_rows), all_rows, _FEW_DEVICES)
    # GPUs run out of memory, CPUs seldom.
    highest = max(reports, key=lambda report: (not report.device.on_cpu, report.peak.bytes))
    for report in at_peaks(reports) if all_rows else [highest]:
        at = f"at the peak of {device_name(report)}"
        for by, most in (("kind", None), ("operator", _FEW_ROWS), ("module", _FEW_ROWS)):
            table = usage_table(report, by)
            if any(row[0] != "–" for row in table.rows):
                yield f"by {by}, {at}", _short(table, all_rows, most)
        yield f"largest blocks {at}", _blocks(report, None if all_rows else _FEW_ROWS)
    if calls := _calls(reports):
        yield "calls of the runtime's allocator", calls


def _short(table: TextTable, all_rows: bool, most: int | None) -> TextTable:
    return table if all_rows or most is None else table.truncated(most)


def _size(value: int) -> str:
    """Write bytes; 0 is a size here, and memory freed of what was there before is below 0."""
    return f"−{byte_size(-value)}" if value < 0 else byte_size(value) if value else "0 B"


def peaks_table(reports: Sequence[DeviceReport]) -> TextTable:
    """Return the peak of each device: when it was, what was reserved then and unused at most."""
    rows = []
    for own in by_device(reports):
        report, failed = own[0], sum(len(one.use.failed) for one in own)
        peak, device = report.peak, report.device
        step = report.step_name(peak.step)
        reserved = (_size(peak.reserved_bytes), _size(unallocated_bytes(report)))
        rows.append(
            (
                device_name(report),
                "–" if step is None else step_label(step),
                peak.phase.name.lower(),
                _size(peak.bytes),
                *(("–", "–") if device.on_cpu else reserved),
                "–" if device.on_cpu else _size(device.baseline_bytes),
                f"{failed:,}" if failed else "–",
            )
        )
    columns = ("device", "step", "phase", "allocated", "reserved then", "most reserved unused", "at start", "failed")
    note = CPU_NOTE if any(report.device.on_cpu for report in reports) else ""
    return TextTable(columns, tuple(rows), 3, note)


def _phases(reports: Sequence[DeviceReport], all_rows: bool) -> TextTable:
    """Return the peak of each phase: the highest of all steps, or with *every* that of each step."""
    rows: list[tuple[str, ...]] = []
    for own in by_device(reports):
        highest: dict[tuple[str, str], int] = {}
        for row in peak_rows(tuple(own)):
            key = (step_label(row["step"]) if all_rows else "all", row["phase"])
            highest[key] = max(highest.get(key, row["peak_bytes"]), row["peak_bytes"])
        for step in dict.fromkeys(step for step, _ in highest):
            peaks = [highest.get((step, phase)) for phase in _PHASES]
            rows.append((device_name(own[0]), step, *("–" if peak is None else _size(peak) for peak in peaks)))
    return TextTable(("device", "step", *_PHASES), tuple(rows), 2, "" if all_rows else "The highest of all steps.")


def usage_table(report: DeviceReport, by: str) -> TextTable:
    """Return the bytes alive at a device's peak by kind, operator or module."""
    bytes_at_peak = max(report.peak.bytes, 1)
    rows = tuple(
        (
            name or "–",
            _size(one.peak_bytes),
            f"{100 * one.peak_bytes / bytes_at_peak:.1f}",
            f"{one.alive:,}",
            _size(one.allocated_bytes),
            f"{one.allocations:,}",
        )
        for name, one in report.groups(by)
    )
    return TextTable((by, "at peak", "%", "blocks", "allocated in all", "times"), rows, 1)


def _blocks(report: DeviceReport, most: int | None) -> TextTable:
    rows = []
    for row in block_rows((report,), most):
        where = row["module"] or "–"
        step = "–" if row["step"] is None else step_label(row["step"])
        rows.append((row["operator"] or "–", where, row["kind"], row["phase"] or "–", step, _size(row["bytes"])))
    return TextTable(("operator", "module or label", "kind", "phase", "step", "bytes"), tuple(rows), 4)


def _calls(reports: Sequence[DeviceReport]) -> TextTable | None:
    rows: list[dict[str, Any]] = list(call_rows(tuple(reports)))
    if not rows:
        return None
    cells = tuple(
        (f"rank {row['rank']}", row["name"], f"{row['count']:,}", f"{row['in_steps']:,}", milliseconds(row["total_ns"]))
        for row in rows
    )
    note = "Each may wait for the GPU. A free within a step gives cached memory back: a retry, or empty_cache()."
    return TextTable(("rank", "call", "calls", "in steps", "ms"), cells, 2, note)
