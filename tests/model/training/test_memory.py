"""Activations: the published formulas, and what torch keeps of dptrace's own models."""

from __future__ import annotations

from typing import Any

import pytest

import dptrace
from dptrace.commands.recorded_plan import trainer_shape
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import Layout
from dptrace.model.training.memory import (
    ActivationPlan,
    GpuMemory,
    ddp_wall,
    end_bytes,
    gpus_for_state,
    layer_bytes,
    model_activation_bytes,
    stage_memories,
    start_bytes,
    state_bytes,
)
from dptrace.model.training.shape import decoder_shape, perceptron
from dptrace.record.options.modes import WIDTHS

GPT3 = decoder_shape(96, 12_288, heads=96)
SBH = 2048 * 12_288


def gpu_memory(*args: Any) -> GpuMemory:
    """Return what the fullest GPU holds."""
    return max(stage_memories(*args), key=lambda memory: memory.total)


def test_the_guides_activations_of_gpt3() -> None:
    """Guide, section 1.2: 275 GB for a sample, which is sbh·(34 + 5as/h) in 96 layers."""
    assert 275 == round(model_activation_bytes(GPT3, 1, ActivationPlan()) / 1e9)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (ActivationPlan(), 34 + 80),
        (ActivationPlan(tensor=8), 10 + 24 / 8 + 80 / 8),
        (ActivationPlan(tensor=8, sequence=True), 34 / 8 + 80 / 8),
        (ActivationPlan(recompute="selective", tensor=8, sequence=True), 34 / 8),
        (ActivationPlan(flash=True), 34),
        (ActivationPlan(recompute="full"), 2),
        (ActivationPlan(recompute="full", tensor=8, sequence=True), 2 / 8),
    ],
)
def test_the_published_table(plan: ActivationPlan, expected: float) -> None:
    """Arxiv 2205.05198, table 2: a layer's bytes over sbh, with and without tensor and sequence parallelism."""
    assert pytest.approx(expected) == layer_bytes(GPT3, 1, plan) / SBH


def test_both_ends() -> None:
    """Arxiv 2205.05198, section 4.3: sbh of the embedding's mask, and 4sbh·(1 + v/h) of the head."""
    plan = ActivationPlan()

    assert SBH == start_bytes(GPT3, 1, plan)
    assert pytest.approx(4 * SBH * (1 + 51_200 / 12_288)) == end_bytes(GPT3, 1, plan)


def kept_by_torch(model: str, batch: int) -> int:
    """Return the bytes that torch keeps for backward, without the parameters; what several share counts once."""
    torch = pytest.importorskip("torch")
    from torch.nn.functional import cross_entropy

    from dptrace.trainers.parts import models

    built = models.build_gpt(model) if model in models.SIZES else models.build_mlp(model)
    data = models.Text(model, 0) if model in models.SIZES else models.Images(0)
    x, y = (part.clone() for part in data[0:batch])
    parameters = {parameter.untyped_storage().data_ptr() for parameter in built.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage  # held, so that no later tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept_tensor: kept_tensor):
        loss = cross_entropy(built(x).flatten(0, -2), y.flatten())
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("batch", [2, 8])
def test_torch_keeps_what_the_formula_says_of_a_decoder(batch: int) -> None:
    """Within 5 %, for gpt-tiny in float32 with torch's fused attention, which keeps no table of scores."""
    shape = trainer_shape("gpt-tiny", {})
    assert shape is not None
    plan = ActivationPlan(flash=True, dropout=False, number_bytes=4)
    expected = model_activation_bytes(shape, batch, plan) + end_bytes(shape, batch, plan)

    assert pytest.approx(expected, rel=0.05) == kept_by_torch("gpt-tiny", batch)


@pytest.mark.heavy
def test_torch_keeps_what_the_formula_says_of_a_perceptron() -> None:
    """Within 1 %."""
    shape = perceptron(WIDTHS["small"])
    expected = model_activation_bytes(shape, 64, ActivationPlan(number_bytes=4))

    assert pytest.approx(expected, rel=0.01) == kept_by_torch("small", 64)


# What a GPU holds, by strategy.


SEVEN = decoder_shape(32, 4096, counted=7e9)
FULL = ActivationPlan(recompute="full")


def state_gb(strategy: str, gpus: int = 8, tensor: int | None = None, stages: int | None = None) -> float:
    layout = Description(params=7e9, gpus=gpus, tp=tensor, pp=stages).layout(strategy)
    return gpu_memory(SEVEN, state_bytes(), layout, FULL, 1, 32).state.total / 1e9


def test_the_guides_table_of_models() -> None:
    """Guide, section 1.2: bytes of state, and the A100s of 80 GB that hold them."""
    billions = (7, 13, 65, 175, 540)
    states = [16e9 * size for size in billions]

    assert [112, 208, 1040, 2800, 8640] == [state / 1e9 for state in states]
    assert [2, 3, 13, 35, 108] == [gpus_for_state(state, 80e9) for state in states]


def test_the_guides_stages_of_zero() -> None:
    """Guide, section 8.2, with 12 bytes of optimizer state: 112, 38.5, 26.25 and 14 GB for 7 billion parameters on 8.

    The guide's figure has 140, 42, 30 and 18 GB: it counts 16 bytes for the optimizer besides weights and gradients.
    """
    assert [112, 38.5, 26.25, 14] == [pytest.approx(state_gb(name)) for name in ("ddp", "zero1", "zero2", "zero3")]


def test_the_wall_of_ddp() -> None:
    """Guide, section 7.7, by its own 16 bytes: 5 billion parameters on 80 GB, 2.5 on 40 GB (it says 10 and 5)."""
    assert (5e9, 2.5e9) == (ddp_wall(80e9), ddp_wall(40e9))


def test_split_layers_and_stages_divide_the_state() -> None:
    """Tensor parallel exactly; stages by layers, and the first holds the embedding as well."""
    assert pytest.approx(14) == state_gb("tp", 8)
    assert 14 < state_gb("pp", 8, stages=8) < 14 + 16 * 51_200 * 4096 * 1.1 / 1e9
    assert state_gb("3d", 8, tensor=2, stages=2) < state_gb("pp", 8, stages=2)


def test_experts_are_spread() -> None:
    """Of Mixtral's 46.7 billion parameters, 45.1 are experts': eight GPUs hold an eighth of those each."""
    mixtral = decoder_shape(
        32, 4096, key_value_heads=8, mlp=14_336, vocabulary=32_000, family="llama", experts=8, top_k=2
    )
    held = gpu_memory(
        mixtral, state_bytes(), Description(params=7e9, gpus=8, experts=8).layout("ep"), FULL, 1
    ).state.total
    experts = 32 * 8 * 3 * 4096 * 14_336

    assert pytest.approx(16 * (mixtral.parameters - experts + experts / 8)) == held


def test_gpipe_keeps_more_than_1f1b() -> None:
    """The first of four stages keeps 32 micro-batches' activations, or 4."""
    kept = {}
    for schedule in ("gpipe", "1f1b"):
        layout = Layout(strategy="pp", data=1, stages=4, schedule=schedule)
        kept[schedule] = gpu_memory(SEVEN, state_bytes(), layout, FULL, 1, 32).activation_bytes

    assert pytest.approx(32 / 4) == kept["gpipe"] / kept["1f1b"]


# Bytes of a parameter's state.


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("bf16", "adam", (2, 2, 12)),  # guide, section 1.2: 16 bytes a parameter
        ("fp32", "adam", (4, 4, 8)),  # guide, section 7.4: 16 too
        ("amp", "adamw", (4, 4, 8)),
        ("bf16-pure", "adam", (2, 2, 4)),
        ("bf16", "sgd", (2, 2, 4)),
        ("fp32", "sgd", (4, 4, 0)),
        ("bf16", "adam-8bit", (2, 2, 6)),
        ("bf16", "lion", (2, 2, 8)),
    ],
)
def test_bytes_by_precision_and_optimizer(precision: str, optimizer: str, expected: tuple[int, ...]) -> None:
    """Weights, gradients, and what the optimizer keeps."""
    each = state_bytes(precision, optimizer)

    assert expected == (each.parameters, each.gradients, each.optimizer)


def test_gradients_in_float32_make_eighteen_bytes() -> None:
    """Guide, section 7.4: 18 bytes, where gradients are accumulated in float32 beside a float32 copy of the weights."""
    assert 18 == state_bytes("bf16", gradient_bytes=4).total
    assert 12 == state_bytes("bf16", master=False).total


def test_llama_405b_fits_where_it_ran() -> None:
    """Llama 3's report (arXiv 2407.21783, table 4): TP 8, PP 16, DP 128 on H100s of 80 GB, no layer checkpointed.

    Optimizer and gradients are sharded. What keeps it below 72 GB is that the products of the gated MLP are not kept:
    16 micro-batches in flight keep 54 GB of activations, and 82 GB with them.
    """
    meta: dict[str, Any] = {
        "params": 405.9e9, "layers": 126, "hidden": 16_384, "heads": 128, "kv_heads": 8, "mlp": 53_248, "seq": 8192,
        "vocab": 128_256, "family": "llama", "batch": 2048, "gpus": 16_384, "attention": "flash", "gradient_bytes": 4,
        "strategy": "3d", "tp": 8, "pp": 16, "zero": 2, "micro_batch": 1,
    }  # fmt: skip
    kept, fused = (dptrace.memory(**meta, recompute=kind) for kind in ("none", "selective"))

    assert (False, True) == (kept["fits"], fused["fits"])
    assert [82, 54] == [int(one["per_gpu"]["activation_bytes"] / 1e9) for one in (kept, fused)]
