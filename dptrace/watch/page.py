"""``watch.html`` in the folder of a watch: a page that follows the run, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from dptrace.core.units import duration, sanitize
from dptrace.watch.digest import Floats
from dptrace.watch.verdict import Totals, lines

PAGE_FILE = "watch.html"
_COLUMNS, _ROWS = 120, 48
"""Cells of the picture of lateness, at most."""
_WIDTH, _TREND, _CELL = 960, 120, 12
"""Pixels: the width of both pictures, the height of the trend and of a row of cells."""
_STYLE = "body{font:14px system-ui;margin:2em;max-width:1000px}pre{white-space:pre-wrap}svg{display:block;margin:1em 0}"


def document(totals: Totals, content: Mapping[str, Any], name: str, goes_on: bool) -> str:
    """Return the page; while the job goes on, a browser loads it again every 15 s."""
    refresh = '<meta http-equiv="refresh" content="15">' if goes_on else ""
    text = escape("\n".join(map(sanitize, lines(content))))
    means = totals.length_course.means()
    parts = [f"<h1>{escape(sanitize(name))}</h1><pre>{text}</pre>"]
    if len(means):
        parts.append(f"<h2>Step time, up to {duration(float(means.max()))}</h2>{_trend(means)}")
    if totals.lateness_known and len(means):
        late = totals.late_course.means().sum(1)
        title = f"Lateness by rank and step, up to {duration(float(late.max()))} per step"
        parts.append(f"<h2>{title}</h2>{_heatmap(late, totals)}")
    head = f'<meta charset="utf-8">{refresh}<title>{escape(sanitize(name))}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _trend(means: Floats) -> str:
    x = np.linspace(0, _WIDTH, len(means))
    y = _TREND - means / max(1.0, float(means.max())) * (_TREND - 4)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg role="img" aria-label="Step time over the run" width="{_WIDTH}" height="{_TREND}">'
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/></svg>'
    )


def _heatmap(late: Floats, totals: Totals) -> str:
    """Return lateness of ranks (down) over steps (right); of several in a cell the largest."""
    rows = np.array_split(np.arange(len(late)), min(_ROWS, len(late)))
    columns = np.array_split(np.arange(late.shape[1]), min(_COLUMNS, late.shape[1]))
    width, most = _WIDTH / late.shape[1], max(1.0, float(late.max()))
    cells = []
    for number, ranks in enumerate(rows):
        for steps in columns:
            share = float(late[np.ix_(ranks, steps)].max()) / most
            if share > 0.02:
                at = f'x="{steps[0] * width:.1f}" width="{len(steps) * width:.1f}"'
                at += f' y="{number * _CELL}" height="{_CELL - 1}"'
                what = f"rank {totals.ranks[ranks[0]]}, step {totals.late_course.first_step(int(steps[0])):,}"
                cells.append(f'<rect {at} opacity="{share:.2f}"><title>{what}</title></rect>')
    size = f'width="{_WIDTH}" height="{len(rows) * _CELL}"'
    frame = f'<rect {size} fill="#f4f4f4"/>'
    name, shown = 'role="img" aria-label="Lateness by rank and step"', "".join(cells)
    first, last = (totals.late_course.first_step(place) for place in (0, late.shape[1] - 1))
    below = f"Ranks {totals.ranks[0]} to {totals.ranks[-1]}, down; steps {first:,} to {last:,}, from left to right."
    return f'<svg {name} {size}>{frame}<g fill="#c0392b">{shown}</g></svg><p>{below}</p>'
