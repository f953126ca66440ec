"""A page that is one file: what stands in it, and what cannot get out of it. And the scripts' own tests, in node."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import FEW_ROWS, Markup, Section, bundle, page, section_page, sections
from dptrace.viewers.base.table import TextTable

ROOT = Path(__file__).resolve().parents[3]
NODE = shutil.which("node")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`${1} {{7*7}} $$x$$ \u2028 \u202e"

needs_node = pytest.mark.skipif(NODE is None, reason="no node here (Debian: apt-get install nodejs)")


class Scripts(HTMLParser):
    """Collect the tags of a page and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag == "script"
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def rendered(text: str = "x") -> str:
    """Render a page with *text* in every place that shows text of a trace."""
    scene = {"names": [text], "layout": {"left": 200}}
    head = Headline(text, text, (text,), (text, text))
    scripts = [bundle("base", "theme.js"), bundle("gantt", "gantt.js")]
    return page(head, "", scripts, "gantt/gantt.html", scene=scene, plot={"b": 1, "a": 2}, above="", below="")


def test_names_stay_data() -> None:
    """A hostile name adds no tag, and comes back unchanged from its island; shown, its direction is spelled out."""
    plain, hostile = Scripts(rendered()), Scripts(rendered(HOSTILE))
    shown = rendered(HOSTILE + "\x1b").split('<script type="application/json"', 1)[0]

    assert plain.tags == hostile.tags
    island = next(text for attributes, text in hostile.scripts if attributes.get("id") == "scene")
    assert HOSTILE == json.loads(island)["names"][0]
    assert not {"\u202e", "\x1b"} & set(shown)
    # Bokeh's document refers back to models: sorted keys would break it.
    plot = next(text for attributes, text in plain.scripts if attributes.get("id") == "plot")
    assert ["b", "a"] == list(json.loads(plot))


def test_the_policy_allows_our_scripts_only() -> None:
    """Each script's hash is in the policy, and neither eval nor inline scripts nor the network are."""
    text = rendered()
    allowed = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert allowed
    rules = allowed[1].replace("&#39;", "'")
    running = [script for attributes, script in Scripts(text).scripts if "type" not in attributes]

    assert len(running) == rules.count("sha256-") > 1
    for script in running:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in rules
    assert "default-src 'none'" in rules
    assert "unsafe-eval" not in rules
    assert "script-src 'unsafe-inline'" not in rules


def test_the_page_loads_nothing() -> None:
    """No tag that fetches, and no address in our own files but the name of SVG's namespace, which nothing fetches."""
    assert not {"link", "iframe", "object", "embed", "base"} & set(Scripts(rendered()).tags)
    for path in (path for path in (ROOT / "viewers").glob("*/static/**/*") if path.is_file()):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn", text), path.name


def test_scripts_stand_after_what_they_need() -> None:
    """The bundle holds each module once, in the order of imports, without imports and exports."""
    joined = bundle("gantt", "gantt.js")

    assert not re.search(r"^(import|export) ", joined, re.MULTILINE)
    assert joined.index("function duration") < joined.index("class Labels")
    assert joined.index("class Plot ") < joined.index("new Plot(")
    of_other_pages = [(ROOT / f"viewers/{room}/static").glob("*.js") for room in ("explain", "planning")]
    others = {path.name for paths in of_other_pages for path in paths}
    for path in (path for path in (ROOT / "viewers").glob("*/static/**/*.js") if path.name not in others):
        lines = path.read_text(encoding="utf-8").splitlines()
        longest = max((line for line in lines if not line.startswith("import ")), key=len)
        assert 1 == joined.count(longest), path.name
    assert "</script" not in joined.lower()


@pytest.mark.heavy
@needs_node
def test_the_bundle_is_one_valid_script(tmp_path: Path) -> None:
    """Two modules that use one name at top level would only fail in the browser."""
    script = tmp_path / "bundle.js"
    script.write_text(bundle("gantt", "gantt.js"), encoding="utf-8")

    assert 0 == subprocess.run([str(NODE), "--check", str(script)], check=False).returncode


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "js").glob("*.test.mjs")), ids=lambda path: path.name)
def test_scripts(path: Path) -> None:
    """The scripts' own tests: level of detail against brute force, pixels, words, scene."""
    done = subprocess.run([str(NODE), "--test", str(path)], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout


# A page of sections.


HEAD = Headline("title", "path", ("fact",), ("note",))


def test_a_page_of_sections_runs_no_script() -> None:
    """Its policy allows none at all."""
    page = section_page(HEAD, Markup("<p>x</p>"))

    assert [] == Scripts(page).scripts
    assert "script-src" not in page
    assert "default-src &#39;none&#39;" in page


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
