"""A page of sections."""

from __future__ import annotations

import json

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import FEW_ROWS, Section, section_page, sections
from dptrace.viewers.base.table import TextTable
from tests.viewers.base.test_page import HOSTILE, Scripts

HEAD = Headline("title", "path", ("fact",), ("note",))


def test_a_page_without_a_figure_runs_nothing() -> None:
    """Its policy allows no script at all."""
    page = section_page(HEAD, Markup("<p>x</p>"))

    assert [] == Scripts(page).scripts
    assert "script-src" not in page
    assert "default-src &#39;none&#39;" in page


def test_a_figure_stands_in_an_island() -> None:
    """Bokeh's order of keys kept, and the policy with the scripts' hashes and without eval."""
    page = section_page(HEAD, Markup(""), {"light": {"b": HOSTILE, "a": 1}})
    island = next(text for attributes, text in Scripts(page).scripts if attributes.get("id") == "plot-light")

    assert {"b": HOSTILE, "a": 1} == json.loads(island)
    assert ["b", "a"] == list(json.loads(island))
    assert "unsafe-eval" not in page.split("</head>")[0]


def test_names_stay_text() -> None:
    """Wherever they stand, they add no tag and turn no text."""

    def made(text: str) -> str:
        cells = TextTable((text, text), ((text, text),), 1, text)
        return section_page(
            Headline(text, text, (text,), (text,)), sections([Section("x", text, cells=cells, about=text)])
        )

    assert Scripts(made("x")).tags == Scripts(made(HOSTILE)).tags
    assert "\u202e" not in made(HOSTILE)


def test_long_tables_are_folded_under_their_picture() -> None:
    """Unless there is no picture, or they are what the page is for."""
    cells = TextTable(("a",), (("1",),) * (FEW_ROWS + 1))

    assert "<details>" in sections([Section("x", "t", Markup("<svg/>"), cells)])
    assert "<details>" not in sections([Section("x", "t", Markup("<svg/>"), cells, open=True)])
    assert "<details>" not in sections([Section("x", "t", cells=cells)])
