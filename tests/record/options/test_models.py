"""The models that there are."""

from __future__ import annotations

from dptrace.record.options.models import MLPS, MODELS


def test_every_model_can_be_trained_as_it_is() -> None:
    """Its batch divides over the ranks of a usual machine, and its optimizer is one that there is."""
    assert set(MLPS) <= set(MODELS)
    assert all(model.batch_size % 8 == 0 and model.optimizer in ("sgd", "adamw") for model in MODELS.values())
    assert all(model.lr > 0 and model.weight_decay >= 0 for model in MODELS.values())
