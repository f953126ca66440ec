"""What holds for every training: bytes are conserved, more work takes longer, nothing is faster than its parts.

Random descriptions, with mixtures of experts and context parallelism; each property is checked on layouts of theirs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import GPUS
from dptrace.model.planning.describe import MODELS, Description
from dptrace.model.planning.search import layouts
from dptrace.model.training.layout import can_be_cut
from dptrace.model.training.memory import PRECISIONS
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import groups, predict_step, traffic

pytestmark = pytest.mark.heavy
COUNT = 500


def described(pick: random.Random) -> Description:
    """Return a random description: of a known model, of a decoder, or of a mixture of experts."""
    gpu = pick.choice([name for name, gpu in GPUS.items() if "bf16" in gpu.peaks.tflops])
    gpus = pick.choice((1, 2, 4, 8, 16, 24, 64, 96, 256, 1024))
    precisions = [name for name in ("bf16", "fp8") if name in GPUS[gpu].peaks.tflops]
    options: dict[str, Any] = {
        "gpus": gpus, "gpu": gpu, "batch": gpus * pick.choice((1, 4, 12)), "precision": pick.choice(precisions),
        "seq": pick.choice((1024, 4096, 32_768)), "attention": pick.choice(("standard", "flash")),
        "cp": pick.choice((None, 1, 2, 4)), "overlapped": pick.choice(("none", "tp", "ep", "all")),
        "recompute": pick.choice(("none", "selective", "half", "full")),
        "cpu_offload": bool(GPUS[gpu].host) and pick.random() < 0.2,
    }  # fmt: skip
    kind = pick.random()
    if kind < 0.3:
        return Description(model=pick.choice(list(MODELS)), **options)
    heads = pick.choice((8, 16, 32))
    shape: dict[str, Any] = {
        "layers": pick.choice((12, 24, 36)),
        "hidden": heads * 128,
        "heads": heads,
        "kv_heads": pick.choice((4, heads)),
    }
    if kind < 0.7:
        experts = pick.choice((4, 8, 32))
        shape |= {"experts": experts, "top_k": pick.choice((1, 2, 4)), "shared_experts": pick.choice((0, 1))}
        shape |= {"expert_tp": pick.choice((None, None, 1))}
        shape |= {"dense_layers": pick.choice((0, 2)), "mlp": pick.choice((512, 2048)), "dense_mlp": 4096}
    return Description(family=pick.choice(("gpt", "llama")), **options, **shape)


@lru_cache(maxsize=1)
def plans() -> tuple[Plan, ...]:
    """Return one plan, which can run, of each of the descriptions."""
    pick = random.Random(46)
    found: list[Plan] = []
    while len(found) < COUNT:
        one = described(pick)
        try:
            one.check()
            possible = list(layouts(one))
            layout = pick.choice(possible)
            each = one.samples // layout.data
            size = pick.choice([size for size in (1, 2, 4) if each and each % size == 0])
            plan = one.plan(layout, one.samples, size, one.recompute or "none")
            plan.check()
        except (UsageError, IndexError):
            continue
        found.append(plan)
    return tuple(found)


def sums(plan: Plan, kind: str, what: str) -> float:
    """Return the bytes of the whole tensors of some messages in a step."""
    return sum(one.bytes * one.calls for one in traffic(plan) if one.kind == kind and one.what.startswith(what))


def test_the_descriptions_are_of_all_kinds() -> None:
    """Mixtures, context parallelism, offloading, pipelines, and all kinds of sharding."""
    found = plans()

    assert sum(one.shape.experts > 1 for one in found) > 100
    assert sum(one.layout.context > 1 for one in found) > 50
    assert sum(one.layout.expert > 1 for one in found) > 30
    assert sum(one.layout.expert_split < one.layout.tensor for one in found) > 10
    assert sum(one.offload for one in found) > 10
    assert {0, 1, 2, 3} == {one.layout.zero for one in found}
    assert {"1f1b", "interleaved", "zero-bubble"} <= {one.layout.schedule for one in found}


def test_what_is_held_in_part_is_gathered_and_reduced() -> None:
    """Bytes of state × passes: weights twice in each micro-batch and gradients once, of all that is sharded.

    A stage of a pipeline stays gathered between micro-batches, which memory holds: one of each in a step.
    """
    for plan in plans():
        shared = [group for group in groups(plan) if group.shards > 1]
        weights = sum(group.parameters for group in shared) * plan.state.parameters
        gradients = sum(group.parameters for group in shared) * plan.state.gradients
        if plan.layout.zero == 3:
            staged = plan.layout.stages > 1
            passes = (1, 1) if staged else (2 * plan.micro_batches, plan.micro_batches)
            assert sums(plan, "all_gather", "parameters") == pytest.approx(passes[0] * weights)
            assert sums(plan, "reduce_scatter", "gradients") == pytest.approx(passes[1] * gradients)
            assert not staged or not shared or max(one.gathered_bytes for one in plan.held) >= weights
        elif plan.layout.zero:
            rounds = plan.micro_batches // plan.layout.reduced_together if plan.layout.zero == 2 else 1
            assert sums(plan, "all_gather", "updated parameters") == pytest.approx(weights)
            assert sums(plan, "reduce_scatter", "gradients") == pytest.approx(max(1, rounds) * gradients)
        else:
            spread = [group for group in groups(plan) if group.replicas > 1]
            size = sum(group.parameters for group in spread) * plan.state.gradients
            assert sums(plan, "all_reduce", "gradients") == pytest.approx(size)


def test_what_is_in_memory_is_in_traffic() -> None:
    """The parameters by groups are those that memory counts; all GPUs together hold each expert and each layer once."""
    for plan in plans():
        layout, shape = plan.layout, plan.shape
        found = groups(plan)
        apart = layout.expert_split * layout.expert
        copies = [layout.stages * (apart if group.of else layout.tensor) for group in found]
        whole = sum(group.parameters * times for group, times in zip(found, copies, strict=True))
        assert whole == pytest.approx(shape.parameters)
        if layout.stages == 1:
            held = sum(group.parameters / (group.shards if layout.zero == 3 else 1) for group in found)
            assert held * plan.state.parameters == pytest.approx(plan.held[0].state.parameters)


def variants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield plans that have more to do, or less to do it with."""
    shape = plan.shape
    yield "wider MLP", replace(plan, shape=replace(shape, mlp=2 * shape.mlp, counted=None))
    yield "more layers", replace(plan, shape=replace(shape, layers=2 * shape.layers, counted=None))
    yield "larger vocabulary", replace(plan, shape=replace(shape, vocabulary=2 * shape.vocabulary, counted=None))
    yield "larger batch", replace(plan, batch=2 * plan.batch)
    if shape.experts > 1 and (2 * shape.experts) % plan.layout.expert == 0:
        yield "more experts", replace(plan, shape=replace(shape, experts=2 * shape.experts, counted=None))
        yield "more shared experts", replace(plan, shape=replace(shape, shared_experts=2, counted=None))
    slower = {"within": replace(plan.network.within, bytes_per_s=plan.network.within.bytes_per_s / 2)}
    yield "slower links", replace(plan, network=replace(plan.network, **slower))


@pytest.mark.slow
def test_more_is_never_faster() -> None:
    """More layers, experts or samples, wider products, slower links: no step gets shorter."""
    shorter = []
    for plan in plans():
        step = predict_step(plan)
        # A bucket more makes all of them smaller, and the last one is what nothing hides.
        sharded = plan.layout.zero == 3
        before = step.step_s - sum(
            one.call_s * one.rounds
            for one in step.traffic
            if one.hides == "backward" and (one.rounds == 1 or not sharded)
        )
        for name, other in variants(plan):
            if name == "more layers" and not can_be_cut(
                other.shape.layers, plan.layout.stages, plan.layout.virtual_stages
            ):
                continue
            after = predict_step(other).step_s
            # More micro-batches fill a pipeline, so a larger batch takes less than in proportion, but not less.
            if after < before * (1 - 1e-9):
                shorter.append(f"{name}: {plan.layout.name} {before:.6g} → {after:.6g}")

    assert not shorter


def test_a_job_on_several_nodes_sends_between_them() -> None:
    """A thousandth of the bandwidth between nodes makes the step longer wherever they have to exchange anything."""
    apart, same = 0, []
    for plan in plans():
        if plan.layout.gpus > plan.network.gpus_per_node:
            between = replace(plan.network.between, bytes_per_s=plan.network.between.bytes_per_s / 1000)
            slow = replace(plan, network=replace(plan.network, between=between))
            apart += 1
            same += [plan.layout.name] * (predict_step(slow).step_s <= predict_step(plan).step_s)

    assert apart > COUNT // 4
    assert not same


def test_a_step_is_between_its_parts_and_their_sum() -> None:
    """At least as if the longer of computation and communication hid the other; at most if nothing hid anything."""
    for plan in plans():
        step = predict_step(plan)
        assert step.ideal_s * (1 - 1e-9) <= step.step_s <= step.serial_s * (1 + 1e-9), plan.layout.name
        assert 0 <= step.exposed_s <= step.communication_s * (1 + 1e-9)
        assert step.overlap is None or 0 <= step.overlap <= 1
        assert 0 < step.mfu


def test_whole_experts_need_no_messages_of_tensor_parallelism() -> None:
    """Where an expert is split by fewer GPUs than a layer, half of the activations' messages are of attention alone."""
    found = 0
    for plan in plans():
        layout, shape = plan.layout, plan.shape
        if layout.expert_split == 1 < layout.tensor and plan.stage[1] and not shape.shared_experts:
            split = replace(plan, layout=replace(layout, expert_tensor=layout.tensor, expert=1))
            whole, halves = (sums(one, "all_gather", "activations") for one in (split, plan))
            assert halves == pytest.approx(whole * (1 - plan.stage[1] / plan.stage[0] / 2))
            assert not sums(plan, "all_gather", "tokens of experts")
            found += 1
    assert found > 5


def test_the_longest_stage_has_as_many_experts_as_it_can() -> None:
    """The first layers are dense, so other stages have more experts than the mean; each layer's tokens go out."""
    found = 0
    for plan in plans():
        layers, mixed = plan.stage
        most = min(layers, plan.shape.expert_layers)
        assert layers == math.ceil(plan.shape.layers / plan.layout.stages)
        assert mixed == most
        assert plan.layout.stages > 1 or mixed == plan.shape.expert_layers
        sent = [one.calls for one in traffic(plan) if one.kind == "all_to_all"]
        if sent:
            assert sent[0] % (mixed * plan.micro_batches) == pytest.approx(0, abs=1e-6) or plan.recompute == "full"
            found += mixed > plan.shape.expert_layers / plan.layout.stages
    assert found > 3


def test_offloading_is_never_faster() -> None:
    """Copies and Adam on the CPU cost time; the GPU holds less, and the host what it no longer does."""
    for plan in plans():
        if plan.layout.zero == 3 and plan.gpu.host:
            on, off = replace(plan, offload=True), replace(plan, offload=False)
            assert predict_step(on).step_s >= predict_step(off).step_s
            assert on.memory.total <= off.memory.total
            assert on.layout.stages > 1 or on.memory.host_bytes == pytest.approx(off.memory.state.total)


def test_splitting_a_sample_splits_its_activations() -> None:
    """Context parallelism: half of the tokens on each of twice the GPUs keep half, and exchange keys and values."""
    for plan in plans():
        if plan.layout.context == 1 or plan.layout.zero == 3 or plan.layout.stages > 1:
            continue
        alone = replace(plan, layout=replace(plan.layout, context=1, expert=1, shards=1, zero=0))
        split = replace(alone, layout=replace(alone.layout, context=2))
        assert split.memory.activation_bytes == pytest.approx(alone.memory.activation_bytes / 2)
        size = next(one for one in traffic(split) if one.what == "keys and values").bytes
        number = PRECISIONS[plan.precision].activation_bytes
        width = plan.shape.ring_width / plan.layout.tensor
        assert size == pytest.approx(plan.micro_batch * plan.shape.sequence / 2 * width * number)
