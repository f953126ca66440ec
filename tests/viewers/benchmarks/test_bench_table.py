"""A benchmark's table in the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from dptrace.bench.conclusions import CHARTS, conclusions
from dptrace.bench.table import Row, usable
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Dot, Drawing, Label, Line
from dptrace.viewers.base.svg import svg
from dptrace.viewers.benchmarks import bench_table
from dptrace.viewers.benchmarks.bench_table import COMPUTE, draw, style
from tests.support.bench_tables import WORKSHOP, bench, with_losses


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


# The charts of a benchmark: where marks are, and that nothing depends on colour alone.


def drawn(rows: list[Row], name: str, local_loss: bool = False) -> Drawing:
    chart = next(chart for chart in conclusions(rows, local_loss=local_loss) if chart.name == name)
    return draw(chart, usable(rows), local_loss)


def texts(drawing: Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Label)]


def test_a_bar_for_each_run_is_as_high_as_its_epoch() -> None:
    """28 bars from zero, the mark of each one's mode above it, and its milliseconds."""
    drawing = drawn(WORKSHOP, "epoch_time")
    bars = [mark for mark in drawing.marks if isinstance(mark, Box)]

    assert 28 == len(bars) == len([mark for mark in drawing.marks if isinstance(mark, Dot)])
    assert {0} == {bar.bottom for bar in bars}
    assert [pytest.approx(36.1), pytest.approx(60.2)] == [bar.top for bar in bars[:2]]
    assert {"36", "596", "small (1.5 M)", "xlarge (52.0 M)"} <= set(texts(drawing))
    assert {"1 GPU", "2 GPUs", "4 GPUs"} == {text for _, text in drawing.x.ticks}


def test_speedups_stand_beside_the_ideal_and_the_ceilings() -> None:
    """A dashed line for each model; rings where Amdahl's ceiling is; the best is labelled."""
    drawing = drawn(WORKSHOP, "speedup")
    ideal = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.dash]
    rings = [mark for mark in drawing.marks if isinstance(mark, Dot) and mark.hollow]

    assert [(1.0, 2.0, 4.0)] * 4 == [tuple(y for _, y in line.points) for line in ideal]
    assert 8 == len(rings)
    assert {"0.83×", "1.75×", "2.30×", "2.40×"} <= set(texts(drawing))
    assert all(drawing.y.high <= mark.y <= drawing.y.low for mark in drawing.marks if isinstance(mark, Dot))


def test_bars_are_as_long_as_their_figures() -> None:
    """Compute and communication add up to the epoch; savings go right of zero, losses left, with their sign."""
    communication, saving = drawn(WORKSHOP, "communication"), drawn(WORKSHOP, "saving")
    parts, savings = ([mark for mark in one.marks if isinstance(mark, Box)] for one in (communication, saving))

    assert [COMPUTE, theme.EXPOSED] * 8 == [bar.color for bar in parts]
    assert all(first.right == second.left for first, second in zip(parts[::2], parts[1::2], strict=True))
    assert pytest.approx(60.2e6) == parts[1].right
    assert "47 % communication, 28.4 ms" in texts(communication)
    assert (16, 0) == (len(savings), savings[0].right)
    assert pytest.approx(-2.99, abs=0.01) == savings[0].left
    assert ["−3 %", "+28 %"] == texts(saving)[:2]


def test_losses_are_lines_over_steps() -> None:
    """The mean losses of all runs coincide, those of rank 0 do not."""
    rows = with_losses(WORKSHOP)
    mean, local = drawn(rows, "loss"), drawn(rows, "loss", local_loss=True)

    def ends(drawing: Drawing) -> set[float]:
        return {round(mark.points[-1][1], 6) for mark in drawing.marks if isinstance(mark, Line)}

    assert 28 == sum(isinstance(mark, Line) for mark in mean.marks)
    assert {2.23} == ends(mean)
    assert {2.25, 2.27, 2.31} == ends(local)


@pytest.mark.parametrize(("name", "half_way"), [("speedup", 1 / 3), ("throughput", 1 / 2)])
def test_the_ideal_is_a_straight_line(name: str, half_way: float) -> None:
    """Numbers of GPUs are true to scale: linear for speedup, logarithmic for throughput, whose axes say so."""
    drawing = drawn(WORKSHOP, name)
    (one, two, four) = next(mark for mark in drawing.marks if isinstance(mark, Line) and mark.dash).points

    assert half_way == pytest.approx((two[0] - one[0]) / (four[0] - one[0]))
    assert (name == "throughput") == drawing.y.log == ("log scale" in drawing.x.title)
    assert all(drawing.y.high <= mark.y <= drawing.y.low for mark in drawing.marks if isinstance(mark, Dot))


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [bench("a", "single", 1, 1.0)],
        [bench("a", "ddp", 2, 1.0)],
        [Row("a", "ddp", 2, failed="broke")],
        [Row("<b>", "script", n, None, 2.0 / n, losses=(None, 1.0)) for n in (1, 2, 3)],
        with_losses([bench("a", "naive", 2, 1e-6)], steps=1),
    ],
)
def test_whatever_is_missing_there_is_a_picture_or_a_sentence(name: str, rows: list[Row]) -> None:
    """The SVG has no markup from names."""
    drawing = drawn(rows, name)
    text = svg(drawing)

    assert bool(drawing.message) != bool(drawing.marks)
    assert "<b>" not in text
    assert "nan" not in text.lower().replace("nanosecond", "")


def test_modes_differ_by_mark_and_colour() -> None:
    """The four common modes, and others."""
    modes = ["single", "naive", "interleaved", "ddp", "fsdp", "pp"]

    assert 4 == len({style(mode, modes)[1] for mode in modes[:4]})
    assert 6 == len({style(mode, modes) for mode in modes})


@pytest.mark.parametrize("name", CHARTS)
def test_processes_on_cpu_are_not_called_gpus(name: str) -> None:
    """No text of a chart mentions GPUs."""
    rows = with_losses(WORKSHOP)
    chart = next(chart for chart in conclusions(rows, on_cpu=True) if chart.name == name)

    assert "GPU" not in svg(draw(chart, usable(rows), on_cpu=True))
