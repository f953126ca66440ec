"""One page with everything on a run, to attach to a ticket: summary, findings, Gantt chart, other views, facts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dptrace.analysis.findings.finding import nothing_found, top_findings
from dptrace.core.checks import rank_entries
from dptrace.core.units import sanitize
from dptrace.replay.findings import findings_of
from dptrace.run.notable_ranks import middle_step_of
from dptrace.run.run import Run
from dptrace.viewers.base.headline import drawn_headline
from dptrace.viewers.base.marks import split_by_height
from dptrace.viewers.base.page import Markup, Section, environment, pictures, section_page, section_styles, sections
from dptrace.viewers.base.table import MAX_ROWS, figure_words, gain_sentence, gains_known, order_sentence
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.host import host_data, host_notes
from dptrace.viewers.gantt.page.data import details, scene
from dptrace.viewers.gantt.page.document import add_unknown, fitting, gantt_page, run_data
from dptrace.viewers.pages.gantt_svg import gantt_svg
from dptrace.viewers.terminal.split import findings_heading, minor_sentence
from dptrace.viewers.terminal.summary import sentence
from dptrace.viewers.views.registry import VIEWS, View
from dptrace.viewers.views.steps import MAX_BARS

MAX_REPORT_INTERVALS = 1_000_000
MAX_CHARACTERS = 9_500_000
"""Limits of the interactive chart of a report, in intervals and characters, so that the file stays below 10 MB."""
_LIKELY = 8
"""Intervals of a chart for each of its run's, at most as a rule."""
_UNLIKELY = 1.2
"""How far beyond that the chart of all ranks seems to be, where it is not made to see whether it is."""
TALLEST = 2_000
"""Height in pixels of the chart's rows from which they scroll within the chart."""

PAPER = 300.0
"""Height in pixels after which a picture is split: a printed page holds two such parts."""

_LEFT_OUT = frozenset({"schema", "losses", "ranks", "ddp", "notes"})
"""Keys of run.json that are long, or shown elsewhere on the page."""
_LONGEST_FACT = 400
"""Characters of a value of run.json that are shown."""

DEFINITIONS = (
    ("Step", "from where the profiler marks its begin to the next mark, on each GPU by the work launched in it"),
    ("Forward, backward, optimizer", "time in which a GPU computed, by what launched the work, not by its name"),
    ("Other compute", "compute in none of the three: clipping, metrics, work launched before the recording began"),
    ("Exposed communication", "time in which a collective ran and no compute did: waiting or transfer"),
    ("Waiting", "exposed communication in which a rank waited for a later one; unknown where ranks are missing"),
    ("Exposed transfer", "the rest of exposed communication"),
    (
        "Overlapped communication",
        "time in which a collective ran under compute; it counts as compute and is listed in addition",
    ),
    ("Exposed memory", "copies and sets while neither compute nor communication ran"),
    ("Idle", "time in which nothing ran; its cause follows from when the host launched the work that ended it"),
    ("Wall time", "the parts, from forward to idle: they add up to it to the nanosecond"),
    (
        "Transfer and wait",
        "the shortest duration of a collective among its ranks, and the time that a rank took beyond that",
    ),
    ("Bus bandwidth", "as nccl-tests defines it: comparable over kinds and numbers of ranks"),
)


def document(run: Run) -> str:
    """Write the report as one HTML page that needs no network.

    A run that is too large for one page is shown by a static picture of its step of median length.
    """
    intervals = sum(map(len, run.timelines))
    parts = [_section(run, view) for view in VIEWS.values() if view.in_report and view.concerns(run)]
    above = Markup('<p class="answer">{}</p>\n').format(sanitize(sentence(run).plain)) + _findings(run)
    below = sections(parts) + _facts(run) + _definitions()
    # On paper these are on the first page, so that the chart and its legend start on the second.
    above += Markup('<div class="cover">{}</div>\n').format(_facts(run, "cover-") + _definitions("cover-"))
    head = drawn_headline(run)
    head = replace(head, notes=(*head.notes, *(run.cross_rank.notes if run.timelines else ())))
    gantt_chart = chart(run) if run.timelines and _may_fit(run, intervals) else None
    if gantt_chart is not None and len(gantt_chart) <= MAX_REPORT_INTERVALS:
        styles, page_data = section_styles(), _chart(run, gantt_chart)
        host = host_data(run, gantt_chart)
        notes = (*head.notes, *host_notes(run, host))
        for header, data in ((replace(head, notes=notes), page_data | {"host": host}), (head, page_data)):
            page = gantt_page(header, data, above + _HINT, below, styles, zoom_key="ctrl")
            if len(page) <= MAX_CHARACTERS:
                return page
    picture = sections([_still(run, intervals)] if run.timelines else [])
    return section_page(head, above + picture + below)


def _may_fit(run: Run, intervals: int) -> bool:
    """Return whether a page may hold the chart of a run, as far as that of some ranks tells, which is soon made."""
    if intervals > MAX_REPORT_INTERVALS:  # a chart has more intervals than its run
        return False
    some = run if intervals <= MAX_REPORT_INTERVALS // _LIKELY else fitting(run, MAX_BARS)
    if some is run:
        return True
    drawn = len(chart(some)) / max(1, sum(map(len, some.timelines)))
    return intervals * drawn <= _UNLIKELY * MAX_REPORT_INTERVALS


_HINT = Markup('<p class="hint">The wheel scrolls the page; with Ctrl it zooms the chart.</p>\n')


def _chart(run: Run, gantt_chart: Chart) -> dict[str, Any]:
    """Return the Gantt chart for the page: all rows are shown, since the page scrolls."""
    page_data = scene(gantt_chart, details(run, gantt_chart)) | run_data(run, gantt_chart)
    add_unknown(page_data, run, gantt_chart)
    # The page lists them itself.
    page_data["findings"] = []
    page_data["layout"]["whole"] = page_data["layout"]["height"] <= TALLEST
    return page_data


def _section(run: Run, view: View) -> Section:
    """Make the section of a view: its picture and the first rows of its table."""
    assert view.draw is not None
    drawing, cells = view.draw(run), view.table(run)
    shown = cells.truncated(MAX_ROWS) if cells.rows else None
    if drawing.message:
        return Section(view.name, view.title, cells=shown, about=drawing.message)
    pieces = (pictures(part) for part in split_by_height(drawing, PAPER))
    picture = Markup("").join(Markup('<div class="piece">{}</div>').format(piece) for piece in pieces)
    return Section(view.name, drawing.title, picture, shown, drawing.subtitle)


def _still(run: Run, count: int) -> Section:
    part = fitting(run, MAX_BARS)
    ranks = "" if part is run else f", on {len(part.ranks)} of {len(run.ranks):,} ranks, the notable and typical ones"
    middle = middle_step_of(part)
    names = sorted({name for timeline in middle.timelines for name in timeline.windows.names})
    about = (
        f"The run has {count:,} kernels, collectives and copies, too many for a page to attach: this is its step of "
        f"median length, {', '.join(names)}{ranks}. To look at all of it: dptrace view."
    )
    return Section("gantt", VIEWS["gantt"].title, Markup(gantt_svg(middle, heading=False)), None, about)


def _findings(run: Run) -> Markup:
    found = findings_of(run) if run.timelines else ()
    if not found:
        return Markup('<p class="findings">Findings: {}</p>\n').format(nothing_found(run.on_cpu, run.is_limited))
    entry = Markup('<li><span class="cost"><b>{}</b>{}</span><div><p>{}</p><p class="advice">→ {}</p>{}</div></li>\n')
    gain = Markup('<p class="advice">{}</p>')
    top, known = top_findings(found), gains_known(found)
    figures = [figure_words(f, known) for f in top]
    entries = (
        entry.format(
            figure,
            f"{100 * f.figure[1]:.1f} % of the step" if of_step else "",
            sanitize(f.text),
            sanitize(f.advice),
            gain.format(sanitize(gain_sentence(f))),
        )
        for f, (figure, of_step) in zip(top, figures, strict=True)
    )
    listed = Markup('<ol class="findings">\n{}</ol>\n').format(Markup("").join(entries))
    words = ("" if known else f"{findings_heading(found)}.", order_sentence(found), minor_sentence(found))
    return listed + Markup("").join(
        Markup('<p class="findings">{}</p>\n').format(sanitize(one)) for one in words if one
    )


def _facts(run: Run, place: str = "") -> Markup:
    """List the facts of run.json: how, where and with what the run was recorded."""
    facts = [("Trace", run.path), *_fact_rows(run.metadata)]
    return _list(f"{place}facts", "How it was recorded", facts)


def _fact_rows(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in info.items():
        if name in _LEFT_OUT or value is None or value == "":
            continue
        text = _flat(name, value)
        if text:
            yield name.replace("_", " "), text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"
    known = rank_entries(info)
    hosts = sorted({str(rank["host"]) for rank in known if rank.get("host")})
    machines = sorted({str(rank["device"]) for rank in known if rank.get("device")})
    yield from (("hosts", ", ".join(hosts)),) if hosts else ()
    yield from (("devices", ", ".join(machines)),) if machines else ()


def _flat(name: str, value: object) -> str:
    """Write a value on one line: a command as typed, names with their values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items() if one is not None)
    if isinstance(value, list):
        words = [str(one) for one in value]
        return shlex.join(words) if name == "command" else ", ".join(words)
    return str(value)


def _definitions(place: str = "") -> Markup:
    return _list(f"{place}definitions", "Definitions", DEFINITIONS)


_LIST = """<section class="part" id="{{ name }}"><h2>{{ title }}</h2>
<dl>{% for term, text in entries %}<dt>{{ term }}</dt><dd>{{ text }}</dd>{% endfor %}</dl></section>
"""


def _list(name: str, title: str, entries: Any) -> Markup:
    return Markup(environment().from_string(_LIST).render(name=name, title=title, entries=entries))
