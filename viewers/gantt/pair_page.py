"""The page of two runs on one time axis, aligned by step, with the time that the second one saves::

from dptrace.viewers.gantt import pair_page
page = pair_page.document(dptrace.open("runs/naive"), dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

from bokeh.core.types import ID
from bokeh.embed import json_item
from markupsafe import Markup

from dptrace.comparison.differences import drawn_differences
from dptrace.comparison.step_alignment import AlignedSteps, align_steps, run_steps
from dptrace.core.text import sanitize
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import Headline, headline
from dptrace.viewers.base.page import render, static
from dptrace.viewers.base.time_saved import notes_of_both, time_saved_sentence, titles
from dptrace.viewers.gantt.page import MAX_INTERVALS, figures
from dptrace.viewers.gantt.page_data import layout
from dptrace.viewers.gantt.pair_chart import paired_chart, paired_scene

__all__ = ["document", "picture", "rows_height"]

_NOTHING = Markup("")


def document(a: Run, b: Run, by_step: bool = True) -> str:
    """Draw two runs as one HTML page.

    Args:
        by_step: let each pair of steps begin at one place; else only the first.

    Raises:
        DptraceError: there is no step to draw, or more than a page can hold.
    """
    aligned = align_steps(run_steps(a), run_steps(b), by_step)
    notes = (*notes_of_both(a, b), *aligned.notes)
    above = Markup("<style>{}</style>\n{}").format(Markup(static("base", "compare.css")), _above(aligned))
    return picture(aligned, notes, above)


def rows_height(a: Run, b: Run) -> int:
    """Give how many pixels all rows of both runs take."""
    return int(layout(paired_chart(align_steps(run_steps(a), run_steps(b))))["height"])


def picture(aligned: AlignedSteps, notes: tuple[str, ...], above: Markup, below: Markup = _NOTHING) -> str:
    """Render the page of two runs that are aligned.

    Args:
        above, below: what stands over and under the picture; HTML, so everything in it must be escaped already.
    """
    gantt_chart, page_data = paired_scene(aligned)
    if len(gantt_chart) > MAX_INTERVALS:
        raise DptraceError(
            f"{len(gantt_chart):,} intervals to draw, and one page holds {MAX_INTERVALS:,}. Draw fewer ranks or steps, "
            "for example: --ranks 0,1 or --steps FIRST:LAST."
        )
    paths = " → ".join(one.run.path for one in aligned.runs)
    head = Headline(" → ".join(titles(aligned)), paths, (), tuple(map(sanitize, notes)))
    return render(head, page_data, json_item(figures(page_data), ID("figure")), above, below)


def _above(aligned: AlignedSteps) -> Markup:
    lines = [
        Markup('<p class="runs"><b>{}</b> {}</p>').format(
            x, sanitize(" · ".join((differences.title, *differences.facts)))
        )
        for x, differences in (("A", headline(aligned.a.run)), ("B", headline(aligned.b.run)))
    ]
    answer = Markup('<p class="answer{}">{}</p>').format(
        " quiet" * bool(aligned.incomparable), time_saved_sentence(aligned)
    )
    differences = drawn_differences(aligned.a.run, aligned.b.run)
    differs = Markup("").join(Markup("<li>{}</li>").format(sanitize(text)) for text in differences)
    listed = Markup('<ul class="differs">{}</ul>').format(differs) if differs else Markup("")
    return Markup("\n").join([*lines, listed, answer, Markup("")])
