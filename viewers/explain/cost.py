"""The cost of an explanation as terms and texts, for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dptrace.simulate.explanation import Explanation, megabytes

__all__ = ["by_rank", "cost_rows"]


def cost_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return volume and time, the formula with its numbers, and further figures."""
    cost = explanation.cost
    rows = [("Size", f"n = {megabytes(cost.size_bytes)}, {cost.counted}")]
    rows += [("Sent", by_rank(cost.sent_bytes)), ("Received", by_rank(cost.received_bytes))]
    rows += [("Link", link) for link in cost.links]
    rows += [("Time", cost.formula)]
    rows += [("", f"= {cost.numbers}")] if cost.numbers else []
    return rows + [("Note", sentence) for sentence in cost.sentences]


def by_rank(sizes: Sequence[float]) -> str:
    """Write one size for all ranks, or one for each group of neighbors that share it.

    >>> by_rank([3e6, 3e6]), by_rank([6e6, 2e6, 2e6])
    ('3 MB by each rank', '6 MB by rank 0, 2 MB by ranks 1 to 2')
    """
    if len(set(sizes)) == 1:
        return f"{megabytes(sizes[0])} by each rank"
    parts, first = [], 0
    for size, group in groupby(sizes):
        last = first + len(list(group)) - 1
        parts.append(f"{megabytes(size)} by {f'rank {first}' if first == last else f'ranks {first} to {last}'}")
        first = last + 1
    return ", ".join(parts)
