"""Tables, charts and the page of advice."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dptrace.model.planning.advice_report import advice_report
from dptrace.model.planning.describe import Description
from dptrace.viewers.base.marks import Box, Line
from dptrace.viewers.planning.advise_charts import memory_chart, steps_chart
from dptrace.viewers.planning.advise_page import document
from dptrace.viewers.planning.advise_table import advise_facts, advise_tables, recommendation


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
    page = document(content)

    assert "Step of each way to train" in page
    assert "Memory of a GPU" in page
    assert "connect-src data:" in page
