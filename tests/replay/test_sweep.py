"""What-ifs for several values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dptrace.replay.sweep import Sweep


def sweep(option: str, *pairs: tuple[float, int]) -> Sweep:
    answers = [SimpleNamespace(predicted_step_ns=step, to_dict=dict) for _, step in pairs]
    return Sweep.of(option, [value for value, _ in pairs], cast(Any, answers))


def test_the_best_value_has_the_shortest_step() -> None:
    """Of two that are equally good, it is the one with fewer messages."""
    found = sweep("bucket-cap-mb", (25, 90), (1, 80), (4, 80), (100, 95))

    assert [1, 4, 25, 100] == [point.value for point in found.points]
    assert found.best is not None
    assert 4 == found.best.value
    assert 4 == found.to_dict()["best"]


def test_no_number_of_ranks_is_best() -> None:
    """With more ranks, a step has more samples."""
    assert sweep("world-size", (2, 80), (8, 90)).best is None
