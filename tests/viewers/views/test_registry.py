"""The list of views: each view draws and prints every kind of run."""

from __future__ import annotations

import html
import io
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from dptrace.errors import UsageError
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.pages.view import document, picture
from dptrace.viewers.views.names import NAMES
from dptrace.viewers.views.registry import VIEWS, print_view, view_named
from tests.support.view_cases import CASES
from tests.viewers.base.test_page import Scripts

DRAWN = [name for name, view in VIEWS.items() if view.draw is not None]


def drawing(name: str, case: str) -> Drawing:
    draw = VIEWS[name].draw
    assert draw is not None
    return draw(CASES[case]())


@pytest.mark.heavy
def test_a_view_is_loaded_when_it_is_used() -> None:
    """Listing the views imports none of them, and using one imports those of its subject only."""
    code = (
        "import sys; from dptrace.viewers.views.registry import MODULES, VIEWS; list(VIEWS); VIEWS['idle'];"
        "print([name for name, module in MODULES.items() if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "['summary', 'nodes', 'breakdown', 'heatmap', 'idle', 'findings']" == done.stdout.strip()


def test_there_is_one_list_of_names() -> None:
    """What help lists is what there is, in the same order; each has one line that fits a terminal."""
    assert list(NAMES) == list(VIEWS)
    assert all(len(about) < 72 for about in NAMES.values())
    code = "import sys, dptrace.viewers.views.names; print(sorted({'numpy', 'bokeh', 'rich'} & set(sys.modules)))"
    assert "[]" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    assert all(name == view.name and view.about and view.title for name, view in VIEWS.items())


def test_a_view_that_is_not_there_is_answered_with_those_that_are() -> None:
    """It is the user's error, so the exit code is 2."""
    with pytest.raises(UsageError, match=r"unknown view 'pie'; choose from gantt, summary, nodes, breakdown"):
        view_named("pie")


SVG = "{http://www.w3.org/2000/svg}"


def check_picture(text: str) -> None:
    """Check that an SVG is well-formed, within its bounds, and has no script and no link in it."""
    root = ET.fromstring(text)

    assert root.tag == f"{SVG}svg"
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "rect", "path", "polyline", "polygon", "circle", "text"}
    assert not any(key.startswith("on") or "href" in key for element in root.iter() for key in element.attrib)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        if "x" in box.attrib:
            left, wide = float(box.attrib["x"]), float(box.attrib["width"])
            assert -0.01 <= left <= left + wide <= width + 0.01
            assert -0.01 <= float(box.attrib["y"]) <= height
    for label in root.iter(f"{SVG}text"):
        assert 0 <= float(label.attrib["x"]) <= width
        assert 0 <= float(label.attrib["y"]) <= height + 5


@pytest.mark.slow
def test_every_view_shows_every_run() -> None:
    """As a picture; in the terminal, with no control character from a name; as a page with the view's title; as a
    table whose rows are as wide as its headings, or a sentence says why there is none."""
    for case in CASES:
        run = CASES[case]()
        for name, view in VIEWS.items():
            cells = view.table(run)
            assert all(len(row) == len(cells.columns) for row in cells.rows), name
            assert cells.rows or cells.note.endswith("."), name
            check_picture(picture(view, run))
            if view.draw is not None:
                out = io.StringIO()
                print_view(view, run, Console(file=out, width=100))
                assert view.title in out.getvalue(), case
                assert not {"\x1b", "\u202e"} & set(out.getvalue()), name
                assert f"<h2>{html.escape(view.draw(run).title)}</h2>" in document(view, run), name


def test_where_there_is_nothing_it_is_said() -> None:
    """In the picture; a table without rows says the same."""
    for name, case, said in (
        *((name, "no communication", "has no communication") for name in ("bandwidth", "buckets", "communication")),
        ("bandwidth", "one rank", "a known transfer time"),
        ("bandwidth", "unsized", "a known size and a known transfer time"),
        ("buckets", "one rank", "No collective has all of its ranks here"),
        ("roofline", "two ranks", "read again"),
        ("roofline", "empty", "shapes"),
        ("idle", "no time", "No GPU was idle"),
        ("findings", "no time", "No finding"),
        ("layers", "two ranks", "--modules"),
        ("memory", "two ranks", "record"),
        ("pipeline", "two ranks", "no pipeline"),
    ):
        cells = VIEWS[name].table(CASES[case]())

        assert said in drawing(name, case).message, name
        assert cells.rows or said in cells.note, name


def test_an_empty_run_is_reported_in_words() -> None:
    """A sentence replaces the picture, also on a page that runs no script."""
    for name in DRAWN:
        told = drawing(name, "empty")
        page = document(VIEWS[name], CASES["empty"]())

        assert told.message, name
        assert not told.marks, name
        assert told.message in page, name
        assert [] == Scripts(page).scripts, name
