"""Meshes of tensor, pipeline and data parallel ranks."""

from __future__ import annotations

from math import gcd
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.modes import MODELS, MODES
from dptrace.record.options.validation import check_mesh


def filled(mode: str, ranks: int, **given: Any) -> tuple[Any, ...]:
    options = {"mode": mode, "model": "balanced", "tp": 2, "pp": 2, "micro_batches": None, "batch_size": 1024}
    options |= given
    check_mesh(options, ranks)
    return options["tp"], options["pp"], options["micro_batches"]


def test_what_is_not_said_is_filled_in() -> None:
    """Without another dimension all ranks share each layer; a mesh defaults to two of each."""
    assert (4, 1, None) == filled("tp", 4)
    assert (2, 1, None) == filled("tp-sp", 2, model="gpt-tiny")
    assert (2, 1, None) == filled("dp-tp", 8)
    assert (2, 2, 8) == filled("3d", 8)
    assert (1, 4, 16) == filled("3d", 8, tp=1, pp=4)


@pytest.mark.parametrize(
    ("mode", "ranks", "given", "says"),
    [
        ("tp", 3, {"model": "gpt-tiny"}, "gpt-tiny cannot be split over 3 ranks; try --gpus 1 or 2"),
        ("tp-sp", 12, {"model": "gpt-small"}, "try --gpus 1 or 2 or 4"),
        ("dp-tp", 6, {"tp": 6, "model": "small"}, "over 6 ranks; try --tp 1 or 2 or 4"),
        ("dp-tp", 3, {}, "with --tp 2 needs a multiple of 2 ranks, not 3"),
        ("dp-tp", 8, {"batch_size": 6}, "divisible by 4 .4 replicas.; try 8"),
        ("3d", 2, {}, "with --tp 2 and --pp 2 needs a multiple of 4 ranks, not 2"),
        ("3d", 8, {"batch_size": 20}, "2 replicas with 8 micro-batches each.; try 32"),
        ("3d", 4, {"micro_batches": 1}, "at least one for each of the 2 stages"),
        ("3d", 2, {"tp": 2, "pp": 1, "micro_batches": 0}, "at least one for each of the 1 stages"),
    ],
)
def test_what_does_not_divide_is_refused(mode: str, ranks: int, given: dict[str, Any], says: str) -> None:
    """The message suggests values that work."""
    with pytest.raises(UsageError, match=says):
        filled(mode, ranks, **given)


def test_the_shares_of_a_model_are_those_of_its_layers() -> None:
    """Heads, or outputs of the first layer of each pair: the table agrees with the models that are built."""
    pytest.importorskip("torch")
    from dptrace.trainers.parts import models

    assert {name for name, model in MODELS.items() if model.tp_units} == set(MODES["tp"].models)
    for name in set(models.SIZES) & set(MODELS):
        assert (models.SIZES[name]["heads"], models.SIZES[name]["context"]) == (
            MODELS[name].tp_units,
            MODELS[name].context,
        )
    for name, widths in models.WIDTHS.items():
        if name in MODELS:
            assert gcd(*widths[1:-1:2]) == MODELS[name].tp_units
    assert (
        models.MlpBlock(MODELS["balanced"].tp_units).up.weight.shape
        == models.balanced().get_parameter("0.up.weight").shape
    )
