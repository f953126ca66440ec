"""The level of detail in Python, against the golden vectors of lod.js and brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dptrace.viewers.gantt.svg.level_of_detail import Intervals, Lod

GOLDEN = json.loads((Path(__file__).resolve().parents[3] / "golden" / "lod.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lods() -> list[Lod]:
    lanes = [
        Intervals(*(np.array(lane[key], np.int64) for key in ("start", "duration", "category")))
        for lane in GOLDEN["lanes"]
    ]
    return [Lod(lane, GOLDEN["categories"]) for lane in lanes]


@pytest.mark.parametrize("window", GOLDEN["windows"], ids=lambda window: f"{window['from']}-{window['to']}")
def test_golden_vectors(lods: list[Lod], window: dict[str, object]) -> None:
    """Shares of columns, time in the window and the intervals drawn whole equal the file's."""
    start, end, width = float(str(window["from"])), float(str(window["to"])), int(str(window["width"]))

    np.testing.assert_allclose(np.array(window["density"]), [lod.density(start, end, width) for lod in lods], atol=1e-9)
    busy = [lod.density(start, end, 1)[:, 0] * (end - start) for lod in lods]
    np.testing.assert_allclose(np.array(window["busy"]), busy, atol=1e-6)
    long = [sorted(lod.long(start, end, float(str(window["shortest"]))).tolist()) for lod in lods]
    assert window["long"] == long


@pytest.mark.parametrize("window", GOLDEN["windows"], ids=lambda window: f"{window['from']}-{window['to']}")
def test_golden_vectors_are_true(window: dict[str, object]) -> None:
    """The file's shares equal a count of single nanoseconds."""
    start, end, width = int(str(window["from"])), int(str(window["to"])), int(str(window["width"]))
    for lane, busy in zip(GOLDEN["lanes"], window["busy"], strict=True):  # type: ignore[call-overload]
        for category in range(GOLDEN["categories"]):
            covered: set[int] = set()
            for begin, length, kind in zip(lane["start"], lane["duration"], lane["category"], strict=True):
                if kind == category:
                    covered.update(range(max(begin, start), min(begin + length, end)))
            assert busy[category] == len(covered)
    # The columns add up to the window.
    total = np.array(window["density"]).sum(axis=2) * ((end - start) / width)
    np.testing.assert_allclose(np.array(window["busy"]), total, atol=1e-6)


def test_longest_come_first() -> None:
    """A short interval is drawn over a long one."""
    lane = Intervals(np.array([0, 10, 20]), np.array([100, 5, 40]), np.zeros(3, np.int64))

    assert [0, 2, 1] == Lod(lane, 1).long(0, 200, 1).tolist()
    assert [0, 2] == Lod(lane, 1).long(0, 200, 6).tolist()


def test_an_empty_lane_is_idle() -> None:
    """No interval, no share, nothing to draw."""
    nothing = np.zeros(0, np.int64)
    lod = Lod(Intervals(nothing, nothing, nothing), 2)

    assert not lod.density(0, 10, 5).any()
    assert not len(lod.long(0, 10, 0))
