"""Bars of what costs time: idle time by cause, communication by kind, and findings."""

from __future__ import annotations

from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS, OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part, by_kind
from dptrace.core.text import sanitize
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Drawing, Entry, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.terminal.split_tables import milliseconds, quantity, step_label
from dptrace.viewers.views.bars import (
    DENSE,
    FLAT,
    NO_COMMUNICATION,
    NO_STEP,
    TALL,
    RowLayout,
    rank_labels,
    stack,
    with_steps,
)

__all__ = ["communication", "communication_table", "findings", "findings_table", "idle", "idle_table"]

IDLE_TITLE, COMMUNICATION_TITLE, FINDINGS_TITLE = (
    "Idle time by cause",
    "Communication by kind",
    "Findings by their cost per step",
)
NO_FINDING = "No finding costs a hundredth of the step or more."
NOT_IDLE = "No GPU was idle in a step of this run."
_COST = "#5B6472"
"""Color of what is not a part of a step."""
_COMMUNICATION = ((PART_LABELS[Part.EXPOSED_COMM], theme.EXPOSED), (OVERLAPPED_LABEL, theme.OVERLAPPED))


def _cause(name: str) -> str:
    return CAUSE_LABELS.get(name, name.removesuffix("_ns").replace("_", " ")).removeprefix("Idle: ")


def _cause_color(name: str) -> str:
    return theme.CAUSE_COLORS.get(name, theme.IDLE)


def idle(run: Run) -> Drawing:
    """Draw each rank's idle time by cause: the mean of its steps."""
    devices = with_steps(run)
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return message(IDLE_TITLE, NOT_IDLE if devices else NO_STEP)
    rows, longest = RowLayout(TALL if len(devices) <= DENSE else FLAT), 0.0
    marks: list[Box | Label] = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means, top = device.mean_idle(), rows.row(label)
        whole = sum(means.values())
        parts = [(_cause(c), means[c], _cause_color(c), theme.ink_on(_cause_color(c))) for c in CAUSES]
        marks += stack(parts, top, rows.height, label, whole)
        marks.append(Label(whole, top + rows.height / 2, f"{milliseconds(whole)} ms"))
        longest = max(longest, whole)
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    legend = tuple(Entry(_cause_color(c), _cause(c)) for c in CAUSES if _cause_color(c) in used)
    subtitle = "Mean of each rank's steps. Shares are of its idle time."
    return Drawing(IDLE_TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), legend, right=76)


def idle_table(run: Run) -> TextTable:
    """Return each rank's idle time by cause, in ms."""
    devices = with_steps(run)
    rows = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means = device.mean_idle()
        rows.append((label, *(milliseconds(means[cause]) for cause in CAUSES), milliseconds(sum(means.values()))))
    columns = ("rank", *map(_cause, CAUSES), "idle")
    return TextTable(columns, tuple(rows), 1, "In ms, means over the steps." if rows else NO_STEP)


def communication(run: Run) -> Drawing:
    """Draw the exposed and overlapped time of each kind of collective, per GPU and step."""
    kinds = by_kind(run.splits)
    if not kinds:
        return message(COMMUNICATION_TITLE, NO_COMMUNICATION)
    rows, longest = RowLayout(TALL), 0.0
    marks: list[Box | Label] = []
    for kind in sorted(kinds, key=lambda kind: -(kind.exposed_ns + kind.overlapped_ns)):
        top = rows.row(kind.kind)
        whole = kind.exposed_ns + kind.overlapped_ns
        times = kind.exposed_ns, kind.overlapped_ns
        parts = [
            (name, ns, color, theme.ink_on(color)) for (name, color), ns in zip(_COMMUNICATION, times, strict=True)
        ]
        size = f", {quantity(kind.bytes)}" if kind.bytes else ""
        marks += stack(parts, top, rows.height, kind.kind, whole)
        marks.append(Label(whole, top + rows.height / 2, f"{milliseconds(whole)} ms · {kind.count:.4g} of them{size}"))
        longest = max(longest, whole)
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    subtitle = "Mean over all ranks and steps. Shares are of the time of that kind."
    legend = tuple(Entry(color, name) for name, color in _COMMUNICATION if color in used)
    return Drawing(
        COMMUNICATION_TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), legend, right=220
    )


def communication_table(run: Run) -> TextTable:
    """Return count, bytes and times of each kind of collective, per GPU and step."""
    rows = tuple(
        (
            kind.kind,
            f"{kind.count:.4g}",
            quantity(kind.bytes),
            milliseconds(kind.exposed_ns),
            milliseconds(kind.overlapped_ns),
            "–" if kind.overlap_percent is None else f"{kind.overlap_percent:.1f} %",
        )
        for kind in by_kind(run.splits)
    )
    columns = ("kind", "count", "bytes", "exposed ms", "overlapped ms", "overlap")
    return TextTable(columns, rows, 1, "Mean per rank and step." if rows else NO_COMMUNICATION)


def findings(run: Run) -> Drawing:
    """Draw the cost of each finding per step, most expensive first."""
    found = run.cross_rank.findings
    if not found:
        return message(FINDINGS_TITLE, NO_FINDING if with_steps(run) else NO_STEP)
    rows = RowLayout(TALL)
    marks: list[Box | Label] = []
    for finding in found:
        top = rows.row(_place(finding))
        text = f"{milliseconds(finding.cost_ns)} ms · {100 * finding.share:.1f} % of the step"
        tip = f"{finding.text} → {finding.advice}"
        marks.append(Box(0, finding.cost_ns, top, top + rows.height, _COST, tip))
        marks.append(Label(finding.cost_ns, top + rows.height / 2, text))
    longest = max(finding.cost_ns for finding in found)
    subtitle = (
        "Each at the rank and step where it costs most. Costs do not add up: some findings explain part of another."
    )
    return Drawing(FINDINGS_TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), right=220)


def _place(finding: Finding) -> str:
    """Return the name of a finding and where to look for it."""
    where, kind = finding.evidence, finding.kind.replace("_", " ").replace("comm", "communication")
    words = [kind.replace("host bound", "host-bound")]
    if finding.kind == "exposed_comm" and where.get("collective"):
        words = [f"exposed {where['collective']}"]
    elif finding.kind != "straggler" and where.get("collective"):
        words.append(str(where["collective"]))
    rank, step = where.get("rank"), where.get("step")
    places = [f"rank {rank}"] if rank is not None else []
    places += [f"step {step_label(step)}"] if step else []
    return sanitize(" · ".join([*words, *([", ".join(places)] if places else [])]))


def findings_table(run: Run) -> TextTable:
    """Return each finding with its cost, its text and its advice."""
    rows = tuple(
        (f"{milliseconds(f.cost_ns)} ms", f"{100 * f.share:.1f} %", f.text, f.advice) for f in run.cross_rank.findings
    )
    nothing = NO_FINDING if with_steps(run) else NO_STEP
    return TextTable(("cost", "of the step", "what", "what to do"), rows, 4, "" if rows else nothing)
