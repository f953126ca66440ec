"""The parts of a step: volumes, what is hidden, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import best_of, plans
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import predict_step, targets, traffic

SEVEN = Description(params=7e9, layers=32, hidden=4096, gpus=8, link="nvlink4", recompute="full", micro_batch=1)


def plan(strategy: str, **others: object) -> Plan:
    described = replace(SEVEN, strategy=strategy, **others)
    return plans(described, described.layout(strategy))[0]


def sent_gb(strategy: str, **others: object) -> float:
    return sum(one.sent_bytes for one in traffic(plan(strategy, **others))) / 1e9


def test_every_kth_layer_is_done_again() -> None:
    """Of 32 layers every fourth: a quarter of the computation that repeats, and 4.5 messages of a layer for 6."""
    plans = [plan("tp", recompute_every=every) for every in (1, 4)]
    none = plan("tp", recompute="none")
    (all_s, quarter_s), none_s = (predict_step(one).compute_s for one in plans), predict_step(none).compute_s
    messages = [traffic(one)[0].calls for one in (*plans, none)]

    assert pytest.approx(0.25 * all_s + 0.75 * none_s) == quarter_s
    assert [6 * 32, 4.5 * 32, 4 * 32] == [calls / plans[0].micro_batches for calls in messages]


def test_volumes_by_stage() -> None:
    """Guide, sections 8.2 and 8.4: ZeRO-1 and 2 send as much as DDP, ZeRO-3 half as much again for a micro-batch.

    With sharded gradients, each micro-batch is reduced by itself: ZeRO-2 sends (8 + 1)/2 times as much for eight.
    """
    ddp = sent_gb("ddp")

    assert [pytest.approx(ddp)] * 2 == [sent_gb("zero1"), sent_gb("zero2", batch=8)]
    assert pytest.approx(1.5 * ddp) == sent_gb("fsdp", batch=8)
    assert pytest.approx(4.5 * ddp) == sent_gb("zero2", batch=64)


def test_zero_2_reduces_a_round_of_an_interleaved_pipeline_at_once() -> None:
    """Llama 3's report, section 3.3.2: 16 micro-batches in four stages are reduced four times, 1F1B's one by one.

    Until then a GPU holds the gradients of one of its two virtual stages: two bytes for each parameter of it.
    """
    described = replace(SEVEN, gpus=16, strategy="pp", pp=4, zero=2, batch=64)
    plain, rounds = (
        plans(one, one.layout("pp"))[0]
        for one in (described, replace(described, schedule="interleaved", virtual_stages=2))
    )
    calls = [next(one.calls for one in traffic(plan) if one.what == "gradients") for plan in (plain, rounds)]

    assert 16 / 4 == calls[0] / calls[1]
    assert [0, plain.memory.state.parameters / 2] == pytest.approx(
        [one.memory.gathered_bytes for one in (plain, rounds)], rel=0.01
    )


def test_the_guides_tensor_parallel_layer() -> None:
    """Guide, section 9.5: four all-reduces of 50.3 MB in a layer of GPT-3 on 8 GPUs: 352 MB (it says 175)."""
    described = Description(
        params=175e9, layers=96, hidden=12_288, gpus=8, batch=1, micro_batch=1, recompute="none", strategy="tp"
    )
    layout = replace(described.layout("tp"), sequence=False)
    (one,) = traffic(plans(described, layout)[0])

    assert (4 * 96, 50_331_648) == (one.calls, one.bytes)
    assert pytest.approx(352.3, abs=0.1) == one.sent_bytes / 96 / 1e6


def test_the_guides_pipeline_messages() -> None:
    """Guide, section 10.6: 32 micro-batches of 16 samples through 8 stages: 240.5 GB over all seven boundaries."""
    described = Description(
        layers=96, hidden=8192, gpus=8, strategy="pp", pp=8, batch=512, micro_batch=16, recompute="full"
    )
    (one,) = traffic(plans(described, described.layout("pp"))[0])

    assert pytest.approx(240.5, abs=0.1) == 7 * one.sent_bytes / 1e9


def test_the_guides_tokens_to_experts() -> None:
    """Guide, section 11.5: dispatch and combine, forward and backward: 4·BSH·(E-1)/E for each expert of a token."""
    described = Description(
        layers=2, hidden=1024, seq=512, gpus=8, experts=8, top_k=1, strategy="ep", batch=8, recompute="none"
    )
    tokens = next(one for one in traffic(plans(described, described.layout("ep"))[0]) if "tokens" in one.what)

    assert pytest.approx(2 * 4 * 512 * 1024 * 2 * 7 / 8) == tokens.sent_bytes


@pytest.mark.heavy
@settings(max_examples=60)
@given(
    st.sampled_from(["ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "3d"]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from(["nvlink4,ib-ndr", "pcie4,eth-25"]),
    st.sampled_from([1, 4]),
)
def test_the_parts_add_up(strategy: str, gpus: int, link: str, micro_batch: int) -> None:
    """The step is its parts; without overlap it is longer, and no overlap makes it shorter than its ideal."""
    step = predict_step(plan(strategy, gpus=gpus, link=link, micro_batch=micro_batch))

    parts = step.compute_s + step.bubble_s + step.optimizer_s + step.exposed_s
    assert pytest.approx(step.step_s) == parts
    assert 0 <= step.exposed_s <= step.communication_s * (1 + 1e-9)
    assert step.ideal_s * (1 - 1e-9) <= step.step_s <= step.serial_s * (1 + 1e-9)
    assert 0 < step.mfu < 1


def test_targets() -> None:
    """Guide, section 12.5: MFU above 40 %, bubble below 10 %, overlap above 80 %."""
    step = predict_step(plan("pp", pp=8, batch=8))
    found = {target.name: target.met for target in targets(step)}

    assert {"mfu": False, "bubble": False, "overlap": False} == found


def test_recomputation_is_used_where_memory_needs_it() -> None:
    """A plan recomputes only where it does not fit otherwise; a smaller GPU recomputes more."""
    large, small = (
        best_of(plans(described, described.layout("fsdp"))).plan
        for described in (Description(params=7e9, gpus=64, batch=64, gpu_memory=memory) for memory in (80e9, 12e9))
    )

    assert "none" == large.recompute
    assert small.recompute in ("half", "full")


def test_unequal_stages_cost_time() -> None:
    """Forty layers in sixteen stages: the longest has three, and the pipeline takes 1.2 times as long as with 2.5."""
    described = Description(
        layers=40, hidden=4096, gpus=16, strategy="pp", batch=64, micro_batch=1, recompute="none", mfu=0.5
    )
    uneven, even = (
        predict_step(plans(described, replace(described.layout("pp"), stages=stages, data=16 // stages))[0])
        for stages in (16, 8)
    )

    assert pytest.approx(1.2) == uneven.compute_s / even.compute_s
