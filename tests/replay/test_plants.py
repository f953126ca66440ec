"""Delays of known size, planted in trainings by real processes, come back with their size and place."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plants import Delay, Plant, answer, record

PLANTS = {
    "forward": (Plant("ddp", 2, (Delay(1, "forward", 120),)), [1]),
    "opposed": (Plant("ddp", 2, (Delay(0, "forward", 120), Delay(1, "backward", 90))), [0]),
}


@pytest.mark.spawn
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_delay_comes_back(name: str, tmp_path: Path) -> None:
    """What no straggler gains is what the steps without the delays show, on whatever rank; cores may be busy."""
    plant, ranks = PLANTS[name]
    record(plant, tmp_path)
    said = answer(tmp_path)

    assert said["truth"] == pytest.approx(said["saved"], rel=0.15)
    assert ranks == said["ranks"]
