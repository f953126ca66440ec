"""Sphinx directives that show the help of the command line as it prints it: an index, and a page for each command.

sphinx-click reads parameters only. This calls each command's own ``format_help``, so that grouped options, lists of
modes and notes on exit codes are on the page as they are in the terminal. The pages' sources are written before a
build, for the commands that there are then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dptrace.commands.shared.main import COMMANDS, cli

PAGES = "reference/cli"
"""The folder of the commands' pages."""

_CODE = re.compile(r"`+([^`]+)`+|(?<![\w-])(--?[a-z][a-z-]*)")
"""What is set as code in a sentence: what is in backticks, and the names of options."""


class _Nodes(click.HelpFormatter):
    """Collect what a command writes into its help as nodes of a document."""

    def __init__(self) -> None:
        super().__init__(width=100)
        self.found: list[nodes.Node] = []

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.found.append(_literal(f"{prog} {args}".strip()))

    def write_heading(self, heading: str) -> None:
        self.found.append(nodes.rubric("", heading))

    def write_paragraph(self) -> None:
        """Leave out the blank line: nodes have their own distance."""

    def write_text(self, text: str) -> None:
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.lstrip(" ").startswith("\b"):
                self.found.append(_literal(_dedented(paragraph.partition("\n")[2])))
            elif paragraph.strip():
                self.found.append(_paragraph(" ".join(paragraph.split())))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        listed = nodes.definition_list()
        for term, about in rows:
            item = nodes.definition_list_item()
            item += nodes.term("", "", nodes.literal("", term))
            item += nodes.definition("", _paragraph(about))
            listed += item
        self.found.append(listed)

    def write(self, string: str) -> None:
        if string.strip():
            self.found.append(_literal(_dedented(string)))

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write_heading(name)
        yield


def _literal(text: str) -> nodes.Node:
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    return block


def _dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)


def _paragraph(text: str) -> nodes.paragraph:
    paragraph = nodes.paragraph()
    end = 0
    for match in _CODE.finditer(text):
        paragraph += nodes.Text(text[end : match.start()])
        paragraph += nodes.literal("", match[1] or match[2])
        end = match.end()
    paragraph += nodes.Text(text[end:])
    return paragraph


def _context(verb: str = "") -> click.Context:
    """Return the context in which dptrace, or one of its commands, is called."""
    root = click.Context(cli, info_name="dptrace", **cli.context_settings)
    command = cli.get_command(root, verb) if verb else None
    return click.Context(command, root, verb, **command.context_settings) if command else root


class CommandIndex(SphinxDirective):
    """``{command-index}``: the help of dptrace itself, whose commands are links to their pages."""

    def run(self) -> list[nodes.Node]:
        formatter = _Nodes()
        cli.format_help(_context(), formatter)
        for node in formatter.found:
            for term in node.findall(nodes.term):
                if term.astext() in COMMANDS:
                    self._link(term, term.astext())
        return formatter.found

    def _link(self, term: nodes.term, verb: str) -> None:
        target = addnodes.pending_xref(
            "", nodes.literal("", verb), refdomain="std", reftype="doc", reftarget=f"/{PAGES}/{verb}", refexplicit=True
        )
        target["refdoc"] = self.env.docname
        term.children = []
        term += target
        term["ids"] = [f"dptrace-{verb}"]  # where the help of the command once was on this page


class CommandHelp(SphinxDirective):
    """``{command-help} VERB``: the help of one command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        formatter, context = _Nodes(), _context(self.arguments[0])
        context.command.format_help(context, formatter)
        if hasattr(context.command, "format_trainers"):
            context.command.format_trainers(context, formatter)
        return formatter.found


def write_pages(app: Sphinx) -> None:
    """Write the source of each command's page where it differs, and remove those of commands that are gone."""
    folder = Path(app.srcdir, PAGES)
    folder.mkdir(exist_ok=True)
    pages = {folder / f"{verb}.md": f"# dptrace {verb}\n\n```{{command-help}} {verb}\n```\n" for verb in COMMANDS}
    for path in {*folder.glob("*.md")} - pages.keys():
        path.unlink()
    for path, text in pages.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, and what writes the pages."""
    app.add_directive("command-index", CommandIndex)
    app.add_directive("command-help", CommandHelp)
    app.connect("builder-inited", write_pages)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
