"""Tensor and sequence parallelism."""

from __future__ import annotations

import pytest

from dptrace.simulate.parallelism.tensor_parallel import _Split
from tests.support.explanations import explained

RANKS = pytest.mark.parametrize("ranks", range(2, 10))


@RANKS
@pytest.mark.parametrize("name", ["tp", "sp"])
def test_volume_of_a_pair_of_layers(name: str, ranks: int) -> None:
    """Guide "Distributed Training", section 9.5: half of the four all-reduces of a layer, 4·(T-1)/T·B·S·H each way."""
    cost = explained(name, ranks, 1e6).cost

    assert (4 * (ranks - 1) / ranks * 1e6,) * ranks == pytest.approx(cost.sent_bytes)


def test_one_layer_of_gpt_3_in_the_guide() -> None:
    """Guide "Distributed Training", section 9.5: B = 1, S = 2,048, H = 12,288, T = 8. By the formula it is 352 MB; the
    guide's comment says 175."""
    activation = 1 * 2048 * 12288 * 2

    assert 352.3 == pytest.approx(2 * explained("tp", 8, activation).cost.sent_bytes[0] / 1e6, abs=0.05)


@pytest.mark.parametrize(("name", "expected"), [("tp", ["AR Y", "AR dX"]), ("sp", ["AG X", "RS Y", "AG dY", "RS dX"])])
def test_collectives(name: str, expected: list[str]) -> None:
    """One all-reduce forward and one backward; sequence parallelism divides each in two."""
    work = [one for one in explained(name, 3).work if one.rank == 0 and one.lane == "communication"]

    assert expected == [one.label for one in work]


@pytest.mark.parametrize("name", ["tp", "sp"])
def test_wrong_products_are_not_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is left out raises an error."""
    monkeypatch.setattr(_Split, "sum", lambda self, result: [])

    with pytest.raises(AssertionError):
        explained(name, 2)
