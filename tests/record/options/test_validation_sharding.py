"""Number types of sharded parameters, and blocks whose activations are recomputed."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.modes import MODELS
from dptrace.record.options.validation import check_recomputation, check_sharding


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reduce_dtype": "fp32"}, "--reduce-dtype has no effect without --mixed-precision"),
        ({"mixed_precision": "bf16", "amp": "fp16"}, "leave --amp fp16 out"),
        ({"mixed_precision": "fp16", "dtype": "bfloat16"}, "leave --dtype bfloat16 out"),
    ],
)
def test_number_types_that_contradict_each_other(options: dict[str, Any], says: str) -> None:
    """The message names the option to leave out or to add."""
    with pytest.raises(UsageError, match=says):
        check_sharding(options)


def test_number_types_that_go_together() -> None:
    """Each kind of lower precision alone, with shards in float64, and with its own reductions."""
    check_sharding({"mixed_precision": "bf16", "reduce_dtype": "fp32", "dtype": "float64", "amp": None})
    check_sharding({"amp": "bf16", "dtype": None})
    check_sharding({})


@pytest.mark.parametrize(
    ("options", "model", "says"),
    [
        ({"checkpoint_activations": True}, "small", "--checkpoint-activations: the MLP small has no blocks"),
        ({"checkpoint_activations_every": 2}, "large", "--checkpoint-activations-every: the MLP large has no blocks"),
        ({"checkpoint_activations_every": 5}, "gpt-tiny", "gpt-tiny has 4 blocks; use 1 to 4"),
    ],
)
def test_blocks_that_a_model_does_not_have(options: dict[str, Any], model: str, says: str) -> None:
    """The message says which models have blocks, or how many this one has."""
    with pytest.raises(UsageError, match=says):
        check_recomputation(options, model)


def test_blocks_that_a_model_has() -> None:
    """Of every number up to that of its blocks; an MLP without the options passes."""
    for name, model in MODELS.items():
        for every in range(1, model.blocks + 1):
            check_recomputation({"checkpoint_activations_every": every}, name)
        check_recomputation({"checkpoint_activations": False, "checkpoint_activations_every": None}, name)
