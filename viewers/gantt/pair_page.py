"""The page of two runs on one time axis, aligned by step, with the time that the second one saves::

from dptrace.viewers import against
page = against.document(dptrace.open("runs/naive"), dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

from bokeh.core.types import ID
from bokeh.embed import json_item
from markupsafe import Markup

from dptrace.comparison.differences import beside_each_other
from dptrace.comparison.step_alignment import AlignedSteps, align_steps, paced
from dptrace.core.text import legible
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import Headline, headline
from dptrace.viewers.base.page import render, static
from dptrace.viewers.base.time_saved import notes_of_both, saving, titles
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
    aligned = align_steps(paced(a), paced(b), by_step)
    notes = (*notes_of_both(a, b), *aligned.notes)
    above = Markup("<style>{}</style>\n{}").format(Markup(static("base", "compare.css")), _above(aligned))
    return picture(aligned, notes, above)


def rows_height(a: Run, b: Run) -> int:
    """Give how many pixels all rows of both runs take."""
    return int(layout(paired_chart(align_steps(paced(a), paced(b))))["height"])


def picture(aligned: AlignedSteps, notes: tuple[str, ...], above: Markup, below: Markup = _NOTHING) -> str:
    """Render the page of two runs that are aligned.

    Args:
        above, below: what stands over and under the picture; HTML, so everything in it must be escaped already.
    """
    laid_out, told = paired_scene(aligned)
    if len(laid_out) > MAX_INTERVALS:
        raise DptraceError(
            f"{len(laid_out):,} intervals to draw, and one page holds {MAX_INTERVALS:,}. Draw fewer ranks or steps, "
            "for example: --ranks 0,1 or --steps FIRST:LAST."
        )
    paths = " → ".join(one.run.path for one in aligned.runs)
    head = Headline(" → ".join(titles(aligned)), paths, (), tuple(map(legible, notes)))
    return render(head, told, json_item(figures(told), ID("figure")), above, below)


def _above(aligned: AlignedSteps) -> Markup:
    lines = [
        Markup('<p class="runs"><b>{}</b> {}</p>').format(x, legible(" · ".join((told.title, *told.facts))))
        for x, told in (("A", headline(aligned.a.run)), ("B", headline(aligned.b.run)))
    ]
    answer = Markup('<p class="answer{}">{}</p>').format(" quiet" * bool(aligned.incomparable), saving(aligned))
    told = beside_each_other(aligned.a.run, aligned.b.run)
    differs = Markup("").join(Markup("<li>{}</li>").format(legible(text)) for text in told)
    listed = Markup('<ul class="differs">{}</ul>').format(differs) if differs else Markup("")
    return Markup("\n").join([*lines, listed, answer, Markup("")])
