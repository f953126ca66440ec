"""A benchmark's table in the terminal and in Markdown, and its six charts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.bench.conclusions import CHARTS
from dptrace.bench.table import BenchResult, Row
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Dot, Drawing, Label, Line
from dptrace.viewers.base.svg import svg
from dptrace.viewers.benchmarks import bench_table
from dptrace.viewers.benchmarks.bench_table import COMPUTE, draw_charts, style
from tests.support.bench_tables import WORKSHOP, bench, with_losses
from tests.support.terminal_text import captured


def test_the_cells_are_the_figures_in_the_units_of_people() -> None:
    """What was not measured is a dash; the rate has a column only where a row has one, an option always."""
    flags = {"static-graph": ""}
    naive = replace(WORKSHOP[1], overlap_percent=12.3, exposed_share=0.45, spread=0.012, epochs=5, options=flags)
    rated = replace(WORKSHOP[1], tflops=0.0276, mfu=0.173)
    cells = bench_table.text_table([naive, Row("a", "ddp", 2, failed="broke")])
    known = dict(zip(cells.columns, cells.rows[0], strict=True))

    assert {"epoch": "60.2 ms", "± spread": "1.2 %", "comm": "28.4 ms", "samples/s": "544,319"}.items() <= known.items()
    assert {"speedup": "0.60×", "efficiency": "30 %", "overlap": "12 %", "exposed": "45 %"}.items() <= known.items()
    assert "yes" == known["static-graph"]
    assert {"–"} == set(cells.rows[1][3:])
    assert "TFLOP/s" not in cells.columns
    assert "0.0276 (17 %)" in bench_table.text_table([rated, naive]).rows[0]


def test_a_narrow_terminal_goes_without_the_least_important_columns() -> None:
    """Each row is a line, no column is cut, and those that are left out are named below."""
    for width, columns in (
        (60, ["model", "mode", "GPUs", "epoch", "speedup"]),
        (84, ["model", "mode", "GPUs", "epoch", "comm", "samples/s", "speedup"]),
        (132, [name for name in bench_table.COLUMNS if name != "TFLOP/s"]),
    ):
        lines = captured(lambda console: console.print(bench_table.table(WORKSHOP, "Benchmark")), width).splitlines()
        head = next(line for line in lines if line.startswith("model"))
        below = " ".join(lines).partition("Left out at ")[2]

        assert 28 == sum(line.startswith(tuple(row.model for row in WORKSHOP)) for line in lines), (width, columns)
        assert set(" ".join(columns).split()) <= set(head.split()), (width, columns)
        assert "…" not in "".join(lines), (width, columns)
        assert max(map(len, lines)) <= width, (width, columns)
        assert bool(below) == (width < 132), (width, columns)


def test_markdown_is_no_markup_of_strangers() -> None:
    """Names come from users' scripts; a run that failed has its reason below the table."""
    for name, shown in (("a|b", r"a\|b"), ("<img>", "&lt;img>"), ("[x](y)", r"\[x](y)"), ("*a` < b", r"\*a\` < b")):
        rows = [bench(name, "script", 1, 1.0), Row("a", "ddp", 2, failed="out of memory")]
        text = bench_table.markdown(rows, "Benchmark", ["note"])

        assert f"| {shown} |" in text, (name, shown)
        assert text.endswith("- note\n- a, ddp, 2 GPUs failed: out of memory\n"), (name, shown)


# The charts of a benchmark: where marks are, and that nothing depends on color alone.


def drawn(rows: list[Row], name: str, local_loss: bool = False) -> Drawing:
    charts = {chart.name: drawing for chart, drawing in draw_charts(BenchResult(rows, ""), local_loss)}
    return charts[name]


def texts(drawing: Drawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, Label)]


def test_bars_are_as_long_as_their_figures() -> None:
    """A bar for each epoch; compute and communication add up to it; savings go right of zero, losses left."""
    names = ("epoch_time", "communication", "saving")
    epochs, parts, savings = ([m for m in drawn(WORKSHOP, name).marks if isinstance(m, Box)] for name in names)

    assert [pytest.approx(36.1), pytest.approx(60.2)] == [bar.top for bar in epochs[:2]]
    assert (28, 16, 16) == (len(epochs), len(parts), len(savings))
    assert [COMPUTE, theme.EXPOSED] == [bar.color for bar in parts[:2]]
    assert pytest.approx((parts[0].right, 60.2e6)) == (parts[1].left, parts[1].right)
    assert pytest.approx((0, -2.99), abs=0.01) == (savings[0].right, savings[0].left)
    assert {"36", "596", "small (1.5 M)", "xlarge (52.0 M)"} <= set(texts(drawn(WORKSHOP, "epoch_time")))
    assert "47 % communication, 28.4 ms" in texts(drawn(WORKSHOP, "communication"))
    assert ["−3 %", "+28 %"] == texts(drawn(WORKSHOP, "saving"))[:2]


def test_losses_are_lines_over_steps() -> None:
    """The mean losses of all runs coincide, those of rank 0 do not."""
    rows = with_losses(WORKSHOP)

    def ends(drawing: Drawing) -> list[float]:
        return sorted({round(mark.points[-1][1], 6) for mark in drawing.marks if isinstance(mark, Line)})

    assert [2.23] == ends(drawn(rows, "loss"))
    assert [2.25, 2.27, 2.31] == ends(drawn(rows, "loss", local_loss=True))


def test_the_ideal_is_a_straight_line() -> None:
    """Numbers of GPUs are true to scale: linear for speedup, logarithmic for throughput, whose axes say so."""
    for name, half_way, rings in (("speedup", 1 / 3, 8), ("throughput", 1 / 2, 0)):
        drawing = drawn(WORKSHOP, name)
        dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
        ideal = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.dash]
        (one, two, four) = ideal[0].points

        assert (4, rings) == (len(ideal), sum(dot.hollow for dot in dots)), name
        assert half_way == pytest.approx((two[0] - one[0]) / (four[0] - one[0])), name
        assert (name == "throughput") == drawing.y.log == ("log scale" in drawing.x.title), name
        assert all(drawing.y.high <= dot.y <= drawing.y.low for dot in dots), name


def looks(drawing: Drawing) -> set[tuple[str, str]]:
    """Return the colors and shapes of marks, as a legend names them."""
    found = {(mark.color, "ring" if mark.hollow else mark.shape) for mark in drawing.marks if isinstance(mark, Dot)}
    found |= {(mark.color, "dashes") for mark in drawing.marks if isinstance(mark, Line) and mark.dash}
    return found | {(mark.color, "") for mark in drawing.marks if isinstance(mark, Box)}


def test_a_legend_has_what_is_drawn_and_as_it_is_drawn() -> None:
    """Rings are rings and dashes are dashes; no mode without a mark, and no ideal without one GPU."""
    for name in CHARTS:
        for rows in (
            WORKSHOP,
            with_losses(WORKSHOP),
            with_losses([bench("a", "naive", 2, 1.0), replace(bench("a", "ddp", 2, 1.1), samples_per_s=None)]),
        ):
            drawing = drawn(rows, name)

            assert {(entry.color, entry.shape) for entry in drawing.legend} <= looks(drawing), (name, rows)


def test_whatever_is_missing_there_is_a_picture_or_a_sentence() -> None:
    """The SVG has no markup from names."""
    for name in CHARTS:
        for rows in (
            [],
            [bench("a", "single", 1, 1.0)],
            [bench("a", "ddp", 2, 1.0)],
            [Row("a", "ddp", 2, failed="broke")],
            [Row("<b>", "script", n, None, 2.0 / n, losses=(None, 1.0)) for n in (1, 2, 3)],
            with_losses([bench("a", "naive", 2, 1e-6)], steps=1),
        ):
            drawing = drawn(rows, name)
            text = svg(drawing)

            assert bool(drawing.message) != bool(drawing.marks), (name, rows)
            assert "<b>" not in text, (name, rows)
            assert "nan" not in text.lower().replace("nanosecond", ""), (name, rows)


def test_modes_differ_by_mark_and_color() -> None:
    """The four common modes, and others."""
    modes = ["single", "naive", "interleaved", "ddp", "fsdp", "pp"]

    assert 4 == len({style(mode, modes)[1] for mode in modes[:4]})
    assert 6 == len({style(mode, modes) for mode in modes})


def test_processes_on_cpu_are_not_called_gpus() -> None:
    """No text of a chart mentions GPUs."""
    on_cpu = BenchResult(with_losses(WORKSHOP), "", machine={"devices": ["CPU"]})

    assert not any("GPU" in svg(drawing) for _, drawing in draw_charts(on_cpu))
