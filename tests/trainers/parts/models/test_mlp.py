"""The multi-layer perceptrons."""

from __future__ import annotations

import pytest

from dptrace.record.options.models import MODELS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("model", "parameters", "millions"),
    [("small", 1_462_538, 1.5), ("medium", 8_432_138, 8.4), ("large", 35_211_786, 35.2), ("xlarge", 51_993_098, 52.0)],
)
def test_the_models_have_the_sizes_that_their_help_shows(model: str, parameters: int, millions: float) -> None:
    """The four MLPs have 1.5, 8.4, 35.2 and 52.0 million parameters."""
    from dptrace.trainers.parts.models import mlp

    # On the meta device, so that 52 million numbers need no memory.
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in mlp.build(model).parameters())

    assert parameters == count
    assert millions == round(count / 1e6, 1)
    assert f"{millions} million" in MODELS[model].description
