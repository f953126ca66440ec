"""Pipelines: the bubble of each schedule, and how many micro-batches' activations a stage keeps."""

from __future__ import annotations

__all__ = ["SCHEDULES", "bubble_share", "held_by_rank", "micro_batches_in_flight", "micro_batches_needed"]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def bubble_share(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float | None:
    """Return the bubble's share of the time for stages that take equally long, or None without a formula.

    With p ranks, m micro-batches and v stages on each rank, a step's work takes m·v times a stage's, and the first
    micro-batch takes p-1 stages' time to reach the last: (p-1)/(m·v+p-1) (GPipe, arXiv:1811.06965; Megatron-LM,
    arXiv:2104.04473, section 2.2). With deferred weight gradients, the bubble is p-1 against 3·m·v parts of equal
    length (ZB-H1 in table 1 of arXiv:2401.10241, where forward and both parts of backward take equally long).

    >>> bubble_share("1f1b", 4, 12), bubble_share("interleaved", 4, 12, 2), bubble_share("v-shaped", 4, 12, 2)
    (0.2, 0.1111111111111111, None)
    """
    parts = {
        "naive": 1,
        "gpipe": micro_batches,
        "1f1b": micro_batches,
        "forward-only": micro_batches,
        "interleaved": micro_batches * virtual_stages,
        "zero-bubble": 3 * micro_batches * virtual_stages,
    }.get(schedule)
    return None if parts is None else (stages - 1) / (parts + stages - 1)


def micro_batches_in_flight(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Return how many micro-batches' activations of all its layers the first stage keeps at most.

    GPipe keeps all; 1F1B one for each stage (Megatron-LM, section 2.2.1); interleaved 1F1B ``p + (p-1)/v`` (Korthikanti
    et al., arXiv 2205.05198, section 4.2.3); ZB-H1 as many as 1F1B. None keeps more than there are.

    >>> micro_batches_in_flight("gpipe", 4, 32), micro_batches_in_flight("1f1b", 4, 32)
    (32, 4)
    """
    if schedule == "gpipe" or stages == 1:
        return micro_batches if stages > 1 else 1
    if schedule == "interleaved":
        return min(micro_batches, stages + (stages - 1) / virtual_stages)
    return min(micro_batches, stages)


def held_by_rank(schedule: str, ranks: int, rank: int, micro_batches: int, virtual_stages: int = 1) -> int | None:
    """Return how many micro-batches' activations a rank holds at most, each counted once for each of its stages.

    With p ranks, rank r runs p-r-1 forwards before its first backward in 1F1B (Megatron-LM, arXiv:2104.04473, section
    2.2.1), and (v-1)·p + 2·(p-r-1) in its interleaved form (section 2.2.2). ZB-H1 runs p-r-1, and delays the gradients
    of the weights until every rank holds p (arXiv:2401.10241, section 2.3). None for another schedule.

    >>> [held_by_rank("1f1b", 4, rank, 8) for rank in range(4)]
    [4, 3, 2, 1]
    >>> [held_by_rank("interleaved", 4, rank, 8, 2) for rank in range(4)]
    [11, 9, 7, 5]
    """
    later = ranks - rank - 1
    # With a number of micro-batches that ranks does not divide, torch makes the rounds longer.
    rounds = (virtual_stages - 1) * (micro_batches // max(1, micro_batches // ranks))
    held = {
        "naive": 1,
        "gpipe": micro_batches * virtual_stages,
        "1f1b": later + 1,
        "interleaved": rounds + 2 * later + 1,
        "zero-bubble": rounds + ranks,
    }.get(schedule)
    return None if held is None else min(held, micro_batches * virtual_stages)


def micro_batches_needed(schedule: str, stages: int, bubble: float, virtual_stages: int = 1) -> int:
    """Return the fewest micro-batches with which the bubble is at most a share of the time.

    >>> micro_batches_needed("1f1b", 4, 0.1), micro_batches_needed("interleaved", 4, 0.1, 3)
    (27, 9)
    """
    parts = {"interleaved": virtual_stages, "zero-bubble": 3 * virtual_stages}.get(schedule, 1)
    exact = (stages - 1) * (1 - bubble) / bubble / parts
    return max(1, round(exact) if abs(exact - round(exact)) < 1e-9 else int(exact) + 1)
