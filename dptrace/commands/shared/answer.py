"""The answer of a verb in all forms that it has, and where it goes: the name of its file decides the form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import force_option, group, json_option
from dptrace.commands.shared.output import (
    OutputFile,
    console,
    csv_text,
    emit,
    json_text,
    print_written,
    tables_text,
    write_page,
    write_png,
)
from dptrace.core.files import check_output
from dptrace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from dptrace.viewers.base.marks import Drawing

_SUFFIXES = {
    "text": (".txt", ".log"),
    "md": (".md",),
    "json": (".json",),
    "csv": (".csv",),
    "html": (".html", ".htm"),
    "svg": (".svg",),
    "png": (".png",),
    "pdf": (".pdf",),
}
_PICTURE_WIDTH = 1200


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in its forms; each is made only where it is asked for."""

    tables: Callable[[Console], object]
    """Prints text."""
    data: Callable[[], object]
    """Returns what JSON holds."""
    rows: Callable[[], pd.DataFrame] | None = None
    page: Callable[[], str] | None = None
    chart: Callable[[], Drawing] | None = None
    picture_width: int = _PICTURE_WIDTH
    markdown: Callable[[], str] | None = None
    """Short text for a ticket; without it, Markdown is the tables in a block of code."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an answer goes, and in which form: "text", "md", "json", "csv", "html", "svg" or "png"."""

    form: str
    output: Path | None
    """None is the terminal, or what standard output is."""
    force: bool
    verbosity: str
    table: str | None = None
    """Which table --csv names, for a verb that has several."""

    @property
    def as_text(self) -> bool:
        """Whether the answer is text for a reader, not data or a picture."""
        return self.form in ("text", "md")

    @property
    def on_terminal(self) -> bool:
        """Whether text is printed, below which hints stand."""
        return self.output is None and self.form == "text"

    def write(self, answer: Answer) -> None:
        """Print the answer, or write it to the file and say so.

        Raises:
            DptraceError: the file can't be written, or a package that draws PNG is missing.
        """
        if self.on_terminal:
            answer.tables(console())
        elif self.form == "html":
            assert self.output is not None
            assert answer.page is not None
            write_page(self.output, answer.page, self.verbosity)
        elif self.form == "png":
            assert self.output is not None
            write_png(_svg(answer), self.output, answer.picture_width)
            print_written(self.output, self.verbosity)
        elif self.form == "md" and answer.markdown is not None:
            self._emit(answer.markdown())
        else:
            self.write_text(_text(answer, self.form))

    def write_text(self, text: str) -> None:
        """Write a text in this form, and say so where it is in a file."""
        self._emit(_fenced(text) if self.form == "md" else text)

    def _emit(self, text: str) -> None:
        emit(text, self.output)
        if self.output is not None:
            print_written(self.output, self.verbosity)


def _text(answer: Answer, form: str) -> str:
    if form == "svg":
        return _svg(answer)
    if form == "json":
        return json_text(answer.data())
    if form == "csv":
        assert answer.rows is not None
        return csv_text(answer.rows())
    return tables_text(answer.tables)


def _svg(answer: Answer) -> str:
    from dptrace.viewers.base.svg import svg

    assert answer.chart is not None
    return svg(answer.chart())


def _fenced(text: str) -> str:
    """Return tables as Markdown: a block of code, whose fence is longer than any in a name."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}\n"


def answer_options(
    *drawn: str, csv: str | Callable[[Any], Any] | None = None, markdown: str = ""
) -> Callable[[Any], Any]:
    """Add --json, --csv, --markdown, -o and --force as one argument *to*, a Destination checked before any work.

    Args:
        drawn: the pages and pictures that the verb has: "html", "svg", "png".
        csv: the help of --csv, or the option if it names a table; None for a verb that has no CSV.
        markdown: the help of --markdown; empty for a verb whose Markdown is only written to files.
    """
    forms = ("text", "md", "json", *(("csv",) if csv else ()), *drawn)
    flag = click.option("--csv", "as_csv", is_flag=True, help=csv) if isinstance(csv, str) else csv
    short = click.option("--markdown", "as_markdown", is_flag=True, help=markdown) if markdown else None
    output = f"Write to this file, by its name: {_listed(forms)}."
    options = group(
        json_option,
        *(filter(None, (flag, short))),
        click.option("-o", "--output", type=OutputFile(dash=True), help=output),
        force_option,
    )

    def destination(ctx: click.Context, param: click.Parameter, value: object) -> Destination:
        given = {name: ctx.params.pop(f"as_{name}", None) for name in ("json", "csv", "markdown")}
        output, force = ctx.params.pop("output"), ctx.params.pop("force")
        output = output if isinstance(output, Path) else None
        table = given["csv"] if isinstance(given["csv"], str) else None
        asked = [name for name, value in given.items() if value is True or isinstance(value, str)]
        return Destination(_form(output, asked, force, forms), output, force, ctx.params["verbosity"], table)

    def add(function: Any) -> Any:
        function = options(function)
        # click keeps parameters in the order of decorators, the lowest first: this one is processed after all others.
        function.__click_params__.insert(0, _Unnamed(["--to"], hidden=True, callback=destination))
        return function

    return add


class _Unnamed(click.Option):
    """A parameter that the command line can't name: its callback makes it of the others."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Leave it out."""


def _form(output: Path | None, asked: Sequence[str], force: bool, forms: Sequence[str]) -> str:
    """Return the form that the options ask for, after checking that the file can be written and has a fitting name."""
    if len(asked) > 1:
        raise UsageError(f"Choose one of {' and '.join(f'--{name}' for name in asked)}.")
    option = "".join(asked)
    kind = "md" if option == "markdown" else option
    if output is None:
        return kind or forms[0]
    if not kind:
        return check_file(output, force, forms)
    check_output(output, force)
    other = {suffix for form, suffixes in _SUFFIXES.items() if form not in ("text", kind) for suffix in suffixes}
    if output.suffix.lower() in other:
        written = "Markdown" if kind == "md" else kind.upper()
        raise UsageError(f"{output}: --{option} writes {written}; name the file .{kind}.")
    return kind


def refuse(contradictions: Iterable[tuple[object, str]]) -> None:
    """Refuse options that do not go together: of the pairs, the first that is true, with what to do instead.

    Raises:
        UsageError: one is.
    """
    for is_wrong, advice in contradictions:
        if is_wrong:
            raise UsageError(advice)


def check_file(path: Path, force: bool, forms: Sequence[str]) -> str:
    """Check before any work that a file can be written, and return its form, as :func:`form_of`.

    Raises:
        UsageError: the message says what to do instead.
    """
    check_output(path, force)
    return form_of(path, forms)


def form_of(path: Path, forms: Sequence[str]) -> str:
    """Return the form that a file's name says, of those that can be written; the first for a name without a suffix.

    Raises:
        UsageError: it is none of them.
    """
    suffix = path.suffix.lower()
    found = next((form for form in forms if suffix in _SUFFIXES[form]), None if suffix else forms[0])
    if found is None:
        raise UsageError(f"{path}: {suffix} can't be written here; name the file {_listed(forms)}.")
    return found


def _listed(forms: Sequence[str]) -> str:
    *most, last = (_SUFFIXES[form][0] for form in forms)
    return f"{', '.join(most)} or {last}" if most else last
