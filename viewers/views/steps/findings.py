"""Bars of findings by what a step would gain without each, or their cost where that is not known."""

from __future__ import annotations

from dptrace.analysis.findings.finding import Finding, by_gain
from dptrace.core.units import milliseconds, sanitize
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Box, Drawing, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import NO_STEP, TALL, RowLayout, with_steps
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "findings", "findings_table"]

TITLE = "Findings by what a step would gain, or their cost"
NO_FINDING = "No finding costs 1 % of a step or more."
_COST = "#5B6472"
"""Color of what is not a part of a step."""


def findings(run: Run) -> Drawing:
    """Draw the gain or cost of each finding per step, in the order of the terminal."""
    found = by_gain(run.cross_rank.findings)
    if not found:
        return message(TITLE, NO_FINDING if with_steps(run) else NO_STEP)
    rows = RowLayout(TALL)
    marks: list[Box | Label] = []
    for finding in found:
        top = rows.row(_place(finding))
        ns, share = finding.figure
        text = f"{milliseconds(ns)} ms · {100 * share:.1f} % of the step"
        tip = f"{finding.text} → {finding.advice}"
        marks.append(Box(0, max(ns, 0), top, top + rows.height, _COST, tip))
        marks.append(Label(max(ns, 0), top + rows.height / 2, text))
    longest = max(1, *(finding.figure[0] for finding in found))
    gained = any(finding.gain is not None for finding in found)
    each = "what a step would gain after those above it" if gained else "what it costs"
    subtitle = f"Each at the rank and step where it costs most, by {each}."
    return Drawing(TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), right=220)


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
    """Return each finding with its gain or cost, its text and its advice."""
    found = [(*f.figure, f) for f in by_gain(run.cross_rank.findings)]
    rows = tuple((f"{milliseconds(ns)} ms", f"{100 * share:.1f} %", f.text, f.advice) for ns, share, f in found)
    nothing = NO_FINDING if with_steps(run) else NO_STEP
    return TextTable(("gain or cost", "of the step", "what", "what to do"), rows, 4, "" if rows else nothing)


VIEW = View("findings", TITLE, findings_table, findings, shows_cross_rank=True)
