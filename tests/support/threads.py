"""Ranks as threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_threads(run: Callable[[int], Any], ranks: int) -> list[Any]:
    """Call a function with each rank's number in a thread of its own, and return the results; raise its first error."""
    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(ranks)]
    return [future.result() for future in futures]
