"""Tables, charts and the page of advice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dptrace.commands.recorded_plan import predict_recording
from dptrace.load.open import open_run
from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import advice_report, memory_report, predict_report
from dptrace.model.training.communication import Link, Network, message_costs
from dptrace.viewers.base.marks import Box, Dot, Line
from dptrace.viewers.planning.charts import memory_chart, scaling_chart, steps_chart, strategies_chart
from dptrace.viewers.planning.pages import advise_document, message_document, recorded_document
from dptrace.viewers.planning.predict_table import predict_facts, predict_tables
from dptrace.viewers.planning.tables import (
    advise_facts,
    advise_tables,
    billions,
    memory_facts,
    memory_table,
    recommendation,
    strategies_table,
)
from tests.support.browser import browser_test, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return advice_report(Description(params=70e9, gpus=64, seq=4096, batch=512))


def bars(boxes: list[Box]) -> list[list[tuple[float, float]]]:
    """Return the left and right ends of the boxes of each row."""
    rows = sorted({(box.top, box.bottom) for box in boxes})
    return [sorted((b.left, b.right) for b in boxes if (b.top, b.bottom) == row) for row in rows]


def test_a_bar_is_a_step(content: dict[str, Any]) -> None:
    """The parts of each plan follow each other from zero to its step."""
    found = bars([mark for mark in steps_chart(content).marks if isinstance(mark, Box)])

    assert len(content["candidates"]) == len(found)
    for bar, row in zip(found, content["candidates"], strict=True):
        assert 0 == bar[0][0]
        assert pytest.approx(row["step_ns"]) == bar[-1][1]
        assert all(left[1] == right[0] for left, right in itertools.pairwise(bar))


def test_a_bar_is_a_gpus_memory_up_to_the_end_of_the_axis(content: dict[str, Any]) -> None:
    """Bars of plans that fit end at their bytes, left of the limit; the others end right of it, or at the axis."""
    chart = memory_chart(content)
    found = bars([mark for mark in chart.marks if isinstance(mark, Box)])
    limit = next(mark.points[0][0] for mark in chart.marks if isinstance(mark, Line))

    assert content["usable_bytes"] == limit
    for bar, row in zip(found, content["candidates"], strict=True):
        assert row["fits"] is (bar[-1][1] <= limit)
        assert pytest.approx(min(row["per_gpu_bytes"], bar[-1][1]), rel=1e-6) == bar[-1][1]


def test_the_tables_hold_what_is_asked_for(content: dict[str, Any]) -> None:
    """Briefly, the items that gain or cost; with all, every plan and every item."""
    brief, whole = dict(advise_tables(content)), dict(advise_tables(content, every=True))
    items = [one for title, table in whole.items() if title.startswith("What") for one in table.rows]

    assert len(content["checks"]) == len(items)
    assert len(content["candidates"]) == len(whole["Ways to train, fastest that fits first"].rows)
    assert len(brief) < len(whole)
    assert all(len(row) == len(table.columns) for table in whole.values() for row in table.rows)


def test_the_answer_in_sentences(content: dict[str, Any]) -> None:
    """What is planned, the fastest plan, what is as good, and where the documents' tree ends."""
    said = recommendation(content)

    assert "64 × H100 SXM" in advise_facts(content)[0]
    assert content["chosen"]["label"] in said[0]
    assert all(name in said[1] for name in content["tied"])
    assert content["tree"]["strategy"] in said[2]


def test_nothing_fits_is_said_with_what_is_missing() -> None:
    """A trillion parameters on 8 GPUs: the nearest plan, and by how much it is too large."""
    said = recommendation(advice_report(Description(params=1e12, gpus=8)))

    assert said[0].startswith("Nothing fits")
    assert "too much" in said[0]


@pytest.mark.heavy
def test_the_page_runs_without_the_network(content: dict[str, Any]) -> None:
    """Answer, charts and tables in one file, whose policy allows no request."""
    page = advise_document(content)

    assert "Step of each way to train" in page
    assert "Memory of a GPU" in page
    assert "<script" not in page


# The page of a message.


def test_the_page_has_the_chart_and_the_tables() -> None:
    """A link's name is text."""
    link = Link("<b>link</b>", 5e-6, 25e9)
    page = message_document(message_costs(Network(link, link, 8), 208e6, 4, 0.0))

    assert 'id="view-chart-message"' in page
    assert "1,248 MB" in page
    assert "<b>link</b>" not in page.replace('"<b>link</b>', "")


# Tables, charts and the page of a plan.


SEVENTY = Description(params=70e9, gpus=64, seq=4096, batch=512)


@pytest.fixture(scope="module")
def predict_page_content() -> dict[str, Any]:
    return predict_report(SEVENTY)


def test_a_bar_is_a_step_predict_page(predict_page_content: dict[str, Any]) -> None:
    """The boxes of each strategy follow each other from zero to the length of its step."""
    boxes = [mark for mark in strategies_chart(predict_page_content).marks if isinstance(mark, Box)]
    rows = {(box.top, box.bottom) for box in boxes}

    assert len(predict_page_content["candidates"]) == len(rows)
    for number, row in enumerate(sorted(rows)):
        bar = sorted((box.left, box.right) for box in boxes if (box.top, box.bottom) == row)
        assert 0 == bar[0][0]
        assert bar[-1][1] == pytest.approx(1e9 * predict_page_content["candidates"][number]["step_s"])
        assert all(left[1] == right[0] for left, right in itertools.pairwise(bar))


def test_lines_go_through_the_table(predict_page_content: dict[str, Any]) -> None:
    """Each line of the scaling chart has a dot for each row that has a figure."""
    chart = scaling_chart(predict_page_content)
    dots = sum(isinstance(mark, Dot) for mark in chart.marks)
    strong = sum(row["strong_efficiency"] is not None for row in predict_page_content["scaling"])

    assert 2 * len(predict_page_content["scaling"]) + strong == dots
    assert all(len(mark.points) > 1 for mark in chart.marks if isinstance(mark, Line))


def test_the_tables_agree_with_the_figures(predict_page_content: dict[str, Any]) -> None:
    """A row for each collective, candidate, number of GPUs, link and algorithm."""
    counts = [len(table.rows) for _, table in predict_tables(predict_page_content)][1:]
    parts = (predict_page_content[name] for name in ("communication", "candidates", "scaling", "roofline"))

    assert [*map(len, parts), len(predict_page_content["all_reduce"]["algorithms"])] == counts
    assert predict_page_content["layout"] in predict_facts(predict_page_content)[1]


def test_memory_in_words() -> None:
    """State, activations, whether it fits; the parts add up to the last row; stars where a strategy fits."""
    held = memory_report(Description(params=7e9, strategy="zero3"))

    assert "112.0 GB" in memory_facts(held)[0]
    assert "it fits" in memory_facts(held)[2]
    assert "together" == memory_table(held).rows[-1][0]
    assert "*" not in strategies_table(held).rows[0][2]
    assert "*" in strategies_table(held).rows[3][2]
    assert "1.01 trillion" == billions(1.008e12)


# The page of a recording's prediction.


@pytest.fixture(scope="module")
def recorded_page_content() -> dict[str, Any]:
    return predict_recording(open_run(["traces/interleaved_cpu_2ranks"]), "<b>run</b>")


@pytest.mark.heavy
@browser_test
def test_steps_lie_on_the_roofline(browser: Browser, tmp_path: Path, recorded_page_content: dict[str, Any]) -> None:
    """The figure is drawn, above the links and a row for each number of ranks. Names are text."""
    path = tmp_path / "roofline.html"
    path.write_text(recorded_document(recorded_page_content), encoding="utf-8")
    with open_page(browser, path, ready=False) as (page, errors):
        assert 1 == page.locator(".picture svg").count()
        assert 11 == page.locator("table").last.locator("tbody tr").count()
        assert "<b>run</b>" in page.locator("body").inner_text()
    assert [] == errors


def test_without_flops_a_sentence_says_why(recorded_page_content: dict[str, Any]) -> None:
    """The numbers of ranks stay."""
    page = recorded_document(recorded_page_content | {"roofline": None})

    assert "are not known" in page
    assert "On other numbers of ranks" in page
