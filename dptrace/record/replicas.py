"""What data parallelism may be asked for: how replicas compress, accumulate and group, and what must divide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.errors import UsageError

__all__ = [
    "COMPRESSIONS",
    "KEEPING",
    "MICRO_BATCHES",
    "POWERSGD_RANK",
    "TOPK_RATIO",
    "check_compression",
    "check_micro_batches",
    "check_nodes",
    "check_replicas",
    "share",
]

COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "topk", "int8")
KEEPING = ("powersgd", "topk", "int8")
"""Those that add what a message left out to the next gradient: each rank keeps something of its own."""
MICRO_BATCHES = 4
"""Of each rank, unless told otherwise."""
POWERSGD_RANK = 2
"""As torch's documentation suggests to begin: 1, then twice as much until training is as good as without."""
TOPK_RATIO = 0.01


def share(text: str) -> float:
    """Read a share above 0 and up to 1, and refuse all else with ValueError."""
    if not 0 < float(text) <= 1:
        raise ValueError(f"{text} is not above 0 and at most 1")
    return float(text)


def check_replicas(mode: str, options: Mapping[str, Any], ranks: int) -> None:
    """Refuse before any process starts what a data parallel mode can't do on so many ranks.

    Args:
        options: by the names of their attributes; None for what was not given, but for ``batch_size``.

    Raises:
        UsageError: the message says what would do.
    """
    if mode == "accumulate":
        parts = options["micro_batches"]
        check_micro_batches(options["batch_size"], ranks, MICRO_BATCHES if parts is None else parts)
    if mode in ("hierarchical", "hsdp") and options["ranks_per_node"] is not None:
        check_nodes(ranks, options["ranks_per_node"])


def check_compression(options: Mapping[str, Any]) -> None:
    """Refuse options of one compression with another, and what none can compress.

    Raises:
        UsageError: the message says which.
    """
    chosen = options.get("compress") or "none"
    for name, compression in (("topk_ratio", "topk"), ("powersgd_rank", "powersgd")):
        if options.get(name) is not None and chosen != compression:
            raise UsageError(f"--{name.replace('_', '-')} means nothing without --compress {compression}.")
    if chosen == "powersgd" and options.get("amp") == "fp16":
        raise UsageError(
            "--compress powersgd keeps what it left out, and would keep the infinite gradients by which --amp fp16 "
            "finds its scale: every later step would be lost. Use --amp bf16, or --compress topk or int8."
        )


def check_micro_batches(batch_size: int, ranks: int, micro_batches: int) -> None:
    """Make sure that all micro-batches of all ranks are of one size, so that the mean of their means is the mean.

    Raises:
        UsageError: the batch does not divide.
    """
    if micro_batches < 1:
        raise UsageError(f"--micro-batches {micro_batches}: there must be one.")
    parts = ranks * micro_batches
    if batch_size % parts:
        raise UsageError(
            f"--batch-size {batch_size} does not divide into --micro-batches {micro_batches} on each of {ranks} ranks; "
            f"{max(batch_size // parts, 1) * parts} would."
        )


def check_nodes(ranks: int, per_node: int) -> None:
    """Make sure that every node has as many ranks.

    Raises:
        UsageError: the ranks do not divide.
    """
    if per_node < 1 or ranks % per_node:
        fitting = [str(size) for size in range(1, ranks + 1) if ranks % size == 0]
        raise UsageError(f"--ranks-per-node {per_node}: {ranks} ranks divide into nodes of {', '.join(fitting)}.")
