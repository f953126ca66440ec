"""A run as short Markdown, for a ticket or a prompt: headline, split of the ranks, findings, kernels."""

from __future__ import annotations

from collections.abc import Iterator

from dptrace.analysis.findings.finding import nothing_found, top_findings
from dptrace.core.units import plural
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import (
    TextTable,
    escape_markdown,
    figure_words,
    gain_sentence,
    gains_known,
    markdown_lines,
    order_sentence,
)
from dptrace.viewers.terminal.screen import utilization_sentence
from dptrace.viewers.terminal.split import findings_heading, minor_sentence, where
from dptrace.viewers.terminal.summary import mean_split, sentence
from dptrace.viewers.views.compute import kernels_table
from dptrace.viewers.views.steps import summary_table

LIMIT = 8
"""Findings, rows of a table and notes, each: so the text has at most 60 lines, whatever the run."""
_LONGEST = 80
"""Characters of a kernel's name that are shown."""


def document(run: Run, limit: int = LIMIT) -> str:
    """Write a run as Markdown.

    Args:
        run: the run; opened with ``figures_only`` it has no table of kernels.
        limit: number of findings, of rows of each table, and of notes that are listed.
    """
    above = (sentence(run).plain, mean_split(run), utilization_sentence(run.efficiency))
    lines = [f"# {escape_markdown(headline(run).line)}", "", escape_markdown(" ".join(filter(None, above))), ""]
    lines += _findings(run, limit)
    lines += _section("Mean step of each rank", summary_table(run, limit), limit)
    if not run.figures_only:
        lines += _section("Operators" if run.on_cpu else "Kernels", _short_names(kernels_table(run)), limit)
    notes = [*run.notes, *run.cross_rank.notes]
    lines += [f"- {escape_markdown(note)}" for note in notes[:limit]] + _rest(len(notes), limit, "note")
    return "\n".join(lines).rstrip("\n") + "\n"


def _findings(run: Run, limit: int) -> Iterator[str]:
    findings = findings_of(run)
    yield from ("## Findings", "")
    if not findings:
        yield f"None: {nothing_found(run.on_cpu, run.is_limited)}"
    first, known = top_findings(findings), gains_known(findings)
    if first and not known:
        yield from (f"{findings_heading(findings)}:", "")
    if why := order_sentence(first):
        yield from (escape_markdown(why), "")
    for number, finding in enumerate(first[:limit], 1):
        figure, of_step = figure_words(finding, known)
        text = escape_markdown(f"{finding.text} → {finding.advice}{where(finding)} {gain_sentence(finding)}")
        yield f"{number}. **{f'{figure} ({of_step})' if of_step else figure}** {text}"
    minor = minor_sentence(findings)
    yield from (*_rest(len(first), limit, "finding"), *(["", escape_markdown(minor)] if minor else []), "")


def _section(title: str, cells: TextTable, limit: int) -> Iterator[str]:
    shown = cells.truncated(limit)
    yield from (f"## {title}", "")
    yield from markdown_lines(shown) if shown.rows else ()
    yield from ("", escape_markdown(shown.note), "")


def _rest(count: int, limit: int, what: str) -> list[str]:
    return [f"- {plural(count - limit, f'more {what}')}"] if count > limit else []


def _short_names(cells: TextTable) -> TextTable:
    def short(name: str) -> str:
        return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"

    return TextTable(cells.columns, tuple((short(row[0]), *row[1:]) for row in cells.rows), 2, cells.note)
