"""The answer of a verb in all forms that it has, and the files that it goes to: the name of a file decides its form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import force_option, group, json_option
from dptrace.commands.shared.output import (
    OutputFile,
    console,
    csv_text,
    emit,
    json_text,
    print_hint,
    print_written,
    progress,
    tables_text,
    write_pdf,
    write_png,
    write_text,
)
from dptrace.core.files import check_output
from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.viewers.base.marks import Drawing

Make = Callable[..., Any]


def _write_made(make: Make, path: Path | None) -> None:
    emit(make(), path)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A form of answers: a kind of file."""

    name: str
    suffixes: tuple[str, ...]
    """Of the files' names."""
    write: Callable[[Make, Path | None], Any] = _write_made
    """Writes what the answer makes for this form to a file, or to standard output where there is none; here, text."""
    of_table: bool = False
    """Whether it holds the table that --csv asks for."""


def _write_tables(show: Make, path: Path | None) -> None:
    if path is None:
        show(console())
    else:
        write_text(path, tables_text(show))


def _write_png(make: Make, path: Path | None) -> None:
    drawn, *size = make()
    assert path is not None
    write_png(drawn, path, *size)


def _write_pdf(make: Make, path: Path | None) -> None:
    assert path is not None
    write_pdf(make(), path)


TEXT = Form("text", (".txt", ".log"), _write_tables)
"""Made by a function that prints on a console."""
MARKDOWN = Form("Markdown", (".md",))
"""Made as text. Of an answer that does not make it, the tables in a block of code."""
JSON = Form("JSON", (".json",), lambda make, path: emit(json_text(make()), path))
"""Made as what JSON holds."""
CSV = Form("CSV", (".csv",), lambda make, path: emit(csv_text(make()), path), of_table=True)
"""Made as a pandas.DataFrame."""
HTML = Form("a page", (".html", ".htm"))
"""Made as text."""
SVG = Form("SVG", (".svg",))
"""Made as text."""
PNG = Form("PNG", (".png",), _write_png)
"""Made as an SVG, and the width of the picture in pixels, or its width and height."""
PDF = Form("PDF", (".pdf",), _write_pdf)
"""Made as an SVG."""
_FORMS = (TEXT, MARKDOWN, JSON, CSV, HTML, SVG, PNG)
_PICTURES = (SVG, PNG, PDF)
_PICTURE_WIDTH = 1200
"""In pixels."""


def drawn(draw: Callable[[], Drawing], width: int = _PICTURE_WIDTH) -> dict[Form, Make]:
    """Return the forms of a chart: SVG, and PNG of a width in pixels."""

    def picture() -> str:
        from dptrace.viewers.base.svg import svg

        return svg(draw())

    return {SVG: picture, PNG: lambda: (picture(), width)}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: for each form that it has, what makes it, or the text itself."""

    forms: Mapping[Form, Make | str]

    def __or__(self, forms: Mapping[Form, Make]) -> Answer:
        """Return the answer with further forms, or with others in their place."""
        return Answer({**self.forms, **forms})

    def write(self, form: Form, path: Path | None) -> None:
        """Write a form to a file, whole or not at all, or to standard output.

        Raises:
            DptraceError: the file can't be written, or a picture can't be drawn here.
        """
        made = self.forms.get(form)
        if form is MARKDOWN and made is None:
            tables = self.forms[TEXT]
            made = _fenced(click.unstyle(tables) if isinstance(tables, str) else tables_text(tables))
        if not isinstance(made, str):
            assert made is not None
            form.write(made, path)
        elif path is None:
            click.echo(made, nl=False)
        else:
            write_text(path, click.unstyle(made))


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an answer goes, and in which forms."""

    targets: tuple[tuple[Form, Path | None], ...]
    """None is standard output."""
    force: bool
    verbosity: str
    table: str | None = None
    """Which table --csv names, for a verb that has several."""

    def has(self, *forms: Form) -> bool:
        """Whether the answer is asked for in one of the forms."""
        return any(form in forms for form, _ in self.targets)

    def only(self, form: Form) -> bool:
        """Whether the answer is asked for in this form alone."""
        return [form] == [asked for asked, _ in self.targets]

    @property
    def as_text(self) -> bool:
        """Whether the answer is text for a reader, besides data or pictures."""
        return self.has(TEXT, MARKDOWN)

    @property
    def on_terminal(self) -> bool:
        """Whether text is printed, below which hints stand."""
        return (TEXT, None) in self.targets

    def file_of(self, *forms: Form) -> Path | None:
        """Return the first file in one of the forms; None without one."""
        return next((path for form, path in self.targets if form in forms and path is not None), None)

    def refuse_besides_words(self, answer: str) -> None:
        """Refuse forms but text, Markdown and JSON of an answer that has no others.

        Raises:
            UsageError: one is asked for.
        """
        for form, path in self.targets:
            if form not in (TEXT, MARKDOWN, JSON):
                raise UsageError(
                    f"{path or form.name}: {answer} is told as text (.txt), Markdown (.md) or JSON (.json)."
                )

    def also(self, form: Form, path: Path) -> Destination:
        """Return the destination with another file, after checking that it can be written.

        Raises:
            UsageError: the message says what to do instead.
        """
        check_output(path, self.force)
        return replace(self, targets=(*self.targets, (form, path)))

    def write(self, answer: Answer) -> None:
        """Print the answer, or write it to the files and say so.

        Raises:
            DptraceError: a file can't be written, or a picture can't be drawn here.
        """
        # Files first: a reader of standard output may leave.
        for form, path in sorted(self.targets, key=lambda target: target[1] is None):
            if path is None:
                answer.write(form, path)
                continue
            with progress("Writing", self.verbosity, measured=False):
                answer.write(form, path)
            print_written(path, self.verbosity)


def write_files(folder: Path, files: Mapping[str, Make]) -> None:
    """Write files into a folder, each in the form that its name says, whole or not at all."""
    for name, make in files.items():
        form_of(Path(name), _FORMS).write(make, folder / name)


def _fenced(text: str) -> str:
    """Return tables as Markdown: a block of code, whose fence is longer than any in a name."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}\n"


_NO_ALIASES: Mapping[str, Form] = MappingProxyType({})


def answer_options(
    *drawn: Form,
    csv: str | Callable[[Any], Any] | None = None,
    markdown: str = "",
    aliases: Mapping[str, Form] = _NO_ALIASES,
) -> Callable[[Any], Any]:
    """Add --json, --csv, --markdown, -o and --force as one argument *to*, a Destination checked before any work.

    Args:
        drawn: forms that the verb has besides: pages and pictures.
        csv: the help of --csv, or the option if it names a table; None for a verb that has no CSV.
        markdown: the help of --markdown; empty for a verb whose Markdown is only written to files.
        aliases: as of :func:`file_options`.
    """
    forms = (TEXT, MARKDOWN, JSON, *((CSV,) if csv else ()), *drawn)
    flag = click.option("--csv", "as_csv", is_flag=True, help=csv) if isinstance(csv, str) else csv
    short = click.option("--markdown", "as_markdown", is_flag=True, help=markdown) if markdown else None
    return file_options(*forms, flags=(json_option, *filter(None, (flag, short))), aliases=aliases)


def file_options(
    *forms: Form,
    flags: Sequence[Callable[[Any], Any]] = (),
    aliases: Mapping[str, Form] = _NO_ALIASES,
    formats: Mapping[str, Form] = _NO_ALIASES,
    about: str = "",
    printed: bool = False,
    required: bool = False,
) -> Callable[[Any], Any]:
    """Add -o, which may be repeated, and --force as one argument *to*, a Destination checked before any work.

    Args:
        forms: those that files can have; text is also printed.
        flags: options that choose a form.
        aliases: hidden options that each name a file of a form, as -o does now.
        formats: forms that --format names, whatever the files' names.
        about: what is written where -o is left out, for its help.
        printed: whether the answer is printed besides what is written.
        required: whether -o must be given.
    """
    text = f"Write a file: {_listed(forms)}; repeatable.{about}"
    output = OutputFile(dash=TEXT in forms)
    options = group(
        *flags,
        click.option("-o", "--output", "outputs", type=output, multiple=True, required=required, help=text),
        *([_format_option(*formats)] if formats else []),
        *(click.option(f"--{name}", f"alias_{name}", type=OutputFile(), hidden=True) for name in aliases),
        force_option,
    )

    def destination(ctx: click.Context, param: click.Parameter, value: object) -> Destination:
        given = {name: ctx.params.pop(f"as_{name}", None) for name in _FLAGS}
        force, verbosity, outputs = ctx.params.pop("force"), ctx.params["verbosity"], ctx.params.pop("outputs")
        outputs += (None,) * (TEXT in forms and (printed or not outputs) and None not in outputs)
        chosen = formats.get(ctx.params.pop("as_format", None) or "")
        fitting = (replace(chosen, suffixes=("",)),) if chosen else forms
        targets = _targets(outputs, [name for name in _FLAGS if given[name]], force, fitting)
        to = Destination(targets, force, verbosity, given["csv"] if isinstance(given["csv"], str) else None)
        for name, form in aliases.items():
            if (path := ctx.params.pop(f"alias_{name}")) is not None:
                print_hint(f"--{name} FILE is now -o FILE: name it {form.suffixes[0]}.", verbosity)
                to = to.also(form_of(path, (form,)), path)
        _refuse_twice(to)
        return to

    def add(function: Any) -> Any:
        function = options(function)
        # click keeps parameters in the order of decorators, the lowest first: this one is processed after all others.
        function.__click_params__.insert(0, _Unnamed(["to", "--destination"], hidden=True, callback=destination))
        return function

    return add


def _format_option(*names: str) -> Callable[[Any], Any]:
    text = f"{', '.join(names[:-1])} or {names[-1]}, whatever the file's name."
    return click.option("--format", "as_format", type=click.Choice(names), metavar="NAME", help=text)


class _Unnamed(click.Option):
    """A parameter that the command line can't name: its callback makes it of the others."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Leave it out."""


_FLAGS = {"json": JSON, "csv": CSV, "markdown": MARKDOWN}


def _targets(
    outputs: Sequence[Path | None], flags: Sequence[str], force: bool, forms: Sequence[Form]
) -> tuple[tuple[Form, Path | None], ...]:
    """Return where the options send the answer, after checking that files can be written and have fitting names."""
    if len(flags) > 1:
        raise UsageError(f"Choose one of {' and '.join(f'--{name}' for name in flags)}.")
    asked = _FLAGS[flags[0]] if flags else None
    targets = []
    for path in outputs:
        if path is not None:
            check_output(path, force)
        # What a flag asks for goes to standard output, and to a file whose name says nothing else.
        if asked is not None and (path is None or _named(path, (*forms, *_FORMS)) in (None, TEXT, asked)):
            targets.append((asked, path))
        else:
            targets.append((TEXT if path is None else form_of(path, forms), path))
    fitting = [form for form in forms if form is asked or (asked and asked.of_table and form.of_table)]
    if asked is not None and not any(form in fitting for form, _ in targets):
        advice = f"name the file {_listed(fitting)}, or add -o - to print it"
        raise UsageError(f"{targets[0][1]}: --{flags[0]} writes {asked.name}; {advice}.")
    return tuple(targets)


def _refuse_twice(to: Destination) -> None:
    """Refuse a file that would hold two answers, or the same one twice."""
    places = set[Path | None]()
    for _, path in to.targets:
        place = None if path is None else path.resolve()
        if place in places:
            raise UsageError(f"{path or '-'} is named twice: it can hold one answer. Name two files.")
        places.add(place)


def refuse(contradictions: Iterable[tuple[object, str]]) -> None:
    """Refuse options that do not go together: of the pairs, the first that is true, with what to do instead.

    Raises:
        UsageError: one is.
    """
    for is_wrong, advice in contradictions:
        if is_wrong:
            raise UsageError(advice)


def form_of(path: Path, forms: Sequence[Form]) -> Form:
    """Return the form that a file's name says, of those that can be written; the first for a name without a suffix.

    Raises:
        UsageError: it is none of them.
    """
    found = _named(path, forms)
    if found is None and path.suffix:
        is_picture = _named(path, _PICTURES) is not None and not {*_PICTURES} & {*forms}
        view = " dptrace view draws runs, two of them with --against." if is_picture else ""
        raise UsageError(f"{path}: {path.suffix} can't be written here; name the file {_listed(forms)}.{view}")
    return found or forms[0]


def _named(path: Path, forms: Sequence[Form]) -> Form | None:
    return next((form for form in forms if path.name.lower().endswith(form.suffixes)), None)


def _listed(forms: Sequence[Form]) -> str:
    *most, last = (form.suffixes[0] for form in forms)
    return f"{', '.join(most)} or {last}" if most else last
