"""No plan that can't run: every plan that is listed passes a check that knows nothing of the search."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from typing import Any

import pytest

import dptrace
from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import Candidate, search

MODELS = (350e6, 1.3e9, 7e9, 13e9, 70e9, 175e9, 405e9, 1e12)


def described(seed: int) -> Description:
    """Return a random description, from 1 to 100,000 GPUs."""
    pick = random.Random(seed)
    gpus = pick.choice((1, 2, 3, 6, 8, 12, 24, 32, 64, 96, 128, 256, 384, 512, 1000, 1024, 3072, 16_384, 98_304))
    options: dict[str, Any] = {
        "batch": pick.choice((None, gpus, 3 * gpus, 256, 1000, 1536, 2048)),
        "micro_batch": pick.choice((None, None, 1, 3)),
        "recompute": pick.choice((None, "full")),
        "gpus_per_node": pick.choice((8, 8, 4, 16)),
        "schedule": pick.choice((None, None, None, "1f1b", "interleaved", "zero-bubble", "gpipe")),
        "pp": pick.choice((None, None, None, 2, 4, 5)),
        "tp": pick.choice((None, None, None, 2, 8, 16)),
        "zero": pick.choice((None, None, None, 1, 3)),
        "family": pick.choice(("gpt", "llama")),
        "kv_heads": pick.choice((None, None, 4, 8)),
        "experts": pick.choice((1, 1, 1, 8)),
    }
    return Description(params=pick.choice(MODELS), gpus=gpus, seq=pick.choice((512, 2048)), **options)


def faults(one: Candidate, asked: Description) -> list[str]:
    """Return what a cluster would refuse of a plan, counted from its numbers alone."""
    layout, shape, plan = one.plan.layout, one.plan.shape, one.plan
    micro_batches = asked.samples / layout.data / plan.micro_batch
    chunks = layout.stages * layout.virtual_stages
    shared_keys = shape.key_value_heads % layout.tensor and layout.tensor % shape.key_value_heads
    rules = {
        "GPUs": layout.data * layout.tensor * layout.stages == asked.gpus,
        "shards": layout.data % layout.shards == 0,
        "experts": layout.data % layout.expert == 0 and shape.experts % layout.expert == 0,
        "integer micro-batches": micro_batches == int(micro_batches) >= 1,
        "M and P": layout.stages == 1 or micro_batches >= layout.stages,
        "interleaved": layout.schedule != "interleaved" or micro_batches % layout.stages == 0,
        "layers": chunks <= shape.layers + 2 * (layout.virtual_stages > 1),  # embedding and head may stand alone
        "heads": shape.heads % layout.tensor == 0 and not shared_keys and shape.mlp % layout.tensor == 0,
        "node": asked.tp is not None or layout.tensor <= asked.node,
        "memory": not one.fits or one.plan.memory.total <= 0.9 * plan.gpu.memory_bytes,
        "micro-batch": asked.micro_batch in (None, plan.micro_batch),
        "tp": asked.tp in (None, layout.tensor),
        "pp": asked.pp in (None, layout.stages),
        "schedule": layout.stages == 1 or asked.schedule in (None, layout.schedule),
    }
    return [f"{one.label}: {name}" for name, holds in rules.items() if not holds]


@pytest.mark.slow
@pytest.mark.heavy
def test_every_listed_plan_can_run() -> None:
    """200 random descriptions that have an answer: degrees divide GPUs, heads, batch and experts, schedules run."""
    answered, listed, found = 0, 0, []
    for seed in itertools.count():
        asked = described(seed)
        with suppress(UsageError):  # nothing divides, and the message says so
            candidates = search(asked)
            answered += 1
            listed += len(candidates)
            found += [f"{seed}: {fault}" for one in candidates for fault in faults(one, asked)]
        if answered == 200:
            break

    assert not found
    assert listed > 5000


def test_405_billion_on_16384_gpus() -> None:
    """Llama 3.1's cluster: what was listed as the fastest had one micro-batch on two interleaved stages."""
    content = dptrace.advise(
        params=405e9, layers=126, hidden=16_384, heads=128, kv_heads=8, mlp=53_248, vocab=128_256, family="llama",
        seq=8192, batch=2048, gpus=16_384, attention="flash",
    )  # fmt: skip

    for row in content["candidates"]:
        assert row["degrees"]["pp"] == 1 or row["micro_batches"] >= row["degrees"]["pp"], row["label"]


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"schedule": "interleaved", "virtual_stages": 8, "batch": 1}, "multiple of the 4 stages"),
        ({"schedule": "interleaved", "virtual_stages": 2, "batch": 6}, "multiple of the 4 stages"),
        ({"schedule": "zero-bubble", "batch": 2}, "at least as many as the 4 stages"),
    ],
)
def test_a_schedule_that_can_not_run_is_refused(options: dict[str, Any], fact: str) -> None:
    """One micro-batch on four stages leaves at least three quarters idle; its formula said 27 %."""
    with pytest.raises(UsageError, match=fact):
        dptrace.predict(params=7e9, gpus=4, strategy="pp", pp=4, micro_batch=1, **options)


def test_one_micro_batch_leaves_three_quarters_idle() -> None:
    """1F1B runs with fewer micro-batches than stages, and its formula holds there: (p-1)/(m+p-1)."""
    found = dptrace.predict(params=7e9, gpus=4, strategy="pp", pp=4, batch=1, recompute="none")

    assert found["bubble_s"] / (found["compute_s"] + found["bubble_s"]) == pytest.approx(0.75, rel=0.01)
