"""The table of every verb: as wide as its cells; a narrow terminal goes without the columns that matter least."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_GAP = 2
"""Blanks between columns; one where that lets every column stay."""
_NAME_SHARE = 0.4
"""Share of a terminal's width that names get at most before columns leave for them."""
_SHORT = 20
"""Characters up to which words are a name, or a date, and stay on one line; longer ones may wrap at blanks."""
_BREAK = re.compile(r" (?![%−])(?<![−±] )")
"""Blanks at which a heading may wrap: neither a difference nor a number and its unit is broken."""
_NOTHING = re.compile(r"[-−+]?[0.,]*( ?%)?|–")


class Fitting:
    """Rows below a title, without borders. No number and no name is cut or broken.

    Where a terminal is too narrow, columns leave: those that hold nothing but zeros first, then those of *leaving* in
    its order, then the others from the right; a line below the table names them. The first column always stays. A name
    that is longer than its column has a line of its own, above the rest of its row, or below it where its column is
    not the first. Other words wrap at blanks.

    Args:
        columns: the heading of each, in which a line break is one, and whether its cells are words; the others are
            numbers, aligned right.
        leaving: headings without their line breaks, the least important first.
    """

    def __init__(self, title: Text | str, columns: Iterable[tuple[str, bool]], leaving: Sequence[str] = ()) -> None:
        self.title = Text(title, style="bold") if isinstance(title, str) else title
        self.columns, self.leaving = tuple(columns), leaving
        self.styles = [""] * len(self.columns)
        """Of each column."""
        self.cuts_names = False
        """Whether names longer than a line are cut in their middle, rather than left to the terminal."""
        self.caption = ""
        self._rows: list[tuple[list[Text], str]] = []

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row, whose last cells may be left out."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append((texts + [Text()] * (len(self.columns) - len(texts)), style))

    def add_section(self) -> None:
        """Add an empty line."""
        self._rows.append(([], ""))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the table as lines, which only a name longer than *width* exceeds."""
        layout = _Layout(self, width)
        if self.title:
            yield self.title
        yield from layout.head()
        for cells, style in self._rows:
            yield from layout.row(cells, style) if cells else [Text()]
        if self.caption:
            yield Text(self.caption, style="italic dim")
        if layout.left:
            names = ", ".join(heading_words(self.columns[i][0]) for i in layout.left)
            yield Text(f"Left out at {width} columns: {names}; a wider terminal or --json has them.", style="dim")

    def order(self) -> Iterator[int]:
        """Yield the columns that may leave, those that matter least first."""
        rows = [cells for cells, _ in self._rows if cells]
        names = [heading_words(heading) for heading, _ in self.columns]
        empty = [i for i in range(len(names)) if all(_NOTHING.fullmatch(row[i].plain) for row in rows)]
        named = [names.index(name) for name in self.leaving if name in names]
        yield from (i for i in dict.fromkeys((*empty, *named, *reversed(range(len(names))))) if i)

    def texts(self, i: int) -> list[Text]:
        """Return the cells of a column."""
        return [cells[i] for cells, _ in self._rows if cells]


class _Layout:
    """Which columns a table has at a width, and how wide they are."""

    def __init__(self, table: Fitting, width: int) -> None:
        self.table, self.width, self.gap = table, width, _GAP
        self.shown = list(range(len(table.columns)))
        self.heads = [heading.split("\n") for heading, _ in table.columns]
        self.natural = [max(map(cell_len, (t.plain for t in table.texts(i))), default=0) for i in self.shown]
        self.least = [self._least(i) for i in self.shown]
        if not self._fits(self._widths(self.natural)):
            self.gap = 1
        if not self._fits(self._widths(self.natural)):
            # Headings wrap at blanks, as far as their column stays as wide as its cells.
            self.heads = [self._folded(i) for i in self.shown]
        leaving = table.order()
        while not self._fits(self._widths(self.least)) and len(self.shown) > 1:
            self.shown.remove(next(leaving))
        if not self._fits(self._widths(self.natural)):
            self._shrink()
        else:
            self.widths = self._widths(self.natural)
            self.gap = _GAP if sum(self.widths.values()) + _GAP * (len(self.shown) - 1) <= width else self.gap
        self.left = [i for i in range(len(table.columns)) if i not in self.shown]

    def _least(self, i: int) -> int:
        """Return the least width of a column: that of its numbers, or of its longest word up to a share of the line."""
        if not self.table.columns[i][1]:
            return self.natural[i]
        cells = [t.plain for t in self.table.texts(i)]
        words = (w for text in cells for w in ([text] if i == 0 or len(text) <= _SHORT else text.split()))
        longest = max(map(cell_len, words), default=0)
        return min(longest, max(_SHORT, int(_NAME_SHARE * self.width)))

    def _folded(self, i: int) -> list[str]:
        words = [word for line in self.heads[i] for word in _BREAK.split(line)]
        room, lines = max(self.natural[i], *map(cell_len, words)), [words[0]]
        for word in words[1:]:
            if cell_len(lines[-1]) + 1 + cell_len(word) <= room:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines

    def _widths(self, cells: Sequence[int]) -> dict[int, int]:
        return {i: max(cells[i], *map(cell_len, self.heads[i])) for i in self.shown}

    def _fits(self, widths: dict[int, int]) -> bool:
        return sum(widths.values()) + self.gap * (len(widths) - 1) <= self.width

    def _shrink(self) -> None:
        """Make the widest columns of words narrower until the line fits."""
        self.widths, least = self._widths(self.natural), self._widths(self.least)
        while not self._fits(self.widths):
            able = [i for i in self.shown if self.widths[i] > least[i]]
            if not able:
                break
            self.widths[max(able, key=lambda i: self.widths[i])] -= 1

    def head(self) -> Iterator[Text]:
        """Yield the lines of the headings, which end on one line."""
        heads = [self.heads[i] for i in self.shown]
        height = max(map(len, heads))
        if not any(map(any, heads)):
            return
        for line in range(height):
            texts = (Text(head[line - height + len(head)] if line >= height - len(head) else "") for head in heads)
            yield self._line(list(texts), "bold", [""] * len(heads))

    def row(self, cells: Sequence[Text], style: str) -> Iterator[Text]:
        """Yield the lines of a row."""
        folded, below = list[list[Text]](), list[Text]()
        for i in self.shown:
            cell, width = cells[i], self.widths[i]
            if cell_len(cell.plain) <= width:
                folded.append([cell])
            elif i == 0 or not cell.plain.count(" ") or max(map(cell_len, cell.plain.split())) > width:
                folded.append([Text()])
                if i == 0:
                    yield self._whole(cell, style, "")
                else:
                    below.append(self._whole(cell, style, "  "))
            else:
                folded.append(list(text_lines(cell, width)))
        styles = [self.table.styles[i] for i in self.shown]
        for line in range(max(map(len, folded))):
            yield self._line([lines[line] if line < len(lines) else Text() for lines in folded], style, styles)
        yield from below

    def _whole(self, cell: Text, style: str, indent: str) -> Text:
        """Return a line of its own for a name."""
        if self.table.cuts_names:
            cell = _fitted(cell, self.width - len(indent))
        return Text(indent, style=style, overflow="ignore", no_wrap=True).append_text(cell)

    def _line(self, texts: Sequence[Text], style: str, styles: Sequence[str]) -> Text:
        line = Text(style=style, no_wrap=True, overflow="ignore")
        for i, text, own in zip(self.shown, texts, styles, strict=True):
            blanks = " " * max(0, self.widths[i] - cell_len(text.plain))
            line.append(" " * self.gap if i != self.shown[0] else "")
            line.append("" if self.table.columns[i][1] else blanks)
            # An own style of a cell goes before that of its column.
            line.append_text(Text("", style=own).append_text(text))
            line.append(blanks if self.table.columns[i][1] else "")
        line.rstrip()
        return line


def heading_words(heading: str) -> str:
    """Return a heading on one line.

    >>> heading_words("launch\\ndelay µs")
    'launch delay µs'
    """
    return heading.replace("\n", " ")


def _fitted(cell: Text, width: int) -> Text:
    """Return a name, without its middle where it is longer than a line: similar ones often differ at their ends."""
    kept = len(cell.plain)
    while kept > 1 and cell_len(cell.plain) > width:
        kept -= 1
        head = kept // 2
        short = f"{cell.plain[:head]}…{cell.plain[len(cell.plain) - (kept - head) :]}"
        if cell_len(short) <= width:
            return Text(short)
    return cell


def text_lines(cell: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a cell, which end at blanks."""
    start = end = 0
    for word in re.finditer(r"\S+", cell.plain):
        if end > start and cell_len(cell.plain[start : word.end()]) > width:
            yield cell[start:end]
            start = word.start()
        end = word.end()
    yield cell[start:end]
