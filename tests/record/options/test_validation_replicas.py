"""What data parallelism may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.validation import (
    check_compression,
    check_micro_batches,
    check_nodes,
    check_replicas,
    parse_ratio,
)


@pytest.mark.parametrize(
    ("batch", "ranks", "parts", "instead"),
    [(100, 4, 3, "96 would"), (5, 2, 4, "8 would"), (8, 2, 0, "there must be one")],
)
def test_micro_batches_must_divide(batch: int, ranks: int, parts: int, instead: str) -> None:
    """On every rank alike; the message names a batch that would do."""
    with pytest.raises(UsageError, match=instead):
        check_micro_batches(batch, ranks, parts)


def test_what_divides_is_taken() -> None:
    """Micro-batches of one sample, and nodes of one rank or of all."""
    check_micro_batches(8, 2, 4)
    for per_node in (1, 2, 4, 8):
        check_nodes(8, per_node)
    check_replicas("hierarchical", {"ranks_per_node": None}, 6)
    check_replicas("ddp", {}, 3)


@pytest.mark.parametrize(("ranks", "per_node"), [(6, 4), (2, 4), (3, 2)])
def test_nodes_must_divide(ranks: int, per_node: int) -> None:
    """The message lists the sizes that nodes could have."""
    with pytest.raises(UsageError, match=f"{ranks} ranks divide into nodes of 1, "):
        check_replicas("hierarchical", {"ranks_per_node": per_node}, ranks)


def test_accumulation_is_checked_with_its_own_number() -> None:
    """Where none was given, with that which the trainer takes."""
    check_replicas("accumulate", {"batch_size": 24, "micro_batches": 3}, 4)
    with pytest.raises(UsageError, match="--micro-batches 4"):
        check_replicas("accumulate", {"batch_size": 24, "micro_batches": None}, 4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topk_ratio": 0.1, "compress": "int8"}, "--topk-ratio means nothing without --compress topk"),
        ({"topk_ratio": 0.1, "compress": None}, "--topk-ratio means nothing without --compress topk"),
        ({"powersgd_rank": 1, "compress": "topk"}, "--powersgd-rank means nothing without --compress powersgd"),
        ({"compress": "powersgd", "amp": "fp16"}, "every later step would be lost"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], told: str) -> None:
    """An option of one compression is not ignored with another."""
    with pytest.raises(UsageError, match=told):
        check_compression(options)


def test_options_that_go_together() -> None:
    """Each with its own compression, and a mode that knows of none."""
    check_compression({"topk_ratio": 0.1, "compress": "topk", "amp": "fp16"})
    check_compression({"powersgd_rank": 4, "compress": "powersgd", "amp": "bf16"})
    check_compression({})


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "nan", "much"])
def test_a_share_is_above_zero_and_at_most_one(text: str) -> None:
    """All else is refused as a value of --topk-ratio."""
    with pytest.raises(ValueError, match=r".+"):
        parse_ratio(text)
