"""A page of tables and plotly figures in one file, which includes plotly.js once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pandas as pd
from markupsafe import escape

from dptrace.core.units import sanitize
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, environment, page
from dptrace.viewers.terminal.data_frame import cell

__all__ = ["plotly_page"]

MAX_ROWS = 200
"""Most rows of a table on the page."""

_LONGEST_LABEL = 60
_HEAVY_LABELS = ("labels", "x", "y")
# Tags that plotly and HTA put into texts; all other markup came from a trace.
_OWN_TAG = re.compile(r"&lt;(/?(?:br|b|i|extra)/?)&gt;")

_DRAW = """
for (const island of document.querySelectorAll("script.figure")) {
  const {data, layout} = JSON.parse(island.textContent);
  Plotly.newPlot(island.nextElementSibling, data, layout, {responsive: true, displaylogo: false});
}
"""

_STYLES = """
body > :not(header) { margin-right: 20px; margin-left: 20px }
h2 { overflow-wrap: anywhere }
.scroll { overflow: auto; max-height: 32rem }
table { border-collapse: collapse }
th, td { border-bottom: 1px solid var(--line); padding: 3px 10px; max-width: 40rem; text-align: left;
 vertical-align: top; overflow-wrap: anywhere }
th { position: sticky; top: 0; background: var(--paper); overflow-wrap: normal }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.text { min-width: 9rem }
"""
_CONTENT = """{% for heading, island in figures %}
<h2>{{ heading }}</h2>
<script type="application/json" class="figure">{{ island }}</script><div></div>
{% endfor %}
{% for name, columns, numbers, rows, more in tables %}
<h2>{{ name }}</h2>
<div class="scroll"><table><thead><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for value in row %}
<td class="{{ 'number' if numbers[loop.index0] else 'text' }}">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if more %}<p>… and {{ more }} more rows.</p>{% endif %}
{% endfor %}
"""


def plotly_page(
    title: str, subtitle: str, tables: Mapping[str, pd.DataFrame], figures: Sequence[Any], notes: Sequence[str] = ()
) -> str:
    """Return the page; it needs no network and runs no script but plotly.js and its own."""
    content = (
        environment()
        .from_string(_CONTENT)
        .render(
            tables=[_table(name, frame) for name, frame in tables.items()],
            figures=[_island(figure) for figure in figures],
        )
    )
    scripts = [_plotly_js(), _DRAW] if figures else []
    # Plotly draws on white, also where the system asks for dark pages.
    head = Headline(title, "", (subtitle,), tuple(notes))
    return page(head, _STYLES, scripts, content=Markup(content), plots={}, theme="light")


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _table(name: str, frame: pd.DataFrame) -> tuple[str, list[str], list[bool], list[list[str]], str]:
    numbers = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    rows = [[cell(value) for value in row] for row in frame.head(MAX_ROWS).itertuples(index=False)]
    more = len(frame) - len(rows)
    return name.replace("_", " "), list(map(str, frame.columns)), numbers, rows, f"{more:,}" if more else ""


def _island(figure: Any) -> tuple[str, Markup]:
    """Return a figure's title, which the page wraps, and the rest as JSON that no browser reads as markup."""
    plot = msgspec.json.decode(figure.to_json())
    title = plot["layout"].pop("title", {})
    heading = title.get("text", "") if isinstance(title, dict) else str(title)
    if isinstance(legend := plot["layout"].get("legend"), dict):
        for key in ("x", "y", "xanchor", "yanchor"):  # HTA lays it over the pies
            legend.pop(key, None)
    plot["layout"].setdefault("margin", {}).setdefault("t", 20)  # the title is on the page
    labels: dict[str, str] = {}
    for trace in plot["data"]:
        for key in _HEAVY_LABELS:
            if isinstance(trace.get(key), list):
                trace[key] = _distinct(trace[key], labels)
    text = msgspec.json.encode(_inert(plot)).decode()
    return heading, Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _distinct(values: list[Any], given: dict[str, str]) -> list[Any]:
    """Shorten long labels, but keep different ones different: plotly adds up bars of one label.

    Args:
        given: what is short for what in this figure so far.
    """
    for value in values:
        if isinstance(value, str) and len(value) > _LONGEST_LABEL and value not in given:
            short = value[: _LONGEST_LABEL - 1] + "…"
            same = sum(other.startswith(short) for other in given.values())
            given[value] = f"{short} ({same + 1})" if same else short
    return [given.get(value, value) if isinstance(value, str) else value for value in values]


def _inert(value: Any) -> Any:
    """Escape all texts for plotly, which reads them as markup."""
    if isinstance(value, str):
        return _OWN_TAG.sub(r"<\1>", str(escape(sanitize(value))).replace("&#39;", "'").replace("&#34;", '"'))
    if isinstance(value, list):
        return [_inert(item) for item in value]
    return {key: _inert(item) for key, item in value.items()} if isinstance(value, dict) else value
