"""The page of two runs on one time axis, aligned by step, with the time that the second one saves.

Example::

    from dptrace.viewers.gantt.pair.page import document
    html = document(dptrace.open("runs/naive"), dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.comparison.compare import compare
from dptrace.comparison.sides import drawn_differences, incomparable
from dptrace.comparison.step_alignment import AlignedSteps, align_steps, run_steps
from dptrace.core.units import sanitize
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import Headline, headline
from dptrace.viewers.base.page import Markup, static
from dptrace.viewers.base.time_saved import notes_of_both, time_saved_sentence, titles
from dptrace.viewers.gantt.page.data import layout
from dptrace.viewers.gantt.page.document import MAX_INTERVALS, gantt_page
from dptrace.viewers.gantt.pair.chart import paired_chart, paired_scene

__all__ = ["document", "picture", "rows_height"]

_NOTHING = Markup("")


def document(a: Run, b: Run, by_step: bool = True, verdict: Sequence[str] = ()) -> str:
    """Draw two runs as one HTML page.

    Args:
        by_step: align each pair of steps; otherwise only the first.
        verdict: sentences above the chart where B is a prediction, which no statistics of recordings are about.

    Raises:
        DptraceError: a run has no step, or there are more intervals than a page can hold.
    """
    steps = run_steps(a), run_steps(b)
    comparison = None if verdict or incomparable(a, b) else compare(a, b, with_kernels=False)
    aligned = align_steps(*steps, by_step, comparison)
    notes = (*notes_of_both(a, b), *aligned.notes, *(comparison.notes if comparison else ()))
    return picture(aligned, notes, _above(aligned, verdict))


def rows_height(a: Run, b: Run) -> int:
    """Return the height of all rows of both runs in pixels."""
    return int(layout(paired_chart(align_steps(run_steps(a), run_steps(b))))["height"])


def picture(aligned: AlignedSteps, notes: tuple[str, ...], above: Markup, below: Markup = _NOTHING) -> str:
    """Render the page of two aligned runs.

    Args:
        above, below: escaped HTML above and below the chart.
    """
    gantt_chart, page_data = paired_scene(aligned)
    if len(gantt_chart) > MAX_INTERVALS:
        raise DptraceError(
            f"{len(gantt_chart):,} intervals to draw; one page holds at most {MAX_INTERVALS:,}. Select fewer ranks or "
            "steps, for example with --ranks 0,1 or --steps A:B."
        )
    paths = " → ".join(one.run.path for one in aligned.runs)
    head = Headline(" → ".join(titles(aligned)), paths, (), tuple(map(sanitize, notes)))
    return gantt_page(head, page_data, above, below, static("base", "compare.css"))


def _above(aligned: AlignedSteps, verdict: Sequence[str]) -> Markup:
    lines = [
        Markup('<p class="runs"><b>{}</b> {}</p>').format(letter, sanitize(" · ".join((head.title, *head.facts))))
        for letter, head in (("A", headline(aligned.a.run)), ("B", headline(aligned.b.run)))
    ]
    answer = Markup("\n").join(
        Markup('<p class="answer{}">{}</p>').format(" quiet" * quiet, text)
        for text, quiet in _answers(aligned, verdict)
    )
    differences = drawn_differences(aligned.a.run, aligned.b.run)
    items = Markup("").join(Markup("<li>{}</li>").format(text) for text in differences)
    listed = Markup('<ul class="differs">{}</ul>').format(items) if items else Markup("")
    return Markup("\n").join([*lines, listed, answer, Markup("")])


def _answers(aligned: AlignedSteps, verdict: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the sentences above the chart, and whether each is quiet: the verdict, and what the drawn steps take."""
    if verdict:
        return [(sanitize(text), number > 0) for number, text in enumerate(verdict)]
    if aligned.comparison is None:
        return [(time_saved_sentence(aligned), bool(aligned.incomparable))]
    return [(aligned.comparison.summary(), False), (time_saved_sentence(aligned), True)]
