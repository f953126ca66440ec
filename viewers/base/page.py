"""A page in one file: scripts, styles and data inlined, and a policy that lets nothing else run.

Names in traces are untrusted. They enter a page in two ways only: through Jinja's autoescape, and in JSON islands,
which no browser executes; the scripts put them on the screen with textContent and fillText. What Python puts into HTML
is a :class:`Markup`.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup as EscapedMarkup

from dptrace.core.units import sanitize
from dptrace.version import __version__
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.base.svg import WIDTH, svg
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.base.theme import css, picture_css

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[\w./]*)";\n', re.MULTILINE)
_EXPORT_WORD = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const)\b)", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)


class Markup(EscapedMarkup):
    r"""HTML; texts that are put into it are escaped, and characters that reverse the direction of text are spelled out.

    >>> Markup("<b>{}</b>").format("<\u202e")
    Markup('<b>&lt;\\u202e</b>')
    """

    @classmethod
    def escape(cls, s: Any, /) -> Markup:
        """Return a text as HTML, and HTML as it is."""
        return super().escape(_legible(s))


def _legible(value: Any) -> Any:
    """Spell out in a text, but not in HTML, what reverses the direction of text."""
    return sanitize(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def static(room: str, name: str) -> str:
    """Read a script, style sheet or template from the static folder of a room, or from a folder in it."""
    return _read(f"{room}/static/{name}")


def _read(path: str) -> str:
    return files("dptrace.viewers").joinpath(*path.split("/")).read_text(encoding="utf-8")


@cache
def bundle(room: str, entry: str) -> str:
    """Join a JavaScript module of a room's static folder and all modules that it imports into one script.

    Modules in a page opened from a disk would need a server or blob URLs, which the policy forbids. So each becomes a
    function that returns its exports, in the order of the imports.
    """
    joined: dict[str, str] = {}

    def add(path: str) -> None:
        if path not in joined:
            joined[path] = ""
            source = _read(path)
            for _, imported in _IMPORT.findall(source):
                add(_resolved(path, imported))
            # Removed and added again, so that a module comes after those that it imports.
            del joined[path]
            joined[path] = _as_function(path, source)

    add(f"{room}/static/{entry}")
    return '(() => {\n"use strict";\n' + "\n".join(joined.values()) + "})();\n"


def _resolved(path: str, imported: str) -> str:
    """Return the path below the viewers of a module that another one imports."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), imported))


def _as_function(path: str, source: str) -> str:
    given = ", ".join(_EXPORT.findall(source))
    plain = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {_variable(_resolved(path, found[2]))};\n", source)
    return f"const {_variable(path)} = (() => {{\n{_EXPORT_WORD.sub('', plain)}return {{ {given} }};\n}})();\n"


def _variable(path: str) -> str:
    """Return the variable of a module: modules of one name may be in several folders."""
    return "$" + path.removesuffix(".js").replace("/static/", "/").replace("/", "_")


def policy(scripts: list[str], served: bool = False) -> str:
    """Return the content security policy that allows these scripts and no others, without eval; without any, no script.

    Args:
        served: allow requests to the page's own server; no page may contact any other.
    """
    if not scripts:
        return "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    reached = "'self'" if served else "data:"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reached}; base-uri 'none'; form-action 'none'"
    )


@cache
def environment() -> Environment:
    """Return a Jinja environment that escapes all values, and keeps Bokeh's order of keys in JSON islands.

    Templates are named by room and file: ``base/page.html``.
    """
    made = Environment(
        autoescape=True,
        loader=FunctionLoader(lambda name: static(*name.split("/", 1))),
        # Characters that reverse the direction of text are spelled out; islands and HTML are left as they are.
        finalize=_legible,
    )
    # Bokeh's document defines a model at its first use and refers to it later: the order of keys matters.
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    return made


def page(
    head: Headline,
    styles: str,
    scripts: list[str],
    template: str = "base/page.html",
    served: bool = False,
    later: dict[str, str] | None = None,
    **content: Any,
) -> str:
    """Return a page: the shell that all pages share, filled with the content of its template.

    Args:
        styles: style sheets, added to the palette and those of the shell.
        served: the page fetches its columns from its own server.
        later: scripts by id that are not run, but held as text for a script that runs them when they are needed.
        content: what the template shows; HTML must be escaped already.
    """
    return (
        environment()
        .get_template(template)
        .render(
            head=head,
            version=__version__,
            policy=policy([*scripts, *(later or {}).values()], served),
            styles=Markup(css() + static("base", "page.css") + styles),
            scripts=[Markup(script) for script in scripts],
            later={name: Markup(script) for name, script in (later or {}).items()},
            **content,
        )
    )


def notebook_frame(document: str, title: str, height: int, saves: bool = False) -> str:
    """Return a page in a frame for a notebook, which the page's scripts can't reach without allow-same-origin.

    Args:
        saves: the page offers its pictures as downloads.
    """
    return (
        f'<iframe sandbox="allow-scripts{" allow-downloads" * saves}" srcdoc="{escape(document)}" '
        f'width="100%" height="{height}" '
        f'title="{escape(title)}" style="border:1px solid #d5dae1;border-radius:6px"></iframe>'
    )


# A page of sections, each with a title, a picture and a table: the shell of all pages but the Gantt chart.


_NOTHING = Markup("")
FEW_ROWS = 12
"""Most rows of a table that is shown open under its picture."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    name: str
    title: str
    picture: Markup = _NOTHING
    """SVG; HTML, escaped already."""
    cells: TextTable | None = None
    about: str = ""
    open: bool | None = None
    """Show the table open, however long it is, or folded; without, a long one is folded."""

    @property
    def folded(self) -> bool:
        """Whether the table is folded."""
        if not self.cells or not self.picture:
            return False
        return len(self.cells.rows) > FEW_ROWS if self.open is None else not self.open


def sections(parts: Sequence[Section]) -> Markup:
    """Render sections as HTML."""
    return Markup(environment().get_template("base/sections.html").render(sections=parts))


_PHONE = 364
"""Width in pixels of a chart on a phone; its texts have the size of the page's."""
_BOTH = Markup('<div class="wide">{}</div><div class="narrow">{}</div>')


def pictures(drawings: Drawing | Sequence[Drawing], width: float = WIDTH) -> Markup:
    """Return charts as SVG, one below the other, for wide and for narrow windows, of which a page shows one.

    Those that only hold a message are left out.

    Args:
        width: of each in a wide window, in pixels; in a page they shrink to the window.
    """
    drawn = [drawings] if isinstance(drawings, Drawing) else drawings
    return Markup("").join(
        _BOTH.format(Markup(svg(one, heading=False, width=width)), Markup(svg(one, heading=False, width=_PHONE)))
        for one in drawn
        if not one.message
    )


def chart_sections(charts: Mapping[str, Drawing]) -> list[Section]:
    """Return a section for each chart, by its name: the picture, and what it is about."""
    return [
        Section(f"chart-{name}", chart.title, pictures(chart), None, chart.message or chart.subtitle)
        for name, chart in charts.items()
    ]


def section_styles() -> str:
    """Return the style sheets of pages with sections, whose pictures are dark where the page is."""
    return static("base", "plain.css") + picture_css()


def section_page(head: Headline, content: Markup) -> str:
    """Render the page, which runs no script; it is dark where the system asks for it.

    Args:
        content: content below the notes; HTML, escaped already.
    """
    return page(head, section_styles(), [], content=content)
