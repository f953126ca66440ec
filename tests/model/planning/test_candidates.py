"""The ways to spread a training: all combinations, each with the plan that ``dptrace predict`` finds for it."""

from __future__ import annotations

import shlex

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import advice_report, predict_report
from dptrace.model.planning.search import family, search, shortlist

SEVENTY = Description(
    params=70e9, layers=80, hidden=8192, kv_heads=8, mlp=28_672, family="llama", seq=4096, batch=512, gpus=64
)


def test_combinations_are_searched_and_ranked() -> None:
    """Data, tensor and pipeline parallelism, sharded or not, in groups or not: what fits comes first, fastest first."""
    found = search(SEVENTY)
    fitting = [one.step.step_s for one in found if one.fits]
    over = [one.over_bytes for one in found if not one.fits]
    kinds = {family(one.plan.layout) for one in found}

    assert sorted(fitting) == fitting
    assert sorted(over) == over
    assert min(fitting) == found[0].step.step_s
    assert [True] * len(fitting) + [False] * len(over) == [one.fits for one in found]
    assert {(False, False, False, "HSDP"), (True, False, False, "FSDP"), (True, True, False, "ZeRO-1")} <= kinds
    assert len({family(one.plan.layout) for one in shortlist(found)}) == len(shortlist(found)) == len(kinds)


def test_every_layout_divides_the_cluster() -> None:
    """Degrees multiply to the GPUs; layers are split within a node only, and shards are parts of a data group."""
    for one in search(SEVENTY):
        layout = one.plan.layout

        assert 64 == layout.data * layout.tensor * layout.stages
        assert 8 % layout.tensor == 0
        assert layout.data % layout.shards == 0
        assert 512 == layout.data * one.plan.micro_batch * one.plan.micro_batches
        assert layout.stages * layout.virtual_stages <= 80


@pytest.mark.heavy
def test_a_candidate_is_what_predict_computes() -> None:
    """The command of a candidate gives the same step and the same memory."""
    for row in advice_report(SEVENTY)["candidates"]:
        if row["command"] is None:
            continue
        words = shlex.split(row["command"])[2:]
        given_options = dict(zip(words[::2], words[1::2], strict=True))
        numbers = {name[2:].replace("-", "_"): value for name, value in given_options.items()}
        predicted = predict_report(msgspec.convert(numbers, Description, strict=False))

        assert pytest.approx(row["step_ns"] / 1e9, rel=1e-6) == predicted["step_s"], row["label"]
        assert row["per_gpu_bytes"] == predicted["per_gpu_bytes"]


def test_given_degrees_are_kept() -> None:
    """Without a strategy, --tp, --pp, --zero, --micro-batch and --recompute narrow the search."""
    for one in search(msgspec.structs.replace(SEVENTY, tp=4, pp=4, zero=1, micro_batch=1, recompute="full")):
        layout = one.plan.layout

        assert (4, 4, 4, 1) == (layout.tensor, layout.stages, layout.data, layout.zero)
        assert (1, "full") == (one.plan.micro_batch, one.plan.recompute)


def test_nothing_that_divides_is_said() -> None:
    """A batch that no number of data-parallel GPUs divides is refused; model parallelism may still take it."""
    with pytest.raises(UsageError, match="--batch 3"):
        search(Description(params=7e9, gpus=8, batch=3, tp=1, pp=1))
    assert {1} == {one.plan.layout.data for one in search(Description(params=7e9, gpus=8, batch=3))}


@pytest.mark.heavy
def test_experts_are_spread() -> None:
    """Of a mixture of experts, expert parallelism is tried with each degree that divides both."""
    described = Description(layers=32, hidden=4096, mlp=14_336, experts=8, gpus=8, family="llama", batch=64)
    degrees = {one.plan.layout.expert for one in search(described)}

    assert {1, 2, 4, 8} == degrees
    assert any("EP 8" in one.label for one in search(described))


@settings(max_examples=8)
@given(gpus=st.sampled_from([1, 2, 3, 6, 8, 12]), params=st.sampled_from([350e6, 7e9]), each=st.integers(1, 6))
def test_any_cluster_has_an_answer(gpus: int, params: float, each: int) -> None:
    """Each number of GPUs has candidates whose memory and step are positive, and one that is the best."""
    found = search(Description(params=params, gpus=gpus, batch=gpus * each, seq=512))

    assert found
    assert all(one.memory_bytes > 0 and one.step.step_s > 0 for one in found)
    assert all(one.plan.layout.gpus == gpus for one in found)
