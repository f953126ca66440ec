"""No plan that can't run: every plan that is listed passes a check that knows nothing of the search."""

from __future__ import annotations

import itertools
import json
import random
import shlex
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.search import Candidate, remedies, search

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


def too_large(seed: int) -> Description:
    """Return a random description of which often nothing fits."""
    pick = random.Random(seed)
    options: dict[str, Any] = {
        "strategy": pick.choice((None, "ddp", "zero1", "fsdp", "hsdp", "tp", "pp", "3d")),
        "gpu": pick.choice(("h100", "a100-40", "rtx4090", "mi300a", "gb200")),
        "micro_batch": pick.choice((None, None, 8)),
        "recompute": pick.choice((None, "none", "selective")),
        "zero": pick.choice((None, None, None, 3)),
        "seq": pick.choice((2048, 8192)),
        "cpu_offload": pick.random() < 0.1,
    }
    return Description(
        params=pick.choice((7e9, 30e9, 70e9, 400e9)), gpus=pick.choice((1, 2, 8, 16)), batch=128, **options
    )


@pytest.mark.slow
def test_what_is_said_to_fit_is_accepted_and_fits() -> None:
    """Each option that is named where nothing fits, added to the same command: it is accepted, and its plan fits."""
    tried, kinds, wrong = 0, set(), []
    for seed in itertools.count():
        asked = too_large(seed)
        with suppress(UsageError):
            if search(asked)[0].fits:
                continue
            tried += 1
            for option, best in remedies(asked).items():
                added = shlex.split(option)
                without = "without" in added
                changed = replace(asked, strategy=None) if without else asked
                for name, value in options_of(added):
                    changed = replace(changed, **{name: value})
                kinds |= {word for word in added if word.startswith("--")}
                found = search(changed)[0]
                if not found.fits or found.plan != best.plan or found.plan.offload != changed.cpu_offload:
                    wrong.append(f"{seed}: {option}")
        if tried == 30:
            break

    assert not wrong
    assert {"--cpu-offload", "--strategy", "--gpus", "--recompute", "--attention"} <= kinds


def options_of(words: list[str]) -> list[tuple[str, Any]]:
    """Read options as parts of a description."""
    found = []
    for word, value in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--") and word != "--strategy":
            text: Any = int(value) if value.isdigit() else value
            found.append((word[2:].replace("-", "_"), value.startswith(("--", "without")) or text))
    return found


@pytest.mark.heavy
def test_the_command_line_takes_what_is_said_to_fit() -> None:
    """Of a plan that holds too much: each option is appended to the same words."""
    line = "predict --params 30e9 --gpus 8 --batch 64 --micro-batch 8 --recompute none --strategy "
    for strategy in ("ddp", "fsdp"):
        for row in answered(line + strategy)["remedies"]:
            words, _, left_out = row["option"].partition("without --strategy")
            more = (
                line.removesuffix("--strategy ") if row["option"] != words else line + strategy
            ) + f" {words} {left_out}"
            content = answered(more)
            assert content["fits"]
            assert content["per_gpu_bytes"] == row["per_gpu_bytes"] <= content["usable_bytes"]


@pytest.mark.heavy
def test_where_nothing_else_helps_one_change_is_tried_with_more_gpus() -> None:
    """Two million tokens a sample: neither FlashAttention alone nor 32 GPUs alone hold them."""
    asked = Description(layers=2, hidden=4096, family="llama", seq=1 << 21, gpus=1, micro_batch=1, batch=32,
                        recompute="full")  # fmt: skip
    found = remedies(asked)

    assert ["--gpus 16 --attention flash"] == list(found)
    assert all(one.fits for one in found.values())


def answered(line: str) -> dict[str, Any]:
    """Return what a command line answers as JSON."""
    done = CliRunner().invoke(cli, [*shlex.split(line), "--json", "-q"])
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.mark.heavy
def test_a_change_that_does_not_make_it_fit_says_so() -> None:
    """Of a plan that does not fit, each gain of the checklist frees memory, and says what is still too much."""
    content = dptrace.advise(params=30e9, gpus=8, strategy="ddp")
    over = content["plan"]["over_bytes"]
    applied = [one for one in content["checks"] if one["applies"]]

    assert over > 0
    assert applied
    for one in applied:
        assert one["gain_bytes"] > 0
        assert one["reason"].endswith("then it fits") == (one["gain_bytes"] >= over)


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
