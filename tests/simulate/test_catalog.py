"""The names that can be explained, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.simulate import data_parallel, tensor_parallel
from dptrace.simulate.catalog import ENTRIES, entry_named
from dptrace.simulate.explanation import links_of
from tests.support.explanations import explained


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_name_works_for_every_number_of_ranks(name: str, ranks: int) -> None:
    """Steps, a cost, and a sentence on what was compared; each step begins with what the one before it left."""
    explanation = explained(name, ranks + ranks % 2 if name == "dualpipe" else ranks)

    assert explanation.checked
    assert explanation.cost.seconds > 0
    assert [number + 1 for number in range(len(explanation.steps))] == [step.number for step in explanation.steps]
    for one, following in zip(explanation.steps, explanation.steps[1:], strict=False):
        assert one.after == following.before
    for message in explanation.messages:
        assert message.source != message.target
        assert message.bytes > 0


def test_names_are_forgiving() -> None:
    """Underscores and capitals do not matter, and a typing error gets a suggestion."""
    assert "all-to-all" == entry_named("All_To_All").name
    with pytest.raises(UsageError, match="Did you mean ring"):
        entry_named("rnig")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("ring", {"ranks": 1}, "from 2 to"),
        ("ring", {"ranks": 33}, "from 2 to"),
        ("ring", {"node_size": 0}, "must be"),
        ("ring", {"node_size": 5}, "must be"),
        ("ddp-buckets", {"layers": 25}, "--layers"),
        ("fsdp", {"layers": 13}, "--layers"),
        ("zero", {"stage": 4}, "from 1 to 3"),
        ("interleaved", {"micro_batches": 6}, "a multiple of 4"),
        ("interleaved", {"chunks": 1}, "from 2 to 8"),
        ("zero-bubble", {"micro_batches": 3}, "at least 4"),
        ("moe", {"tokens": 0}, "must be"),
        ("moe", {"top_k": 5}, "must be"),
        ("moe", {"capacity_factor": 0.0}, "must be"),
    ],
)
def test_impossible_numbers_are_refused(name: str, options: dict[str, Any], says: str) -> None:
    """The message names the option, or the number that is missing."""
    with pytest.raises(UsageError, match=says):
        explained(name, **{"ranks": 4} | options)


@pytest.mark.parametrize(
    ("name", "part", "method", "options"),
    [
        ("ddp-buckets", data_parallel._Replicas, "average", {}),
        ("fsdp", data_parallel._Sharded, "update", {}),
        *(("zero", data_parallel._Partitioned, "update", {"stage": stage}) for stage in (1, 2, 3)),
        *((name, tensor_parallel._Split, "sum", {}) for name in ("tp", "sp")),
        ("moe", tensor_parallel._Experts, "compute", {}),
    ],
)
def test_wrong_results_are_not_drawn(
    name: str, part: type, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is not averaged, a rank that forgets to update, a sum that is left out: each raises an error."""
    monkeypatch.setattr(part, method, lambda *arguments: [])

    with pytest.raises(AssertionError):
        explained(name, 2, **options)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("name", "times", "options"),
    [
        ("ddp-buckets", 2, {"bucket_bytes": 10 * 2**20}),
        ("ddp-buckets", 2, {"bucket_bytes": 2**30}),
        ("fsdp", 3, {}),
        ("zero", 2, {"stage": 1}),
        ("zero", 2, {"stage": 2}),
        ("zero", 3, {"stage": 3}),
        ("tp", 4, {}),
        ("sp", 4, {}),
    ],
)
def test_volumes_are_those_of_the_guide(name: str, times: int, options: dict[str, Any], ranks: int) -> None:
    """Guide "Distributed Training", sections 8.4 and 9.5: 2N, and 3N with sharded parameters; half of the four
    all-reduces of a layer for a pair of layers."""
    cost = explained(name, ranks, 60e6, **options).cost

    assert (times * (ranks - 1) / ranks * 60e6,) * ranks == pytest.approx(cost.sent_bytes)
    if name == "ddp-buckets":
        assert cost.figures["buckets"] * 2 * (ranks - 1) == cost.messages


def test_links_have_names_or_figures() -> None:
    """One link or two, or alpha in µs and bandwidth in GB/s."""
    within, between = links_of("nvlink4,ib-ndr", None, None)
    typed, same = links_of(None, 5.0, 12.5)

    assert (450e9, 50e9) == (within.bytes_per_s, between.bytes_per_s)
    assert (5e-6, 12.5e9) == pytest.approx((typed.alpha_s, typed.bytes_per_s))
    assert typed == same
    for wrong in (("warp", None, None), ("a,b,c", None, None), ("pcie4", 1.0, 1.0), (None, 1.0, None)):
        with pytest.raises(UsageError, match=r"--link|--alpha"):
            links_of(*wrong)
