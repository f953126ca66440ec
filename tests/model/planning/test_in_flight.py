"""Activations in flight, as run.json has them."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.model.planning.in_flight import held_activations

ENTRY = {"schedule": "1f1b", "rank": 0, "ranks": 2, "stages": [0], "micro_batches": 4, "in_flight": 3}


def test_what_was_held_stands_beside_what_the_schedule_holds() -> None:
    """The first of two ranks holds two micro-batches in 1F1B; here it held three."""
    ranks = [{"rank": 6, "pipeline": ENTRY | {"in_flight_bytes": 100}}, {"rank": 7}]
    (held,) = held_activations({"ranks": ranks})

    assert (6, {"micro_batches": 3, "expected_micro_batches": 2, "bytes": 100}) == (held.rank, held.to_dict())


@pytest.mark.parametrize(
    "pipeline", [None, [], {}, ENTRY | {"stages": []}, ENTRY | {"in_flight": None}, ENTRY | {"rank": "0"}]
)
def test_what_is_no_pipeline_is_left_out(pipeline: Any) -> None:
    """Runs of other modes, and malformed run.json files."""
    assert () == held_activations({"ranks": [{"rank": 0, "pipeline": pipeline}, 3]}) == held_activations({"ranks": 1})


def test_a_schedule_without_a_formula_expects_nothing() -> None:
    """What was held is still listed, with no bytes where they were not measured."""
    (held,) = held_activations({"ranks": [{"rank": 0, "pipeline": ENTRY | {"schedule": "mine"}}]})

    assert (None, None, 3) == (held.expected, held.bytes, held.micro_batches)
