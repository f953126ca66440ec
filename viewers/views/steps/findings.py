"""Bars of findings by their cost per step."""

from __future__ import annotations

from dptrace.analysis.findings.finding import Finding
from dptrace.core.text import sanitize
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Box, Drawing, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import NO_STEP, TALL, RowLayout, with_steps
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "findings", "findings_table"]

TITLE = "Findings by their cost per step"
NO_FINDING = "No finding costs 1 % of a step or more."
_COST = "#5B6472"
"""Color of what is not a part of a step."""


def findings(run: Run) -> Drawing:
    """Draw the cost of each finding per step, most expensive first."""
    found = run.cross_rank.findings
    if not found:
        return message(TITLE, NO_FINDING if with_steps(run) else NO_STEP)
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
    """Return each finding with its cost, its text and its advice."""
    rows = tuple(
        (f"{milliseconds(f.cost_ns)} ms", f"{100 * f.share:.1f} %", f.text, f.advice) for f in run.cross_rank.findings
    )
    nothing = NO_FINDING if with_steps(run) else NO_STEP
    return TextTable(("cost", "of the step", "what", "what to do"), rows, 4, "" if rows else nothing)


VIEW = View("findings", TITLE, findings_table, findings, shows_cross_rank=True)
