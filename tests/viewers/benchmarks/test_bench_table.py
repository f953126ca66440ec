"""A benchmark's table in the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from dptrace.bench.table import Row
from dptrace.viewers.benchmarks import bench_table
from tests.support.bench_tables import WORKSHOP, bench


def test_a_row_has_a_text_for_each_heading() -> None:
    """Numbers in the units of people; what was not measured is a dash."""
    naive = replace(WORKSHOP[1], overlap_percent=12.3, exposed_share=0.45, spread=0.012, epochs=5)
    texts = bench_table.cells(naive)

    assert len(bench_table.HEADINGS) + 1 == len(texts)
    assert [
        "small",
        "naive",
        "2",
        "1.5 M",
        "60.2 ms",
        "1.2 %",
        "28.4 ms",
        "544,319",
        "–",
        "0.60×",
        "30 %",
        "12 %",
        "45 %",
    ] == texts
    assert ["–"] * 10 == bench_table.cells(Row("a", "ddp", 2, failed="broke"))[3:]


def test_a_rate_has_its_share_of_the_peak() -> None:
    """In a column that only tables with such rows have."""
    known = replace(WORKSHOP[1], tflops=0.0276, mfu=0.173)
    names = bench_table.headings([known, WORKSHOP[0]])

    assert "0.0276 (17 %)" == bench_table.full_row(known, names)[names.index("TFLOP/s")]
    assert "–" == bench_table.full_row(WORKSHOP[0], names)[names.index("TFLOP/s")]
    assert "TFLOP/s" not in bench_table.headings(WORKSHOP)


def test_options_of_a_sweep_are_columns() -> None:
    """A flag has the value yes."""
    rows = [
        replace(bench("a", "ddp", 2, 1.0), options={"bucket-cap-mb": "4", "static-graph": ""}),
        bench("a", "ddp", 2, 1.0),
    ]
    names = bench_table.headings(rows)

    assert ("bucket-cap-mb", "static-graph") == names[-2:]
    assert ["4", "yes"] == bench_table.full_row(rows[0], names)[-2:]
    assert ["–", "–"] == bench_table.full_row(rows[1], names)[-2:]


def test_the_terminal_shows_every_row_on_one_line() -> None:
    """As wide as a piped console."""
    console = Console(width=132, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(bench_table.table(WORKSHOP, "Benchmark"))
    lines = console.export_text().splitlines()

    assert 28 == sum(line.startswith("│") for line in lines)
    assert any("2.40×" in line for line in lines)


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, ["model", "mode", "GPUs", "epoch", "speedup"]),
        (84, ["model", "mode", "GPUs", "epoch", "comm", "samples/s", "speedup"]),
        (132, list(bench_table.HEADINGS)),
    ],
)
def test_a_narrow_terminal_goes_without_the_least_important_columns(width: int, columns: list[str]) -> None:
    """No column is cut; those that are left out are named below."""
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(bench_table.table(WORKSHOP, "Benchmark"))
    lines = console.export_text().splitlines()
    head = next(line for line in lines if line.startswith("┃"))

    assert set(columns) <= {name.strip() for name in head.split("┃")}
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("Too narrow for parameters, ") for line in lines) == (width < 132)


@pytest.mark.parametrize(("name", "shown"), [("a|b", r"a\|b"), ("<img>", "&lt;img>"), ("[x](y)", r"\[x](y)")])
def test_markdown_is_no_markup_of_strangers(name: str, shown: str) -> None:
    """Names come from users' scripts."""
    text = bench_table.markdown([bench(name, "script", 1, 1.0)], "Benchmark", ["note"])

    assert f"| {shown} |" in text
    assert "- note" in text


def test_failures_are_reported() -> None:
    """Each failed run has a sentence."""
    rows = [Row("a", "ddp", 2, failed="out of memory"), Row("a", "single", 1, failed="x")]

    assert ["a, ddp, 2 GPUs failed: out of memory", "a, single, 1 GPU failed: x"] == bench_table.failures(rows)
