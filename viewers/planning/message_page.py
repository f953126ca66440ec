"""The cost of one message as one page: the chart of all-reduces by size, and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.planning.message_chart import message_chart
from dptrace.viewers.planning.message_table import message_facts, message_tables

__all__ = ["document"]


def document(content: Mapping[str, Any]) -> str:
    """Draw the contents of ``dptrace predict --bytes --json`` as one HTML page."""
    chart = message_chart(content)
    parts = [Section("chart-message", chart.title, live_charts(chart, "message"), None, chart.subtitle)]
    tables = enumerate(message_tables(content))
    parts += [Section(f"message-{number}", title, cells=cells, open=True) for number, (title, cells) in tables]
    facts = message_facts(content)
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(fact) for fact in facts[1:])
    )
    head = Headline("Cost of a message", "prediction", (facts[0],), ())
    return section_page(head, answer + sections(parts), chart_plots({"message": chart}))
