"""Draw a view as SVG, for slides, reports and print."""

from __future__ import annotations

from dptrace.viewers.base.marks import Box, Dot, Drawing, Entry, Label, Line
from dptrace.viewers.base.svg_canvas import Canvas, shorten, text_width
from dptrace.viewers.base.theme import PATTERNS

__all__ = ["WIDTH", "legend_svg", "svg"]

WIDTH = 1200
"""Width of the whole picture in pixels."""
_TOP, _BOTTOM, _LEAST_LEFT, _MOST_LEFT = 16.0, 24.0, 60.0, 320.0
_ABOVE, _TALL = 16.0, 700.0
"""Space for ticks above a picture that is so tall that those below it are out of sight."""
_QUIET, _GRID, _AXIS = "#5B6472", "#E3E7EC", "#9CA3AF"


def svg(drawing: Drawing, heading: bool = True, dark: bool = False, run: str = "") -> str:
    """Draw as SVG text.

    Args:
        heading: draw title and subtitle; a page has its own.
        night: whether it also has colors for a dark page.
        run: the name of the run, drawn above the heading.
    """
    top = _TOP + (22 if run else 0) + (24 if heading else 0) + (20 if heading and drawing.subtitle else 0)
    left = _left(drawing)
    inner = WIDTH - left - drawing.right
    legend = _legend_rows(drawing, WIDTH - left)
    top += 22 * len(legend) + (_ABOVE if _tall(drawing) else 0)
    bottom = _BOTTOM + (18 if drawing.x.title else 0) if drawing.x.ticks or drawing.x.title else 8
    canvas = Canvas(WIDTH, top + drawing.height + bottom, drawing.title, dark)
    y = _TOP
    if run:
        canvas.text(16, y + 1, shorten(run, WIDTH - 32, 13), _QUIET, size=13)
        y += 22
    if heading:
        canvas.text(16, y + 2, drawing.title, size=16, bold=True)
        y += 24
    if heading and drawing.subtitle:
        canvas.text(16, y, shorten(drawing.subtitle, WIDTH - 32), _QUIET)
        y += 20
    for row in legend:
        _legend(canvas, row, left, y)
        y += 22
    if drawing.message:
        canvas.text(16, top + 20, drawing.message, _QUIET, size=14)
        return canvas.finish()
    _axes(canvas, drawing, left, top, inner)
    _marks(canvas, drawing, left, top, inner)
    return canvas.finish()


def legend_svg(drawing: Drawing, dark: bool = False) -> str:
    """Draw only the legend, for a picture that another renderer draws."""
    rows = _legend_rows(drawing, WIDTH)
    canvas = Canvas(WIDTH, 22 * len(rows) + 4, "Legend", dark)
    for number, row in enumerate(rows):
        _legend(canvas, row, 4, 13 + 22 * number)
    return canvas.finish()


def _tall(drawing: Drawing) -> bool:
    return drawing.height > _TALL and bool(drawing.x.ticks)


def _left(drawing: Drawing) -> float:
    if drawing.message:
        return 16
    widest = max((text_width(label) for _, label in drawing.y.ticks), default=0)
    return min(max(widest + 22 + (20 if drawing.y.title else 0), _LEAST_LEFT), _MOST_LEFT)


def _legend_rows(drawing: Drawing, room: float) -> list[list[Entry]]:
    rows: list[list[Entry]] = []
    used = room
    for given in drawing.legend:
        entry = Entry(given.color, shorten(given.name, _MOST_LEFT * 1.5), given.shape)
        width = text_width(entry.name) + 36
        if used + width > room:
            rows.append([])
            used = 0
        rows[-1].append(entry)
        used += width
    return rows


def _legend(canvas: Canvas, entries: list[Entry], x: float, y: float) -> None:
    for entry in entries:
        if entry.shape:
            canvas.dot(x + 8, y, entry.color, entry.shape)
        else:
            canvas.rect(x, y - 6, 15, 12, entry.color, round_=2)
        canvas.text(x + 20, y, entry.name, "#374151")
        x += text_width(entry.name) + 36


def _axes(canvas: Canvas, drawing: Drawing, left: float, top: float, inner: float) -> None:
    x, y, low = drawing.x, drawing.y, top + drawing.height
    room = x.room(inner)
    for value, label in x.ticks:
        at = left + x.place(value) * inner
        if x.grid:
            canvas.line(at, top, at, low, _GRID)
        for y_of_text in (low + 12, *([top - 10] if _tall(drawing) else [])):
            canvas.text(at, y_of_text, shorten(label, room), "#374151", anchor="middle")
    for value, label in y.ticks:
        at = top + y.place(value) * drawing.height
        if y.grid:
            canvas.line(left, at, left + inner, at, _GRID)
        strong = value in y.strong
        canvas.text(left - 8, at, shorten(label, left - 16), "#111827" if strong else _QUIET, anchor="end", bold=strong)
    if x.grid:
        canvas.line(left, top, left, low, _AXIS)
    if x.title:
        canvas.text(left + inner / 2, low + 31, x.title, _QUIET, anchor="middle")
    if y.title:
        canvas.text(14, top + drawing.height / 2, y.title, _QUIET, anchor="middle", upright=True)


def _marks(canvas: Canvas, drawing: Drawing, left: float, top: float, inner: float) -> None:
    def across(value: float) -> float:
        return left + drawing.x.place(value) * inner

    def down(value: float) -> float:
        return top + drawing.y.place(value) * drawing.height

    for mark in drawing.marks:
        if isinstance(mark, Box):
            x, y, width, height = across(mark.left), down(mark.top), 0.0, down(mark.bottom) - down(mark.top)
            width = across(mark.right) - x
            color, ink = mark.dark or ("", "")
            canvas.rect(x, y, width, height, mark.color, mark.tip, dark=color)
            size = 12 if height >= 15 else 10
            fitting = next((text for text in mark.texts if text_width(text, size) + 6 <= width), "")
            if fitting and height >= 11:
                if mark.color in PATTERNS:
                    around = text_width(fitting, size) + 6
                    canvas.rect(x + (width - around) / 2, y + 1, around, height - 2, mark.color, plain=True)
                canvas.text(x + width / 2, y + height / 2, fitting, mark.ink, size, "middle", on=mark.color, dark=ink)
        elif isinstance(mark, Dot):
            canvas.dot(across(mark.x), down(mark.y), mark.color, mark.shape, mark.hollow, mark.tip, mark.size)
        elif isinstance(mark, Line):
            canvas.polyline([(across(x), down(y)) for x, y in mark.points], mark.color, mark.width, mark.dash)
        elif isinstance(mark, Label):
            shift, anchor = {"right": (6, "start"), "left": (-6, "end"), "center": (0, "middle")}[mark.side]
            canvas.text(across(mark.x) + shift, down(mark.y), mark.text, mark.color, 12, anchor, mark.bold)
