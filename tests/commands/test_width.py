"""What verbs print on terminals of any width: no number and no name is cut, and each number is the one of --json."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

from dptrace.commands.shared.main import cli
from dptrace.viewers.base.fitting import Fitting
from tests.commands.test_schema import LINES, folder
from tests.support.real_traces import REAL

__all__ = ["folder"]

WIDTHS = (60, 80, 100, 132)
ANY_WIDTH = 100_000
_LEFT_OUT = re.compile(r"Left out at.*?has\s+them\.", re.DOTALL)
_NUMBER = re.compile(r"[-−+]?(\d[\d,]*(?:\.\d+)?)(?:e[-+]?\d+)?")
_COMPUTED = {
    "± 95 %",
    "at, ms",
    "share",
    "%",
    "change",
    "mean\nwait ms",
    "overlap",
    "ms",
    "of the step",
    "batch for 90 %",
}
"""Columns of figures that a view computes from those of --json, such as shares of a sum."""
_SCALES = np.array([1, *(10.0**n for n in (-12, -9, -6, -3, 2, 3, 6, 9, 12)), *(1024.0**-n for n in (1, 2, 3, 4))])


class Printed:
    """Everything that a command prints, to be printed again at any width."""

    def __init__(self, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        usual = Console.print

        def note(console: Console, *parts: Any, **options: Any) -> None:
            self.calls.append((parts, options))
            usual(console, *parts, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Console, "print", note)
            for line in lines:
                done = CliRunner(env={"COLUMNS": "80"}).invoke(cli, line.split())
                assert done.exit_code in (0, 3), done.output

    def at(self, width: int) -> str:
        """Return the text on a terminal of this width."""
        console = Console(width=width, color_system=None, highlight=False, emoji=False)
        with console.capture() as capture:
            for parts, options in self.calls:
                console.print(*parts, **options | {"crop": False})
        return _LEFT_OUT.sub("", capture.get())

    def tables(self) -> Iterator[Fitting]:
        """Yield the tables."""
        return (part for parts, _ in self.calls for part in parts if isinstance(part, Fitting))


def numbers_of(content: Any) -> Iterator[float]:
    """Yield all numbers of JSON, those in its texts, and the lengths of its lists."""
    if isinstance(content, bool) or content is None:
        return
    if isinstance(content, (int, float)):
        yield abs(content)
    elif isinstance(content, str):
        yield from (float(text.replace(",", "")) for text in _NUMBER.findall(content))
    else:
        yield len(content)
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from numbers_of(value)
            yield from numbers_of(key) if isinstance(key, str) else ()


def shown_numbers(table: Fitting) -> Iterator[tuple[str, str]]:
    """Yield each number of a table's columns of numbers, with its heading."""
    for i, (heading, is_words) in enumerate(table.columns):
        for cell in () if is_words else table.texts(i):
            yield from ((heading, text) for text in _NUMBER.findall(cell.plain))


def is_rounded(text: str, known: np.ndarray[Any, Any]) -> bool:
    """Return whether a number as it is printed is one of those known, sorted ones, in another unit, rounded."""
    value, places = float(text.replace(",", "")), len(text.partition(".")[2])
    room = 0.5001 * 10.0**-places + 1e-9
    low, high = np.searchsorted(known, [(value - room), (value + room)])
    return bool(high > low)


_QUICK = ("analyze interleaved", "kernels layers", "history naive interleaved", "predict --memory --params 7e9")
_SECTIONS = ("--findings", "--split", "--communication", "--idle", "--facts", "--notes")
# One line for each choice of options of a verb.
_OTHERS = [
    pytest.param(line, marks=[pytest.mark.slow, pytest.mark.heavy])
    for line in {(line.split()[0], *re.findall(r"--\w[\w-]+", line)): line for line in LINES}.values()
    if line.split()[0] not in ("log", "baseline") and line not in _QUICK
]


@pytest.mark.heavy
@pytest.mark.parametrize("line", [*_QUICK, *_OTHERS])
def test_no_number_and_no_name_is_cut(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any width a verb prints words and numbers of its widest output only, and the first cell of each row; the
    numbers of its tables are those of --json.
    """
    if "shared/" in line and not REAL.exists():
        pytest.skip("needs ../shared")
    monkeypatch.chdir(folder)
    has_screen = line.startswith("analyze") and not {"--memory", "--hta-compat"} & {*line.split()}
    # The first screen says less on a narrow terminal: tests/viewers/terminal/test_screen.py.
    printed = Printed([f"{line} {name}" for name in _SECTIONS] if has_screen else [line], monkeypatch)
    whole = Counter(printed.at(ANY_WIDTH).split())
    first = Counter(word for table in printed.tables() for cell in table.texts(0) for word in cell.plain.split())
    for width in WIDTHS:
        text = printed.at(width)
        # A kernel's name that is longer than a line has "…" in its middle.
        cut = {word for word in Counter(text.split()) - whole if "…" not in word}
        assert not cut, (width, cut)
        assert not {word for word in first - Counter(text.split()) if len(word) <= width}, width
    answer = json.loads(CliRunner().invoke(cli, [*line.replace("-o bench", "-o other").split(), "--json"]).stdout)
    # Tables by rank have means over steps, and --json has totals, or figures of each step.
    ranks = answer["ranks"] if "mean_step" in answer else []
    steps = {len(rank["steps"]) for rank in ranks} | {1}
    scales = np.multiply.outer(_SCALES, [1 / count for count in steps if count])
    idle = [[step["idle"] or {} for step in rank["steps"]] for rank in ranks]
    sums = [sum(one.get(cause, 0) for one in causes) for causes in idle for cause in causes[0]]
    known = np.unique(np.multiply.outer(scales, np.array([*numbers_of(answer), *sums])))
    shown = {one for table in printed.tables() for one in shown_numbers(table) if one[0] not in _COMPUTED}
    assert not {one for one in shown if not is_rounded(one[1], known)}


def table(*rows: tuple[str, ...], leaving: tuple[str, ...] = ()) -> Fitting:
    made = Fitting("", (("kernel", True), ("kind", True), ("total\nms", False), ("p95\nµs", False)), leaving)
    for row in rows:
        made.add_row(*row)
    return made


LONG = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n"
ROWS = ((LONG, "compute", "4,689.1", "1.0"), ("add", "compute", "0.24", "12,345.6"))


def test_the_least_important_columns_leave() -> None:
    """Those that are named first, then from the right; names that are too long have a line, and no cell is cut."""
    for width, leaving, headings in (
        (80, (), ["kernel", "kind", "ms", "µs"]),
        (40, (), ["kernel", "kind", "ms"]),
        (40, ("kind",), ["kernel", "ms", "µs"]),
        (28, (), ["kernel", "kind"]),
        (28, ("kind", "p95 µs"), ["kernel", "ms"]),
    ):
        lines = [line.plain for line in table(*ROWS, leaving=leaving).lines(width)]

        assert set(headings) <= {*lines[0].split(), *lines[1].split()}, width
        left_out = next((i for i, line in enumerate(lines) if line.startswith("Left out")), len(lines))
        assert (left_out < len(lines)) == (len(headings) < 4), width
        rows = lines[next(i for i, line in enumerate(lines) if LONG in line) : left_out]
        shown = {cell for line in rows for cell in line.split()}
        assert shown <= {cell for row in ROWS for cell in row}, width
        assert {LONG, "add"} <= shown, width
        assert max(len(line) for line in rows if LONG not in line) <= width, width


def test_a_name_longer_than_a_line_may_lose_its_middle() -> None:
    """By the columns that its letters take; where the table does not allow it, the terminal breaks the name."""
    for name, ends in (("a" * 90 + "_40", "_40"), ("🔥" * 60, "🔥")):
        for cuts in (True, False):
            made = table((name, "compute", "1.0", "1.0"))
            made.cuts_names = cuts
            (shown,) = [line.plain for line in made.lines(40) if name[0] * 9 in line.plain]
            assert cuts == (cell_len(shown) <= 40) == ("…" in shown), (name, ends)
            assert shown.endswith(ends), (name, ends)


def test_columns_of_nothing_leave_first() -> None:
    """Zeros and dashes tell less than any other column."""
    text = "\n".join(
        line.plain for line in table(("a" * 20, "compute", "0.00", "5.1"), ("b", "copy", "–", "7")).lines(35)
    )

    assert "Left out at 35 columns: total ms" in text
    assert {"compute", "5.1", "7"} <= set(text.split())
