"""A Sphinx directive that shows the help of a click group and of all its commands, as they print it.

sphinx-click reads parameters only. This calls each command's own ``format_help``, so that grouped options, lists of
modes and notes on exit codes are on the page as they are in the terminal.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

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


class ClickReference(SphinxDirective):
    """``{click-reference} package.module:group``, with the program's name as its content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        group = getattr(importlib.import_module(module), name)
        program = " ".join(self.content).strip() or name
        context = click.Context(group, info_name=program, **group.context_settings)
        sections = [self._section(group, context)]
        for verb in group.list_commands(context):
            command = group.get_command(context, verb)
            sections.append(self._section(command, click.Context(command, context, verb, **command.context_settings)))
        return sections

    def _section(self, command: Any, context: click.Context) -> nodes.Node:
        formatter = _Nodes()
        command.format_help(context, formatter)
        if hasattr(command, "format_trainers"):
            command.format_trainers(context, formatter)
        section = nodes.section(ids=[nodes.make_id(context.command_path)], names=[context.command_path])
        section += nodes.title("", context.command_path)
        section += formatter.found
        return section


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("click-reference", ClickReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
