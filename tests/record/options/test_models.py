"""The table of models."""

from __future__ import annotations

from dptrace.record.options.models import MLPS, MODELS


def test_every_model_can_be_trained_as_it_is() -> None:
    """The default batch is divisible by 8 ranks, and the optimizer exists."""
    assert set(MLPS) <= set(MODELS)
    assert all(model.batch_size % 8 == 0 and model.optimizer in ("sgd", "adamw") for model in MODELS.values())
    assert all(model.lr > 0 and model.weight_decay >= 0 for model in MODELS.values())
