"""A comparison for a CI server: its limits as JUnit XML, and a short Markdown for a pull request or a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from dptrace.analysis.kernels.names import short_names
from dptrace.comparison.changes import FIGURE_NAMES
from dptrace.comparison.compare import Comparison
from dptrace.comparison.limits import ThresholdResult
from dptrace.core.units import milliseconds, sanitize, signed_milliseconds
from dptrace.viewers.base.table import TextTable, markdown_page
from dptrace.viewers.terminal.comparison import (
    change_cells,
    count,
    overlap_cells,
    row_verdict,
    shown_changes,
    side_lines,
    texts_below,
    verdict_word,
    worst_verdict,
)

# The limits as test cases: GitLab, Jenkins and actions of GitHub read them.

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(found: Comparison, results: Sequence[ThresholdResult]) -> str:
    """Return the result of each limit as a test case: failed, skipped where it could not be decided, or passed."""
    failed, unchecked = sum(one.failed for one in results), sum(not (one.decided or one.failed) for one in results)
    counts = {"tests": str(len(results)), "failures": str(failed), "skipped": str(unchecked), "errors": "0"}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "dptrace diff", **counts})
    for one in results:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "dptrace.diff", "name": _xml(one.limit)})
        if one.failed:
            failure = {"type": "limit", "message": _xml(one.text)}
            ElementTree.SubElement(case, "failure", failure).text = _xml(found.summary())
        elif not one.decided:
            ElementTree.SubElement(case, "skipped", {"message": _xml(one.text)})
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(f"{one.text}\n{found.summary()}")
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _xml(text: str) -> str:
    """Spell out what XML can't hold; the writer escapes the rest."""
    return _NO_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", sanitize(text))


# Markdown.

_MAX_ROWS = 5
"""Of each table in a comment."""


def markdown(found: Comparison, results: Sequence[ThresholdResult] = ()) -> str:
    """Return the headline, the limits, the figures of a step, and what else moved, as Markdown."""
    limits = [f"{'✗' if one.failed else '✓' if one.decided else '–'} {one.text}" for one in results]
    sides = [f"{name}: {line}" for name, line in side_lines(found)]
    tables = [_figures(found), *_rows(found)]
    return markdown_page(found.summary(), [*limits, *sides, *found.differences], tables, texts_below(found))


def _figures(found: Comparison) -> TextTable:
    rows = [
        (FIGURE_NAMES[change.name], *change_cells(change), verdict_word(change.verdict))
        for change in shown_changes(found)
    ]
    for name, share in (("MFU", found.mfu), ("overlap", found.overlap)):
        if share is not None:
            rows.append((name, *overlap_cells(share), verdict_word(share.verdict)))
    return TextTable(("ms per step", "A", "B", "B − A", "± 95 %", "%", "verdict"), tuple(rows))


def _rows(found: Comparison) -> Iterator[TextTable]:
    """Yield the collectives and the kernels that moved, largest change first."""
    collectives = [row for row in found.collective_changes if worst_verdict(row) == "beyond noise"]
    kernels = [row for row in found.kernel_changes if row.time.beyond]
    names = short_names(row.time.name for row in kernels)
    for what, cells in (
        ("collective", [(r.label, r.a_count, r.b_count, r.duration, row_verdict(r)) for r in collectives]),
        ("kernel", [(names[r.time.name], r.a_count, r.b_count, r.time, row_verdict(r)) for r in kernels]),
    ):
        rows = [
            (name, count(a, b), milliseconds(change.a), milliseconds(change.b), signed_milliseconds(change.delta), word)
            for name, a, b, change, word in cells
        ]
        if rows:
            columns = f"{what}, ms per rank and step", "count", "A", "B", "B − A", "verdict"
            yield TextTable(columns, tuple(rows)).truncated(_MAX_ROWS)
