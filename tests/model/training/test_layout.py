"""Degrees of parallelism, and activations in flight as run.json has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import bubble_share, held_activations, micro_batches_in_flight, micro_batches_needed
from dptrace.model.training.step import groups

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


# Bubbles and activations in flight.


def test_the_guides_bubbles() -> None:
    """Guide, sections 10.1, 10.2 and 10.6: 75 % with one micro-batch, 43 % with four, 18 % with 32 in eight stages."""
    assert 0.75 == bubble_share("gpipe", 4, 1)
    assert pytest.approx(0.43, abs=0.005) == bubble_share("gpipe", 4, 4)
    assert pytest.approx(0.82, abs=0.005) == 1 - (bubble_share("1f1b", 8, 32) or 0)
    assert pytest.approx(3 / (4 * 2 + 3)) == bubble_share("interleaved", 4, 4, 2)


def test_four_micro_batches_for_each_stage_are_no_target_of_ten_percent() -> None:
    """Guide, sections 10.8 and 12.5: 4·p micro-batches leave up to 20 %; below 10 % needs 9·(p-1) of them."""
    assert 0.15 < (bubble_share("1f1b", 8, 32) or 0) < 0.2
    assert (27, 63) == (micro_batches_needed("1f1b", 4, 0.1), micro_batches_needed("1f1b", 8, 0.1))


def test_what_a_stage_keeps() -> None:
    """Guide, section 10.3: GPipe keeps all micro-batches, 1F1B one for each stage; interleaved some more than that."""
    assert (32, 4) == (micro_batches_in_flight("gpipe", 4, 32), micro_batches_in_flight("1f1b", 4, 32))
    assert 4 + 3 / 2 == micro_batches_in_flight("interleaved", 4, 32, 2)
    assert 2 == micro_batches_in_flight("1f1b", 4, 2)
    assert 1 == micro_batches_in_flight("gpipe", 1, 8)


@given(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]), st.integers(2, 64), st.floats(0.02, 0.5))
def test_no_fewer_micro_batches_suffice(schedule: str, stages: int, bubble: float) -> None:
    """With the number needed the bubble is at most the goal, with one less it is more."""
    needed = micro_batches_needed(schedule, stages, bubble, 2)

    assert (bubble_share(schedule, stages, needed, 2) or 0) <= bubble * (1 + 1e-6)
    assert needed == 1 or (bubble_share(schedule, stages, needed - 1, 2) or 0) > bubble * (1 - 1e-6)


def test_experts_are_spread_over_gpus_that_split_layers() -> None:
    """Megatron Bridge's layout of Qwen3-235B on 256 H100s: 32 GPUs of a stage hold 4 of the 128 experts each, whole."""
    told: dict[str, Any] = {"model": "qwen3-235b-a22b", "gpus": 256, "strategy": "3d", "tp": 2, "pp": 8, "ep": 32}
    one = Description(**told, expert_tp=1, zero=1, schedule="interleaved", virtual_stages=4, batch=2048)
    layout = one.layout("3d")
    experts = groups(one.plan(layout, 2048, 1, "none"))[1]

    assert (16, 1, 1, 1) == (layout.replicas, layout.expert_split, layout.expert_replicas, layout.expert_shards)
    assert experts.parameters == pytest.approx(94 / 8 * 128 / 32 * 3 * 4096 * 1536)
    with pytest.raises(UsageError, match="--expert-tp 1"):
        Description(**told).layout("3d")
    with pytest.raises(UsageError, match="must divide the 2 GPUs"):
        Description(**told, expert_tp=4).layout("3d")
