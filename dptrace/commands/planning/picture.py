"""The charts of a plan as a file: SVG, or PNG with an installed Chromium."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrace.commands.shared.output import write_text
from dptrace.commands.shared.pages import svg_height
from dptrace.core.files import atomic_write

if TYPE_CHECKING:
    from dptrace.viewers.base.marks import Drawing

__all__ = ["page_of", "write_chart", "write_drawing"]

_WIDTH = 1200


def page_of(content: Mapping[str, Any]) -> str:
    """Return the page of a plan, of a recording's prediction, or of a message."""
    if content["kind"] == "message_costs":
        from dptrace.viewers.planning.message_page import document
    elif "recorded" in content:
        from dptrace.viewers.planning.recorded_page import document
    else:
        from dptrace.viewers.planning.predict_page import document
    return document(content)


def write_chart(content: Mapping[str, Any], path: Path) -> None:
    """Draw the step by strategy; of one strategy, its efficiency by number of GPUs; of a recording, its roofline; of a
    message, its all-reduces by size.

    Raises:
        DptraceError: a PNG is asked for, and there is no Chromium.
    """
    from dptrace.viewers.planning.message_chart import message_chart
    from dptrace.viewers.planning.predict_charts import scaling_chart, strategies_chart
    from dptrace.viewers.planning.roofline_chart import recorded_roofline_chart

    if content["kind"] == "message_costs":
        chart = message_chart(content)
    elif "recorded" in content:
        chart = recorded_roofline_chart(content)
    else:
        chart = strategies_chart(content) if len(content["candidates"]) > 1 else scaling_chart(content)
    write_drawing(chart, path)


def write_drawing(chart: Drawing, path: Path) -> None:
    """Write a chart as SVG or PNG, by the suffix.

    Raises:
        DptraceError: a PNG is asked for, and there is no Chromium.
    """
    from dptrace.viewers.base.svg_renderer import svg

    drawn = svg(chart)
    if path.suffix == ".svg":
        write_text(path, drawn)
        return
    from dptrace.viewers.base.screenshot import framed, screenshot

    with atomic_write(path) as temporary:
        screenshot(framed(drawn), temporary, (_WIDTH, svg_height(drawn, _WIDTH)))
