"""Answers of the planners: sentences, tables, charts and pages."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import dptrace
from dptrace.commands.recorded_plan import predict_recording
from dptrace.load.open import open_run
from dptrace.model.training.communication import Link, Network, level, message_costs
from dptrace.viewers.base.marks import Box, Dot, Drawing, Line
from dptrace.viewers.planning.cells import billions
from dptrace.viewers.planning.charts import (
    charts,
    memory_chart,
    message_chart,
    plan_roofline_chart,
    recorded_roofline_chart,
    roofline_chart,
    scaling_chart,
    steps_chart,
)
from dptrace.viewers.planning.pages import document
from dptrace.viewers.planning.tables import facts, tables
from tests.support.browser import browser_test, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SEVENTY: dict[str, Any] = {"params": 70e9, "gpus": 64, "seq": 4096, "batch": 512}
LINK = Link("<b>link</b>", 5e-6, 25e9)


@pytest.fixture(scope="module")
def advice() -> dict[str, Any]:
    return dptrace.advise(**SEVENTY)


@pytest.fixture(scope="module")
def prediction() -> dict[str, Any]:
    return dptrace.predict(**SEVENTY)


@pytest.fixture(scope="module")
def message() -> dict[str, Any]:
    """208 MB among four ranks, with additions."""
    return message_costs(Network(LINK, LINK, 8), 208e6, 4, 1e-12)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return predict_recording(open_run(["traces/interleaved_cpu_2ranks"]), "<b>run</b>")


def bars(drawing: Drawing) -> list[list[tuple[float, float]]]:
    """Return the left and right ends of the boxes of each row."""
    boxes = [mark for mark in drawing.marks if isinstance(mark, Box)]
    rows = sorted({(box.top, box.bottom) for box in boxes})
    return [sorted((b.left, b.right) for b in boxes if (b.top, b.bottom) == row) for row in rows]


def dots(drawing: Drawing, hollow: bool = False) -> list[Dot]:
    return [mark for mark in drawing.marks if isinstance(mark, Dot) and mark.hollow == hollow]


@pytest.mark.slow
def test_a_bar_is_a_step(request: pytest.FixtureRequest) -> None:
    """The parts of each plan follow each other from zero to its step."""
    for verb, unit in (("advice", 1), ("prediction", 1e9)):
        content = request.getfixturevalue(verb)
        found = bars(steps_chart(content))

        assert len(content["candidates"]) == len(found), (verb, unit)
        for bar, row in zip(found, content["candidates"], strict=True):
            assert 0 == bar[0][0], (verb, unit)
            assert pytest.approx(unit * row["step_ns" if unit == 1 else "step_s"]) == bar[-1][1], (verb, unit)
            assert all(left[1] == right[0] for left, right in itertools.pairwise(bar)), (verb, unit)


def test_a_bar_is_a_gpus_memory_up_to_the_end_of_the_axis(advice: dict[str, Any]) -> None:
    """Bars of plans that fit end at their bytes, left of the limit; the others end right of it, or at the axis."""
    chart = memory_chart(advice)
    limit = next(mark.points[0][0] for mark in chart.marks if isinstance(mark, Line))

    assert advice["usable_bytes"] == limit
    for bar, row in zip(bars(chart), advice["candidates"], strict=True):
        assert row["fits"] is (bar[-1][1] <= limit)
        assert pytest.approx(min(row["per_gpu_bytes"], bar[-1][1]), rel=1e-6) == bar[-1][1]


def test_a_plan_that_does_not_fit_leaves_room_for_the_others(prediction: dict[str, Any]) -> None:
    """Its bar is cut at twice the slowest step that fits; the chart says so, which it does not where none is."""
    rows = [*prediction["candidates"], {**prediction["candidates"][-1], "fits": False, "compute_s": 1e6, "step_s": 1e6}]
    slowest = max(row["step_s"] for row in rows if row["fits"])
    drawing = steps_chart({**prediction, "candidates": rows})

    assert max(bar[-1][1] for bar in bars(drawing)) == pytest.approx(2e9 * slowest)
    assert drawing.x.high <= 2.1e9 * slowest
    assert [False, True] == ["cut" in one.subtitle for one in (steps_chart(prediction), drawing)]


def test_three_gpus_have_a_chart() -> None:
    """No power of two divides their plan, whose own number is a row of the table."""
    content = dptrace.predict(params=13e9, gpus=3)

    assert 3 in [row["gpus"] for row in content["scaling"]]
    assert dots(charts(content)["scaling"])


def test_lines_go_through_the_table(prediction: dict[str, Any]) -> None:
    """Each line of the scaling chart has a dot for each row that has a figure."""
    chart = scaling_chart(prediction)
    strong = sum(row["strong_efficiency"] is not None for row in prediction["scaling"])

    assert 2 * len(prediction["scaling"]) + strong == len(dots(chart))
    assert all(len(mark.points) > 1 for mark in chart.marks if isinstance(mark, Line))


def test_lines_cross_where_the_ring_overtakes() -> None:
    """A line and a dot for each algorithm, and rings on the ring's line where one tree or two take as long."""
    content = message_costs(Network(LINK, LINK, 8), 208e6, 4, 0.0)
    drawing = message_chart(content)
    found = [(one.x, one.y) for one in dots(drawing, hollow=True)]

    assert [pytest.approx((size, 1e9 * (6 * 5e-6 + 1.5 * size / 25e9))) for size in (100e3, 500e3)] == found
    assert [pytest.approx(1e9 * row["seconds"]) for row in content["all_reduce"]] == [dot.y for dot in dots(drawing)]
    assert len(content["all_reduce"]) == sum(isinstance(mark, Line) for mark in drawing.marks)


def test_each_link_has_its_roof_and_its_points() -> None:
    """The slope ends at the ridge, in the peak; a point is at what is computed for each byte, and how fast."""
    links = (Link("near", 0.0, 450e9), Link("far", 0.0, 50e9))
    levels = [{"sent_bytes": 1e9, **msgspec.to_builtins(level(link, 989e12, 3072.0, 1.0))} for link in links]
    drawing = roofline_chart(levels, 989e12, [("step 1", 400e12), ("step 2", 100e12)])
    roofs = [mark for mark in drawing.marks if isinstance(mark, Line)]

    assert [(989e12 / 450e9, 989e12), (989e12 / 50e9, 989e12)] == [(ring.x, ring.y) for ring in dots(drawing, True)]
    assert [(3072.0, 400e12), (3072.0, 100e12)] * 2 == [(dot.x, dot.y) for dot in dots(drawing)]
    for roof, rate in zip(roofs, (450e9, 50e9), strict=True):
        (left, low), ridge, (_, end) = roof.points
        assert pytest.approx((left * rate, 989e12, 989e12)) == (low, ridge[1], end)


def test_what_is_not_known_is_not_drawn() -> None:
    """A recording without FLOPs, and a plan on one GPU, give a sentence instead."""
    assert recorded_roofline_chart({"roofline": None}).message
    assert plan_roofline_chart({"roofline": []}).message


def test_the_tables_of_advice_hold_what_is_asked_for(advice: dict[str, Any]) -> None:
    """Briefly, the items that gain or cost; with all, every plan and every item. Time and memory have columns."""
    brief, whole = dict(tables(advice)), dict(tables(advice, every=True))
    items = [one for title, table in whole.items() if title.startswith("What") for one in table.rows]

    assert len(advice["checks"]) == len(items) == len({item[0] for item in items})
    assert len(advice["candidates"]) == len(whole["Ways to train, fastest that fits first"].rows)
    assert len(brief) < len(whole)
    assert all(len(row) == len(table.columns) for table in whole.values() for row in table.rows)
    assert ("time saved", "memory saved") == brief["What to change, by gain"].columns[1:3]
    timed = [one | {"gain_bytes": None} for one in advice["checks"]]
    assert "memory saved" not in dict(tables(advice | {"checks": timed}))["What to change, by gain"].columns


def test_the_tables_of_a_prediction_agree_with_the_figures(prediction: dict[str, Any]) -> None:
    """A row for each collective, candidate, number of GPUs, link and algorithm."""
    counts = [len(table.rows) for _, table in tables(prediction)][1:]
    parts = (prediction[name] for name in ("communication", "candidates", "scaling", "roofline"))

    assert [*map(len, parts), len(prediction["all_reduce"]["algorithms"])] == counts
    assert prediction["layout"] in facts(prediction)[1]


@pytest.mark.slow
def test_nothing_fits_is_said_with_what_is_missing() -> None:
    """A trillion parameters on 8 GPUs: the nearest plan, and by how much it is too large."""
    said = facts(dptrace.advise(params=1e12, gpus=8))[1]

    assert said.startswith("Nothing fits")
    assert "more than can be used" in said
    assert "parameters, gradients and optimizer" in said


@pytest.mark.slow
def test_what_nobody_can_buy_is_not_what_fits() -> None:
    """405 billion parameters on one GPU: no GPU has 7.2 TB, and few hosts 6.5 TB; 7 billion fit into larger GPUs."""
    large, small = (" ".join(facts(dptrace.predict(params=size, gpus=1))) for size in (405e9, 7e9))

    assert "or GPUs with" not in large
    assert "No known GPU" in large
    assert "2 TB" in large
    assert "or GPUs with 126.9 GB" in small
    assert "No known GPU" not in small
    assert "2 TB" not in small
    assert "each GPU" not in large + small


def test_a_prediction_in_words(prediction: dict[str, Any]) -> None:
    """Large and small numbers, the attention, and a goal that is just missed."""
    missed = {"name": "mfu", "goal": "> 40 %", "value": 0.3977, "met": False}
    said = [
        facts(prediction | {"training_days": days, "gpus": 100_000, "targets": [missed]}) for days in (2423.4, 0.0202)
    ]

    assert "2,423 days" in " ".join(said[0])
    assert "1,745 s" in " ".join(said[1])
    assert "100,000 × H100" in said[0][0]
    assert "standard attention" in said[0][0]
    assert "39.77 %" in said[0][-1]


def test_the_plan_that_advice_calls_simplest_is_listed(advice: dict[str, Any]) -> None:
    """Where more plans fit than the table has rows for, too."""
    last = [one["label"] for one in advice["candidates"] if one["fits"]][-1]
    named = dict(tables(advice | {"simplest": last}))["Ways to train, fastest that fits first"]
    usual = dict(tables(advice))["Ways to train, fastest that fits first"]

    assert last in [row[0] for row in named.rows]
    assert last not in [row[0] for row in usual.rows]


def test_memory_in_words() -> None:
    """State, activations, whether it fits; the parts add up to the last row; stars where a strategy fits."""
    held = dptrace.memory(params=7e9, strategy="zero3")
    (_, parts), (_, strategies) = tables(held)
    stars = {row[0]: row[2].endswith("*") for row in strategies.rows}

    assert "112.0 GB" in facts(held)[0]
    assert "it fits" in facts(held)[2]
    assert "together" == parts.rows[-1][0]
    assert (False, True) == (stars["DDP ×8"], stars["FSDP ×8"])
    assert "1.01 trillion" == billions(1.008e12)


def test_volumes_are_comparable_at_a_glance(message: dict[str, Any]) -> None:
    """GPU workshop: 312 MB from each rank of a ring, 1,248 MB in and out of the naive root, and from all together."""
    (_, collectives), (_, all_reduces) = tables(message)
    rows = {row[0]: row for row in all_reduces.rows}

    assert ("312 MB", "624 MB", "1,248 MB") == rows["ring"][2:5]
    assert ("624 MB", "1,248 MB", "1,248 MB") == rows["naive"][2:5]
    assert "98.8 kB" in all_reduces.note  # 2·alpha over 2.5·beta + 1.25·gamma
    assert len(message["collectives"]) == len(collectives.rows)
    assert "gamma 1 ps/byte" in facts(message)[0]
    assert "125.0 kB" in facts(message)[1]


@pytest.mark.heavy
def test_a_page_holds_charts_and_tables(request: pytest.FixtureRequest) -> None:
    """In one file, whose policy allows no request; names are text."""
    for name, held in (
        ("advice", ("Step of each plan", "Memory of a GPU", "The decision")),
        ("prediction", ("Efficiency by number of GPUs", "Communication roofline")),
        ("message", ('id="view-chart-message"', "1,248 MB")),
    ):
        page = document(request.getfixturevalue(name))

        assert all(text in page for text in held), (name, held)
        assert "<script" not in page, (name, held)
        assert "<b>link</b>" not in page.replace('"<b>link</b>', ""), (name, held)


@pytest.mark.heavy
@browser_test
def test_recorded_steps_lie_on_the_roofline(browser: Browser, tmp_path: Path, recorded: dict[str, Any]) -> None:
    """The figure is drawn, above the links and a row for each number of ranks. Names are text."""
    path = tmp_path / "roofline.html"
    path.write_text(document(recorded), encoding="utf-8")
    with open_page(browser, path, ready=False) as (page, errors):
        assert 1 == page.locator(".wide svg").count()
        assert 11 == page.locator("table").last.locator("tbody tr").count()
        assert "<b>run</b>" in page.locator("body").inner_text()
    assert [] == errors
