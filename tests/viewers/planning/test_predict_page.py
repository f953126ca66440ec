"""Tables, charts and the page of a plan."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from dptrace.model.planning.describe import Description
from dptrace.model.planning.memory_report import memory_report
from dptrace.model.planning.predict_report import predict_report
from dptrace.viewers.base.marks import Box, Dot, Line
from dptrace.viewers.planning.memory_table import billions, memory_facts, memory_table, strategies_table
from dptrace.viewers.planning.predict_charts import scaling_chart, strategies_chart
from dptrace.viewers.planning.predict_page import document
from dptrace.viewers.planning.predict_table import predict_facts, predict_tables
from tests.support.browser import browser_test, chromium, open_page

SEVENTY = Description(params=70e9, gpus=64, seq=4096, batch=512)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return predict_report(SEVENTY, live=True)


def test_a_bar_is_a_step(content: dict[str, Any]) -> None:
    """The boxes of each strategy follow each other from zero to the length of its step."""
    boxes = [mark for mark in strategies_chart(content).marks if isinstance(mark, Box)]
    rows = {(box.top, box.bottom) for box in boxes}

    assert len(content["candidates"]) == len(rows)
    for number, row in enumerate(sorted(rows)):
        bar = sorted((box.left, box.right) for box in boxes if (box.top, box.bottom) == row)
        assert 0 == bar[0][0]
        assert bar[-1][1] == pytest.approx(1e9 * content["candidates"][number]["step_s"])
        assert all(left[1] == right[0] for left, right in itertools.pairwise(bar))


def test_lines_go_through_the_table(content: dict[str, Any]) -> None:
    """Each line of the scaling chart has a dot for each row that has a figure."""
    chart = scaling_chart(content)
    dots = sum(isinstance(mark, Dot) for mark in chart.marks)
    strong = sum(row["strong_efficiency"] is not None for row in content["scaling"])

    assert 2 * len(content["scaling"]) + strong == dots
    assert all(len(mark.points) > 1 for mark in chart.marks if isinstance(mark, Line))


def test_the_tables_agree_with_the_figures(content: dict[str, Any]) -> None:
    """A row for each collective, candidate, number of GPUs, link and algorithm."""
    counts = [len(table.rows) for _, table in predict_tables(content)][1:]
    parts = (content[name] for name in ("communication", "candidates", "scaling", "roofline"))

    assert [*map(len, parts), len(content["all_reduce"]["algorithms"])] == counts
    assert content["layout"] in predict_facts(content)[1]


@pytest.mark.heavy
def test_the_page_holds_its_numbers(content: dict[str, Any]) -> None:
    """The page's sliders get the plan as data that no browser runs, and its policy allows no request."""
    page = document(content)

    assert '<script type="application/json" id="plan-data">{"' in page
    assert "connect-src data:" in page


def test_memory_in_words() -> None:
    """State, activations, whether it fits; the parts add up to the last row; stars where a strategy fits."""
    held = memory_report(Description(params=7e9, strategy="zero3"))

    assert "112.0 GB" in memory_facts(held)[0]
    assert "it fits" in memory_facts(held)[2]
    assert "together" == memory_table(held).rows[-1][0]
    assert "*" not in strategies_table(held).rows[0][2]
    assert "*" in strategies_table(held).rows[3][2]
    assert "1.01 trillion" == billions(1.008e12)


@browser_test
def test_a_slider_computes_the_step_again(content: dict[str, Any], tmp_path: Path) -> None:
    """With four times the GPUs there are four times the tokens, and no script fails."""
    path = tmp_path / "plan.html"
    path.write_text(document(content))
    with chromium() as browser, open_page(browser, path) as (page, errors):
        rows = "Object.fromEntries([...document.querySelectorAll('#sliders tr')].map((r) => [r.cells[0].textContent, "
        read = rows + "r.cells[1].textContent]))"
        before = page.evaluate(read)
        page.locator("#sliders input[type=range]").first.evaluate(
            "(input) => { input.value = Number(input.value) + 2; input.dispatchEvent(new Event('input')); }"
        )
        after = page.evaluate(read)

    rate = [float(figures["tokens/s"].replace(",", "")) for figures in (before, after)]
    assert pytest.approx(content["tokens_per_s"], rel=0.01) == rate[0]
    assert pytest.approx(4, rel=0.05) == rate[1] / rate[0]
    assert not errors
