"""Compression, micro-batches and nodes of data parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.validation import (
    check_compression,
    check_micro_batches,
    check_nodes,
    check_ranks,
    check_replicas,
)


@pytest.mark.parametrize(
    ("batch", "ranks", "parts", "instead"), [(100, 4, 3, "try 96"), (5, 2, 4, "try 8"), (8, 2, 0, "must be at least 1")]
)
def test_micro_batches_must_divide(batch: int, ranks: int, parts: int, instead: str) -> None:
    """All micro-batches of all ranks have one size; the message suggests a batch size."""
    with pytest.raises(UsageError, match=instead):
        check_micro_batches(batch, ranks, parts)


def test_what_divides_is_taken() -> None:
    """Micro-batches of one sample, and nodes of one rank or of all, pass."""
    check_micro_batches(8, 2, 4)
    for per_node in (1, 2, 4, 8):
        check_nodes(8, per_node)
    check_replicas("hierarchical", {"ranks_per_node": None}, 6)
    check_replicas("ddp", {}, 3)


@pytest.mark.parametrize(("ranks", "per_node"), [(6, 4), (2, 4), (3, 2)])
def test_nodes_must_divide(ranks: int, per_node: int) -> None:
    """The message lists the possible sizes of a node."""
    with pytest.raises(UsageError, match=f"{ranks} ranks can form nodes of 1, "):
        check_replicas("hierarchical", {"ranks_per_node": per_node}, ranks)


def test_accumulation_is_checked_with_its_own_number() -> None:
    """Without a number, the trainer's default is checked."""
    check_replicas("accumulate", {"batch_size": 24, "micro_batches": 3}, 4)
    with pytest.raises(UsageError, match="--micro-batches 4"):
        check_replicas("accumulate", {"batch_size": 24, "micro_batches": None}, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topk_ratio": 0.1, "compress": "int8"}, "--topk-ratio has no effect without --compress topk"),
        ({"topk_ratio": 0.1, "compress": None}, "--topk-ratio has no effect without --compress topk"),
        ({"randomk_ratio": 0.1, "compress": "topk"}, "--randomk-ratio has no effect without --compress randomk"),
        ({"threshold": 0.1, "compress": "qsgd"}, "--threshold has no effect without --compress threshold"),
        ({"qsgd_levels": 3, "compress": "int4"}, "--qsgd-levels has no effect without --compress qsgd"),
        ({"powersgd_rank": 1, "compress": "topk"}, "--powersgd-rank has no effect without --compress powersgd"),
        ({"compress": "powersgd", "amp": "fp16"}, "cannot be used with --amp fp16"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], says: str) -> None:
    """An option of one compression is refused with another."""
    with pytest.raises(UsageError, match=says):
        check_compression(options)


def test_options_that_go_together() -> None:
    """Each with its own compression, and a mode without compression."""
    check_compression({"topk_ratio": 0.1, "compress": "topk", "amp": "fp16"})
    check_compression({"powersgd_rank": 4, "compress": "powersgd", "amp": "bf16"})
    check_compression({"qsgd_levels": 1, "compress": "qsgd", "amp": "fp16"})
    check_compression({})


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("accumulate", {"micro_batches": 3}, "--micro-batches 3"),
        ("hsdp", {"ranks_per_node": 3}, "--ranks-per-node 3"),
        ("moe", {"experts": 6, "top_k": 2}, "--experts 6"),
        ("pp", {"schedule": "1f1b", "virtual_stages": 2, "micro_batches": 4}, "--virtual-stages 2"),
        ("tp", {"tp": None, "model": "gpt-tiny"}, None),
        ("3d", {"tp": 2, "pp": 4, "micro_batches": None}, "--pp 4"),
        ("naive", {}, None),
    ],
)
def test_the_traits_of_a_mode_select_its_checks(mode: str, options: dict[str, Any], says: str | None) -> None:
    """Each mode is checked on four ranks by the parts that its traits name."""
    options = {"model": "small", "batch_size": 128} | options
    if says is None:
        check_ranks(mode, options, 4)
    else:
        with pytest.raises(UsageError, match=says):
            check_ranks(mode, options, 4)
