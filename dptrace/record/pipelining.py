"""What a pipeline's schedules ask for, checked before any process is started."""

from __future__ import annotations

from typing import Any

from dptrace.errors import UsageError

__all__ = ["SCHEDULES", "check_pipeline"]

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble")
"""By name, in the order in which to read them: each wastes less than the one before, or keeps less."""
_SEVERAL = ("interleaved", "zero-bubble")
"""Schedules that give a rank several stages."""
_ENOUGH = 4
"""Micro-batches for each stage with which GPipe's authors found the bubble negligible (arXiv:1811.06965, section 3)."""


def check_pipeline(options: dict[str, Any], ranks: int) -> None:
    """Fill in what was not said of micro-batches and virtual stages, and refuse what no schedule can do.

    Args:
        options: as given; ``schedule``, ``micro_batches``, ``virtual_stages`` and ``batch_size`` are looked at.
        ranks: of the pipeline.

    Raises:
        UsageError: the message says what would do.
    """
    schedule = options["schedule"] or "1f1b"
    stages = options["virtual_stages"]
    if stages is None:
        stages = 2 if schedule == "interleaved" else 1
    elif stages < 1:
        raise UsageError(f"--virtual-stages {stages}: each rank needs a stage.")
    if stages > 1 and schedule not in _SEVERAL:
        raise UsageError(
            f"--virtual-stages: --schedule {schedule} has one stage on each rank; interleaved has several."
        )
    if schedule == "interleaved" and stages == 1:
        raise UsageError("--schedule interleaved with --virtual-stages 1 is 1f1b; give 2 or more.")
    parts = options["micro_batches"]
    parts = _ENOUGH * ranks if parts is None else parts
    _check_micro_batches(schedule, parts, ranks, options["batch_size"])
    options |= {"schedule": schedule, "virtual_stages": stages, "micro_batches": parts}


def _check_micro_batches(schedule: str, parts: int, ranks: int, batch: int) -> None:
    if parts < 1:
        raise UsageError(f"--micro-batches {parts}: there must be one.")
    if batch % parts:
        raise UsageError(
            f"--batch-size {batch} does not divide into {parts} micro-batches; {-(-batch // parts) * parts} would."
        )
    if schedule == "1f1b" and parts < ranks:
        raise UsageError(f"--micro-batches {parts}: --schedule 1f1b needs as many as there are ranks, {ranks}.")
    rounds = max(1, parts // ranks)
    if schedule in _SEVERAL and parts % rounds:
        raise UsageError(
            f"--micro-batches {parts}: --schedule {schedule} goes in rounds of one for each of {ranks} ranks; "
            f"{parts // ranks * ranks} or {-(-parts // ranks) * ranks} would do."
        )
