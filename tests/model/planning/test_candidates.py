"""The ways to spread a training: all combinations, each with the plan that ``dptrace predict`` finds for it."""

from __future__ import annotations

import msgspec
import pytest

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import family, search, shortlist

SEVENTY = Description(
    params=70e9, layers=80, hidden=8192, kv_heads=8, mlp=28_672, family="llama", seq=4096, batch=512, gpus=64
)


@pytest.mark.heavy
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
    assert {
        (False,) * 4 + ("HSDP",),
        (True, False, False, False, "FSDP"),
        (True, True, False, False, "ZeRO-1"),
    } <= kinds
    assert len({family(one.plan.layout) for one in shortlist(found)}) == len(shortlist(found)) == len(kinds)


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
