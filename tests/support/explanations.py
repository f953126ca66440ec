"""Settings of explanations, and the brute-force replay of what they show."""

from __future__ import annotations

from typing import Any

from dptrace.model.training.communication import Link
from dptrace.simulate.catalog import explain
from dptrace.simulate.explanation import Explanation, Settings

ONE_GB = Link("", 10e-6, 1e9)
"""10 µs and 1 GB/s."""
WORKSHOP = 208e6
"""Bytes of the gradients of the workshop's XLarge model: 52 million floats."""


def explained(name: str, ranks: int, size: float = WORKSHOP, link: Link = ONE_GB, **options: Any) -> Explanation:
    between = options.pop("between", link)
    return explain(name, Settings(ranks=ranks, size_bytes=size, link=link, between=between, **options))


def replay(explanation: Explanation) -> list[list[tuple[float, ...]]]:
    """Apply the messages of all steps to what the ranks hold at first, as a reader of the picture does."""
    held = [[cell.values for cell in row] for row in explanation.steps[0].before]
    for step in explanation.steps:
        arriving = []
        for message in step.messages:
            width = len(message.values) // message.columns
            for column in range(message.columns):
                values = message.values[column * width : (column + 1) * width]
                assert held[message.source][message.column + column] == values
                arriving.append((message.target, message.into + column, values, message.adds))
        for rank, column, values, adds in arriving:
            old = held[rank][column]
            held[rank][column] = tuple(a + b for a, b in zip(old, values, strict=True)) if adds and old else values
        assert held == [[cell.values for cell in row] for row in step.after]
    return held
