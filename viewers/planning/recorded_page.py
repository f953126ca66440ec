"""The prediction of a recording as one page: its steps on the communication roofline, and other numbers of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.planning.predict_table import (
    recorded_roofline_sentence,
    recorded_roofline_table,
    recorded_scaling_table,
    recorded_step_sentence,
)
from dptrace.viewers.planning.roofline_chart import recorded_roofline_chart

__all__ = ["document"]


def document(content: Mapping[str, Any]) -> str:
    """Draw a recording's prediction, the contents of ``dptrace predict RUN --json``, as one HTML page."""
    chart = recorded_roofline_chart(content)
    parts = [
        Section("chart-roofline", chart.title, live_charts(chart, "roofline"), None, chart.message or chart.subtitle)
    ]
    if content["roofline"]:
        parts.append(Section("links", "Links", cells=recorded_roofline_table(content), open=True))
    parts.append(Section("scaling", "On other numbers of ranks", cells=recorded_scaling_table(content), open=True))
    sentences = filter(None, (recorded_step_sentence(content), recorded_roofline_sentence(content)))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
    )
    head = Headline("Predicted from a recording", "prediction", (content["recorded"],), tuple(content["assumptions"]))
    return section_page(head, answer + sections(parts), chart_plots({"roofline": chart}))
