"""A what-if for several values as a chart, and as a page with the chart and its table."""

from __future__ import annotations

from pathlib import Path

from dptrace.core.units import duration
from dptrace.replay.whatif import Sweep
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Label, Line, time_axis
from dptrace.viewers.base.page import Section, pictures, section_page, sections
from dptrace.viewers.base.theme import EXPOSED
from dptrace.viewers.terminal.replay import sweep_sentence, sweep_table

_PREDICTED, _MEASURED = "#0072B2", "#57606A"
_HEIGHT, _HEADROOM = 300, 1.1
"""Of the chart in pixels, and how much higher than the longest step its axis is."""
_TITLES = {"bucket-cap-mb": "bucket cap, MiB", "world-size": "ranks"}


def sweep_chart(sweep: Sweep) -> Drawing:
    """Draw the predicted step over the swept value, with its range, the measured step, and the best value marked."""
    points = [(point.value, point.answer) for point in sweep.points]
    measured, clear = points[0][1].measured_step_ns, sweep.clearly_best
    low, high = points[0][0], points[-1][0]
    low, high = low / 1.3, high * 1.3
    line = tuple((value, float(answer.predicted_step_ns)) for value, answer in points)
    marks: list[Line | Dot | Label] = [Line(((low, measured), (high, measured)), _MEASURED), Line(line, _PREDICTED)]
    for value, answer in points:
        marks.append(Line(((value, float(answer.low_ns)), (value, float(answer.high_ns))), _PREDICTED))
        best = clear is not None and value == clear.value
        tip = (
            f"{value:g}: {duration(answer.predicted_step_ns)} ({duration(answer.low_ns)} to {duration(answer.high_ns)})"
        )
        color, shape = (EXPOSED, "diamond") if best else (_PREDICTED, "circle")
        marks.append(Dot(value, answer.predicted_step_ns, color, tip, shape=shape, size=13.0 if best else 9.0))
    longest = max(measured, *(answer.high_ns for _, answer in points))
    times = time_axis(longest * _HEADROOM)
    y = Axis(times.high, 0, times.ticks, "time of a step")
    x = Axis(low, high, tuple((value, f"{value:g}") for value, _ in points), _TITLES[sweep.option], log=True)
    legend = [Entry(_PREDICTED, "predicted, with its range", "circle"), Entry(_MEASURED, "measured", "line")]
    legend += [Entry(EXPOSED, "best", "diamond")] if clear is not None else []
    return Drawing(
        f"Predicted step by {sweep.option}", sweep_sentence(sweep), x, y, _HEIGHT, tuple(marks), tuple(legend)
    )


def document(sweep: Sweep) -> str:
    """Draw the answers as one HTML page."""
    chart, table, answer = sweep_chart(sweep), sweep_table(sweep), sweep.points[0].answer
    parts = [
        Section("chart", chart.title, pictures(chart), None, chart.subtitle),
        Section("table", "All values", cells=table, open=True),
    ]
    texts = dict.fromkeys(doubt.text for point in sweep.points for doubt in point.answer.doubts)
    name = Path(answer.path).name or answer.path
    head = Headline(f"What if: {name}", answer.path, (f"{len(sweep.points)} values of {sweep.option}",), tuple(texts))
    return section_page(head, sections(parts))
