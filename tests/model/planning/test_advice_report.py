"""Advice on a description: the answer, the runners-up, and the checklists with what each item gains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dptrace.model.planning.checks import ITEMS
from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import advice_report, memory_report, predict_report

SEVENTY = Description(
    params=70e9, layers=80, hidden=8192, kv_heads=8, mlp=28_672, family="llama", seq=4096, batch=512, gpus=64
)
PLAN: dict[str, Any] = {"params": 7e9, "gpus": 8, "batch": 64, "strategy": "ddp", "micro_batch": 1, "recompute": "none"}


@pytest.fixture(scope="module")
def seventy() -> dict[str, Any]:
    return advice_report(SEVENTY)


def items(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in content["checks"]}


def items_of(**described: Any) -> dict[str, dict[str, Any]]:
    return items(advice_report(Description(**described)))


@pytest.mark.heavy
def test_equal_plans_are_named(seventy: dict[str, Any]) -> None:
    """Plans within the prediction's error are equal; the simplest of them has the fewest kinds of parallelism."""
    steps = {row["label"]: row["step_ns"] for row in seventy["candidates"] if row["fits"]}

    assert all(steps[name] <= 1.05 * seventy["chosen"]["step_ns"] for name in seventy["tied"])
    assert "DDP ×4" == advice_report(Description(params=50e6, gpus=4, batch=4096))["simplest"]


@pytest.mark.heavy
def test_the_trees_plan_is_compared_with_the_fastest(seventy: dict[str, Any]) -> None:
    """The guide's TP 8 × PP 2 to 4 × FSDP fits, and is slower by the ratio of the steps."""
    tree = seventy["tree"]

    assert tree["label"].startswith("TP 8 × PP")
    assert tree["fits"]
    assert tree["slower"] > 0.05


@pytest.mark.heavy
def test_a_plan_of_your_own() -> None:
    """With a strategy, the checklists are about it, and the best plan is one of their items."""
    content = advice_report(Description(**PLAN))
    own = memory_report(Description(**PLAN))

    assert "DDP ×8" == content["plan"]["label"]
    assert own["per_gpu_bytes"] == content["plan"]["per_gpu_bytes"]
    assert items(content)["strategy"]["applies"]
    assert content["chosen"]["label"] in items(content)["strategy"]["what"]


@pytest.mark.heavy
def test_every_item_is_answered_with_its_source() -> None:
    """Each item of the checklists has a status, numbers, and where the documents have it."""
    found = items_of(**PLAN)

    assert len(ITEMS) - 7 <= len(found)  # those about pipelines, experts, tensor parallelism and FSDP are left out
    for one in found.values():
        assert one["status"] in ("apply", "keep", "skip")
        assert one["applies"] is (one["status"] == "apply")
        assert one["reason"]
        assert one["source"]
        assert one["do"]


GAINS: dict[str, dict[str, Any]] = {
    "larger-batch": {"batch": 128},
    "accumulate": {"batch": 256},
    "mixed-precision": {"precision": "fp8"},
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", GAINS)
def test_a_gain_is_the_difference_of_two_predictions(name: str) -> None:
    """The same numbers come from dptrace predict with and without the change, for as many samples."""
    changed = {**PLAN, "gpus": 8, "link": "pcie4", "params": 1e9, **GAINS[name]}
    before = predict_report(Description(**{**PLAN, "link": "pcie4", "params": 1e9}))
    after = predict_report(Description(**changed))
    same = after["step_s"] * before["batch"] / after["batch"]
    gain = items_of(**{**PLAN, "link": "pcie4", "params": 1e9})[name]["gain_ns"] / 1e9

    if name == "accumulate":
        assert pytest.approx(before["step_s"] - same, rel=1e-3) == gain
    else:  # which may take larger micro-batches, too
        assert gain >= before["step_s"] - same - 1e-9


@pytest.mark.heavy
def test_memory_gains_are_differences_of_memory() -> None:
    """Sharding the optimizer of 7 billion parameters over 8 GPUs saves 7/8 of 84 GB; a copy of gradients is 14 GB."""
    found = items_of(**PLAN)

    assert 73_500_000_000 == found["shard-optimizer"]["gain_bytes"]
    assert 14_000_000_000 == found["gradient_as_bucket_view"]["gain_bytes"]
    assert found["checkpoint-activations"]["applies"]
    assert found["checkpoint-activations"]["gain_ns"] < 0 < found["checkpoint-activations"]["gain_bytes"]


@pytest.mark.heavy
def test_compression_pays_over_slow_links_only() -> None:
    """Guide, 7.5: half the bytes gain over Ethernet; over NVLink, compressing takes longer than it saves."""
    slow = items_of(params=1e9, gpus=16, link="pcie4,eth-10", batch=16, strategy="ddp")["compress"]
    fast = items_of(params=1e9, gpus=8, batch=64, strategy="ddp")["compress"]

    assert slow["applies"]
    assert not fast["applies"]
    assert fast["gain_ns"] < 0


@pytest.mark.heavy
def test_a_pipeline_with_few_micro_batches() -> None:
    """Guide, 10.8: 8 stages with 8 micro-batches idle for almost half of the step; more of them gain most."""
    found = items_of(params=7e9, gpus=8, strategy="pp", pp=8, batch=8, micro_batch=1)

    assert found["micro-batches"]["applies"]
    assert found["interleaved"]["applies"]
    assert found["micro-batches"]["gain_share"] > found["interleaved"]["gain_share"] > 0.1


@pytest.mark.heavy
def test_the_search_takes_a_moment() -> None:
    """1,024 GPUs, with all combinations, within a fraction of a second of CPU time, so that it can be asked often."""
    import time

    began = time.process_time()
    content = advice_report(msgspec.structs.replace(SEVENTY, gpus=1024, batch=4096))

    assert content["tried"] > 100
    assert time.process_time() - began < 2
