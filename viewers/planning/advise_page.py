"""Advice on a described training as one page: the answer, charts of steps and memory, and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.planning.advise_charts import memory_chart, steps_chart
from dptrace.viewers.planning.advise_table import advise_facts, advise_tables, recommendation

__all__ = ["document"]


def document(content: Mapping[str, Any]) -> str:
    """Draw advice, the contents of ``dptrace advise --json``, as one HTML page."""
    charts = {"steps": steps_chart(content), "memory": memory_chart(content)}
    tables = list(advise_tables(content, every=True))
    parts = [Section("decision", *_first(tables[0]))]
    parts += [
        Section(f"chart-{name}", chart.title, live_charts(chart, name), None, chart.subtitle)
        for name, chart in charts.items()
    ]
    parts += [Section(f"table-{i}", title, cells=cells, open=True) for i, (title, cells) in enumerate(tables[1:])]
    head = Headline("Advice", "plan", tuple(advise_facts(content)), tuple(content["assumptions"]))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(said) for said in recommendation(content))
    )
    return section_page(head, answer + sections(parts), chart_plots(charts))


def _first(table: tuple[str, Any]) -> tuple[Any, ...]:
    title, cells = table
    return title, Markup(""), cells, "", True
