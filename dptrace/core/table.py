"""Columns of public tables, each declared once: its frame, CSV, JSON rows, headings and documentation follow.

A frame has the step's number beside its name: names sort as text, "#10" before "#9".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Method = TypeVar("Method", bound=Callable[..., Any])

_UNITS = {"_ns": "ns", "_percent": "%", "_gbps": "GB/s", "_ppm": "ppm", "bytes": "bytes", "bytes_per_step": "bytes"}
_UNITS |= {"_per_s": "1/s", "tflops": "TFLOP/s"}
_DTYPES = {"int": "int64", "bool": "bool", "Int64": "Int64", "float": "float64", "str": "string", "string": "string"}
"""How pandas holds each type: without them, one missing number turns others into objects, and no row all columns."""


class Column(msgspec.Struct, frozen=True):
    """A column of a public table."""

    name: str
    dtype: str
    """As a user meets it: ``int``, ``str`` …, or ``Int64``, ``string`` (missing: <NA>), ``float`` (missing: NaN)."""
    doc: str
    """What it holds, and where it is missing."""
    heading: str = ""
    """Its words above a table for readers."""
    value: Callable[[Any], Any] | None = None
    """Returns the values of all rows that a source has, or one for all of them; None where the rows come as dicts."""

    @property
    def unit(self) -> str:
        """The unit that its name ends in; empty for a number without one and for words."""
        return next((unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix)), "")

    @property
    def folded(self) -> str:
        """Its heading with a line for each word."""
        return self.heading.replace(" ", "\n")


_NUMBER = Column("step_number", "Int64", "number in the step's name; missing without one")


def columns(names: str, dtype: str, doc: str) -> tuple[Column, ...]:
    """Return several columns that one text describes."""
    return tuple(Column(name, dtype, doc) for name in names.split())


def frame(rows: Iterable[dict[str, Any]], table: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a frame with the columns of a table, also without any row."""
    import pandas as pd

    return typed(pd.DataFrame(list(rows), columns=[column.name for column in table]), table)


def rows_of(table: Sequence[Column], source: Any) -> list[dict[str, Any]]:
    """Return the rows of a source as plain data, by the columns' values."""
    names = [column.name for column in table]
    values = [part.tolist() if isinstance(part, np.ndarray) else part for part in _values(table, source)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def frame_of(table: Sequence[Column], sources: Iterable[Any]) -> pd.DataFrame:
    """Return the rows of all sources as a frame, built column by column: a run may have millions of rows."""
    import pandas as pd

    parts = list(zip(*(_values(table, source) for source in sources), strict=True)) or [()] * len(table)
    joined = {column.name: _joined(part) for column, part in zip(table, parts, strict=True)}
    return typed(pd.DataFrame(joined), table)


def typed(found: pd.DataFrame, table: Sequence[Column]) -> pd.DataFrame:
    """Return a frame with the types of those columns that it has, and the number of each step after its name."""
    found = found.astype({one.name: _DTYPES[one.dtype] for one in table if one.dtype in _DTYPES and one.name in found})
    if "step" in found:
        names = found["step"]
        numbers = {name: step_number(name) for name in names.dropna().unique()}
        found.insert([*found].index("step") + 1, _NUMBER.name, names.map(numbers).astype("Int64"))
    return found


def with_missing(data: dict[str, Any]) -> dict[str, Any]:
    """Return plain data with None for each text that is empty: what is missing is null in JSON, and None in Python.

    >>> with_missing({"operator": "", "rank": 0, "last": {"name": ""}})
    {'operator': None, 'rank': 0, 'last': {'name': None}}
    """
    return {
        name: with_missing(value) if isinstance(value, dict) else None if value == "" else value
        for name, value in data.items()
    }


def with_strings(found: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose columns of text have pandas' type for it."""
    import pandas as pd

    texts = [name for name in found if pd.api.types.infer_dtype(found[name], skipna=True) == "string"]
    return found.astype(dict.fromkeys(texts, "string"))


def step_number(name: str) -> int | None:
    """Return the number at the end of a step's name; None for a name without one, or with one that no step has."""
    match = re.search(r"(?<!\d)(\d{1,18})$", name)
    return int(match[1]) if match else None


def _values(table: Sequence[Column], source: Any) -> list[Any]:
    """Return the values of each column, as many as there are rows."""
    values = [column.value(source) if column.value else None for column in table]
    count = next(len(one) for one in values if isinstance(one, list | np.ndarray))
    return [one if isinstance(one, list | np.ndarray) else [one] * count for one in values]


def _joined(parts: Sequence[Any]) -> Any:
    """Return values one after the other, as an array where all are."""
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Return a small table for notebooks, with a sentence above and others below it; all texts are escaped."""
    from html import escape

    def line(first: str, cells: Sequence[str], tag: str) -> str:
        return f"<tr><th>{escape(first)}</th>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join((line(head[0], head[1:], "th"), *(line(row[0], row[1:], "td") for row in rows)))
    return f"<p>{escape(title)}</p><table>{body}</table>{''.join(f'<p>{escape(note)}</p>' for note in notes)}"


def listed_in_docstring(table: Sequence[Column]) -> Callable[[Method], Method]:
    """Add the columns to the docstring of a method that returns them as a frame, and as its attribute *columns*."""

    def add(method: Method) -> Method:
        lines = []
        for first, names in _described([one for column in table for one in _with_number(column)]):
            known, doc = ", ".join(filter(None, (first.dtype, first.unit))), first.doc.replace("`", "``")
            lines.append(f"            {', '.join(names)} ({known}): {doc}.")
        method.__doc__ = "\n".join((f"{(method.__doc__ or '').rstrip()}\n", "        Columns:", *lines, "        "))
        vars(method)["columns"] = tuple(table)
        return method

    return add


def _with_number(column: Column) -> tuple[Column, ...]:
    return (column, _NUMBER) if column.name == "step" else (column,)


def markdown(table: Sequence[Column]) -> str:
    """Return the columns as a table of Markdown, as docs/reference/json.md has them."""
    rows = (f"| {', '.join(f'`{name}`' for name in names)} | {first.doc} |" for first, names in _described(table))
    return "\n".join(("| Key | Content |", "| --- | --- |", *rows)) + "\n"


def _described(table: Sequence[Column]) -> Iterator[tuple[Column, list[str]]]:
    """Yield the columns that one text describes: the first of them, and all their names."""
    for _, group in groupby(table, key=lambda column: (column.doc, column.dtype, column.unit)):
        same = list(group)
        yield same[0], [column.name for column in same]
