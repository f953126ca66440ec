"""A planner's answer as one page: its sentences, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, Section, chart_sections, section_page, sections
from dptrace.viewers.planning.charts import charts
from dptrace.viewers.planning.tables import facts, tables

_TITLES = {"advise": ("Advice", "plan"), "message_costs": ("Cost of a message", "prediction")}


def document(content: Mapping[str, Any]) -> str:
    """Draw the contents of ``dptrace predict --json`` or ``dptrace advise --json`` as one HTML page."""
    recorded = content.get("recorded")
    title, kind = _TITLES.get(content["kind"], ("Predicted step", "prediction"))
    said = facts(content)
    first, *rest = (recorded, *said) if recorded else said
    parts = chart_sections(charts(content))
    cells = [
        Section(f"table-{number}", heading, cells=table, open=True)
        for number, (heading, table) in enumerate(tables(content, every=True))
    ]
    # Advice begins with its decision, what is predicted with its pictures.
    parts = [cells[0], *parts, *cells[1:]] if content["kind"] == "advise" else [*parts, *cells]
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in rest)
    )
    head = Headline(title, kind, (first,), tuple(content.get("assumptions", ())))
    return section_page(head, answer + sections(parts))
