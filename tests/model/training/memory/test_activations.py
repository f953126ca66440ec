"""Activations: the published formulas, and what torch keeps of dptrace's own models."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.commands.planning.recording import trainer_shape
from dptrace.model.planning.recorded import perceptron_activations
from dptrace.model.training.memory.activations import (
    ActivationPlan,
    end_bytes,
    layer_bytes,
    model_activation_bytes,
    start_bytes,
)
from dptrace.model.training.shape import decoder_shape
from dptrace.record.options.models import WIDTHS

GPT3 = decoder_shape(96, 12_288, heads=96)
SBH = 2048 * 12_288


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

    from dptrace.trainers.parts.models import gpt, mlp

    built = gpt.build(model) if model in gpt.SIZES else mlp.build(model)
    data = gpt.Text(model, 0) if model in gpt.SIZES else mlp.Images(0)
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


def test_torch_keeps_what_the_formula_says_of_a_perceptron() -> None:
    """Within 1 %."""
    expected = perceptron_activations(tuple(WIDTHS["small"]), 64)

    assert pytest.approx(expected, rel=0.01) == kept_by_torch("small", 64)
