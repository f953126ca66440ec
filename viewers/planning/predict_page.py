"""A prediction as one page: sliders that compute it again, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, bundle, static
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.planning.predict_charts import scaling_chart, strategies_chart
from dptrace.viewers.planning.predict_table import predict_facts, predict_tables
from dptrace.viewers.planning.roofline_chart import plan_roofline_chart

__all__ = ["document"]


def document(content: Mapping[str, Any]) -> str:
    """Draw a prediction, the contents of ``dptrace predict --json`` with its ``live`` figures, as one HTML page."""
    charts = {"strategies": strategies_chart(content), "scaling": scaling_chart(content)}
    if content["roofline"]:
        charts["roofline"] = plan_roofline_chart(content)
    parts = [
        Section(f"chart-{name}", chart.title, live_charts(chart, name), None, chart.subtitle)
        for name, chart in charts.items()
    ]
    parts += [Section(f"table-{i}", title, cells=cells, open=True) for i, (title, cells) in _tables(content)]
    facts = predict_facts(content)
    head = Headline("Predicted step", "prediction", (facts[0],), tuple(content["assumptions"]))
    answer = Markup('<section class="part">{}</section>').format(
        Markup("").join(Markup("<p>{}</p>").format(fact) for fact in facts[1:])
    )
    body = Markup("<style>{}</style>").format(Markup(static("planning", "plan_page.css"))) + answer + _sliders(content)
    return section_page(head, body + sections(parts), chart_plots(charts), bundle("planning", "plan_page.js"))


def _tables(content: Mapping[str, Any]) -> Any:
    return enumerate(predict_tables(content))


def _sliders(content: Mapping[str, Any]) -> Markup:
    """Return the place of the sliders, and the numbers that they compute with."""
    island = htmlsafe_json_dumps({"plan": content["live"], "layout": content["layout"]})
    return Markup(
        '<section class="part"><h2>Try other values</h2><p class="note">{} computed again as you move a slider, with '
        'the formulas of dptrace predict.</p><div id="sliders"></div></section>'
        '<script type="application/json" id="plan-data">{}</script>'
    ).format(content["layout"], island)
