"""A prediction, advice, or the cost of a message as one page: the answer, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, Section, pictures, section_page, sections
from dptrace.viewers.planning.charts import (
    memory_chart,
    message_chart,
    plan_roofline_chart,
    recorded_roofline_chart,
    scaling_chart,
    steps_chart,
    strategies_chart,
)
from dptrace.viewers.planning.predict_table import (
    predict_facts,
    predict_tables,
    recorded_roofline_sentence,
    recorded_roofline_table,
    recorded_scaling_table,
    recorded_step_sentence,
)
from dptrace.viewers.planning.tables import advise_facts, advise_tables, message_facts, message_tables, recommendation

__all__ = ["advise_document", "message_document", "predict_document", "recorded_document"]


def predict_document(content: Mapping[str, Any]) -> str:
    """Draw a prediction, the contents of ``dptrace predict --json``, as one HTML page."""
    charts = {"strategies": strategies_chart(content), "scaling": scaling_chart(content)}
    if content["roofline"]:
        charts["roofline"] = plan_roofline_chart(content)
    parts = [
        Section(f"chart-{name}", chart.title, pictures(chart), None, chart.subtitle) for name, chart in charts.items()
    ]
    parts += [Section(f"table-{i}", title, cells=cells, open=True) for i, (title, cells) in _tables(content)]
    facts = predict_facts(content)
    head = Headline("Predicted step", "prediction", (facts[0],), tuple(content["assumptions"]))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(fact) for fact in facts[1:])
    )
    return section_page(head, answer + sections(parts))


def _tables(content: Mapping[str, Any]) -> Any:
    return enumerate(predict_tables(content))


# Advice on a described training as one page: the answer, charts of steps and memory, and the tables.


def advise_document(content: Mapping[str, Any]) -> str:
    """Draw advice, the contents of ``dptrace advise --json``, as one HTML page."""
    charts = {"steps": steps_chart(content), "memory": memory_chart(content)}
    tables = list(advise_tables(content, every=True))
    parts = [Section("decision", *_first(tables[0]))]
    parts += [
        Section(f"chart-{name}", chart.title, pictures(chart), None, chart.subtitle) for name, chart in charts.items()
    ]
    parts += [Section(f"table-{i}", title, cells=cells, open=True) for i, (title, cells) in enumerate(tables[1:])]
    head = Headline("Advice", "plan", tuple(advise_facts(content)), tuple(content["assumptions"]))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(said) for said in recommendation(content))
    )
    return section_page(head, answer + sections(parts))


def _first(table: tuple[str, Any]) -> tuple[Any, ...]:
    title, cells = table
    return title, Markup(""), cells, "", True


# The cost of one message as one page: the chart of all-reduces by size, and the tables.


def message_document(content: Mapping[str, Any]) -> str:
    """Draw the contents of ``dptrace predict --bytes --json`` as one HTML page."""
    chart = message_chart(content)
    parts = [Section("chart-message", chart.title, pictures(chart), None, chart.subtitle)]
    tables = enumerate(message_tables(content))
    parts += [Section(f"message-{number}", title, cells=cells, open=True) for number, (title, cells) in tables]
    facts = message_facts(content)
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(fact) for fact in facts[1:])
    )
    head = Headline("Cost of a message", "prediction", (facts[0],), ())
    return section_page(head, answer + sections(parts))


# The prediction of a recording as one page: its steps on the communication roofline, and other numbers of ranks.


def recorded_document(content: Mapping[str, Any]) -> str:
    """Draw a recording's prediction, the contents of ``dptrace predict RUN --json``, as one HTML page."""
    chart = recorded_roofline_chart(content)
    parts = [Section("chart-roofline", chart.title, pictures(chart), None, chart.message or chart.subtitle)]
    if content["roofline"]:
        parts.append(Section("links", "Links", cells=recorded_roofline_table(content), open=True))
    parts.append(Section("scaling", "On other numbers of ranks", cells=recorded_scaling_table(content), open=True))
    sentences = filter(None, (recorded_step_sentence(content), recorded_roofline_sentence(content)))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
    )
    head = Headline("Predicted from a recording", "prediction", (content["recorded"],), tuple(content["assumptions"]))
    return section_page(head, answer + sections(parts))
