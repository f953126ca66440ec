"""Options that depend on the number of ranks, or on each other: what is filled in, and what is refused."""

from __future__ import annotations

from math import gcd
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.modes import MODELS, MODES
from dptrace.record.options.validation import check_ranks, check_training

(SCHEDULES,) = (option.choices for option in OPTIONS if option.name == "schedule")
DEFAULTS = {option.field: option.default for option in OPTIONS}


def filled(mode: str, ranks: int, **given: Any) -> dict[str, Any]:
    options = DEFAULTS | {"model": "balanced", "batch_size": 1024} | given
    check_ranks(mode, options, ranks)
    return options


@pytest.mark.parametrize(
    ("mode", "ranks", "given", "expected"),
    [
        ("tp", 4, {}, {"tp": 4, "pp": 1}),
        ("tp-sp", 2, {"model": "gpt-tiny"}, {"tp": 2, "pp": 1}),
        ("dp-tp", 8, {}, {"tp": 2, "pp": 1, "micro_batches": None}),
        ("3d", 8, {}, {"tp": 2, "pp": 2, "micro_batches": 8}),
        ("3d", 8, {"tp": 1, "pp": 4}, {"micro_batches": 16}),
        ("4d", 8, {"model": "gpt-tiny", "batch_size": 64}, {"ep": 2, "micro_batches": 8}),
        ("4d", 8, {"model": "gpt-tiny", "batch_size": 64, "ep": 1}, {"ep": 1}),
        ("pp", 4, {}, {"schedule": "1f1b", "micro_batches": 16, "virtual_stages": 1}),
        ("pp", 2, {"schedule": "interleaved"}, {"micro_batches": 8, "virtual_stages": 2}),
        ("pp", 4, {"schedule": "zero-bubble", "micro_batches": 4, "virtual_stages": 3}, {"virtual_stages": 3}),
        # torch makes rounds of equal size: 10 micro-batches on 4 ranks are 2 rounds of 5, and 3 are one round of 3
        ("pp", 4, {"schedule": "interleaved", "micro_batches": 10, "batch_size": 10}, {"micro_batches": 10}),
        ("pp", 4, {"schedule": "zero-bubble", "micro_batches": 3, "batch_size": 9}, {"micro_batches": 3}),
        *[("pp", 1, {"schedule": schedule}, {"micro_batches": 4}) for schedule in SCHEDULES],
        ("accumulate", 2, {"batch_size": 8}, {"micro_batches": 4}),
        ("accumulate", 4, {"batch_size": 24, "micro_batches": 3}, {"micro_batches": 3}),
        *[("hierarchical", 8, {"ranks_per_node": nodes}, {}) for nodes in (None, 1, 2, 4, 8)],
        ("moe", 4, {"model": "gpt-tiny"}, {"experts": 8}),
    ],
)
def test_what_is_not_said_is_filled_in(mode: str, ranks: int, given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sizes of a mesh, stages, micro-batches and the ranks of experts, by what the traits of the mode need."""
    options = filled(mode, ranks, **given)

    assert expected == {name: options[name] for name in expected}


@pytest.mark.parametrize(
    ("mode", "ranks", "given", "says"),
    [
        ("single", 2, {}, "start one process"),
        ("naive", 3, {}, "must be divisible by 3 ranks; try 1023 or 1026"),
        ("naive", 1, {"batch_size": 40_000}, "must be from 1 to 32768"),
        ("tp", 3, {"model": "gpt-tiny"}, "gpt-tiny cannot be split over 3 ranks; try --gpus 1 or 2."),
        ("tp-sp", 12, {"model": "gpt-small"}, "try --gpus 1 or 2 or 4."),
        ("dp-tp", 6, {"tp": 6, "model": "small"}, "over 6 ranks; try --tp 1 or 2 or 4."),
        ("dp-tp", 3, {}, "with --tp 2 needs a multiple of 2 ranks, not 3"),
        ("dp-tp", 8, {"batch_size": 6}, "divisible by 4 .4 replicas.; try 8"),
        ("3d", 2, {}, "with --tp 2 and --pp 2 needs a multiple of 4 ranks, not 2"),
        ("3d", 8, {"batch_size": 20}, "2 replicas with 8 micro-batches each.; try 32"),
        ("3d", 4, {"micro_batches": 1}, "at least one for each of the 2 stages"),
        ("pp", 4, {"micro_batches": 0}, "must be at least 1"),
        ("pp", 4, {"micro_batches": 100}, "divisible by 100 micro-batches; try 1100"),
        ("pp", 4, {"micro_batches": 2}, "at least one for each of 4 ranks"),
        ("pp", 4, {"virtual_stages": 2}, "has one stage on each rank"),
        ("pp", 4, {"virtual_stages": 0}, "each rank needs at least 1 stage"),
        ("pp", 4, {"schedule": "interleaved", "virtual_stages": 1}, "is 1f1b; use 2 or more"),
        ("pp", 4, {"schedule": "interleaved", "micro_batches": 9, "batch_size": 9}, "try 8 or 12"),
        ("accumulate", 4, {"batch_size": 100, "micro_batches": 3}, "try 108"),
        ("accumulate", 2, {"batch_size": 8, "micro_batches": 0}, "must be at least 1"),
        ("accumulate", 4, {"batch_size": 24}, "--micro-batches 4"),
        ("hsdp", 6, {"batch_size": 6, "ranks_per_node": 4}, "6 ranks can form nodes of 1, 2, 3, 6"),
        ("moe", 3, {"batch_size": 6}, "8 must be divisible by 3 ranks; try 9"),
        ("moe", 2, {"experts": 2, "top_k": 3}, "3 is more than the 2 experts"),
        ("4d", 8, {"model": "gpt-tiny", "pp": 1, "ep": 3}, "split the batch into 4; try --ep 1 or 2 or 4"),
        ("4d", 8, {"model": "gpt-tiny", "pp": 1, "experts": 6}, "--experts 6 must be divisible by 4 ranks; try 8"),
    ],
)
def test_what_does_not_divide_is_refused(mode: str, ranks: int, given: dict[str, Any], says: str) -> None:
    """The message suggests values that work."""
    with pytest.raises(UsageError, match=says):
        filled(mode, ranks, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topk_ratio": 0.1, "compress": "int8"}, "--topk-ratio has no effect without --compress topk"),
        ({"topk_ratio": 0.1, "compress": None}, "--topk-ratio has no effect without --compress topk"),
        ({"powersgd_rank": 1, "compress": "topk"}, "--powersgd-rank has no effect without --compress powersgd"),
        ({"compress": "powersgd", "amp": "fp16"}, "cannot be used with --amp fp16"),
        ({"compress": "topk", "checkpoint_every": 2}, "use --compress fp16 or bf16"),
        ({"reduce_dtype": "fp32"}, "--reduce-dtype has no effect without --mixed-precision"),
        ({"mixed_precision": "bf16", "amp": "fp16"}, "leave --amp fp16 out"),
        ({"mixed_precision": "fp16", "dtype": "bfloat16"}, "leave --dtype bfloat16 out"),
        ({"checkpoint_activations": True, "model": "small"}, "--checkpoint-activations: the MLP small has no blocks"),
        ({"checkpoint_activations_every": 2, "model": "large"}, "the MLP large has no blocks"),
        ({"checkpoint_activations_every": 5, "model": "gpt-tiny"}, "gpt-tiny has 4 blocks; use 1 to 4"),
        ({"data": "x"}, "only --model resnet18 reads CIFAR-10"),
        ({"samples": 8}, "do not fill a batch"),
        ({"checkpoints": "x"}, "add one of them"),
        ({"compress": "topk", "topk_ratio": 0.1, "amp": "fp16"}, None),
        ({"compress": "powersgd", "powersgd_rank": 4, "amp": "bf16"}, None),
        ({"compress": "fp16", "checkpoint_every": 2}, None),
        ({"mixed_precision": "bf16", "reduce_dtype": "fp32", "dtype": "float64"}, None),
        *[
            ({"checkpoint_activations_every": every, "model": name}, None)
            for name, model in MODELS.items()
            for every in range(1, model.blocks + 1)
        ],
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], says: str | None) -> None:
    """The message names the option to leave out or to add; others go together."""
    options = DEFAULTS | given
    if says is None:
        check_training(options)
    else:
        with pytest.raises(UsageError, match=says):
            check_training(options)


@pytest.mark.heavy
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
