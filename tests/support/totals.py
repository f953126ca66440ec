"""The figures of a split that is known whole."""

from __future__ import annotations

from dptrace.analysis.per_gpu.split import SHOWN, Split


def totals(split: Split) -> dict[str, int]:
    """Return the sum of each figure over the steps."""
    assert not split.unknown
    return {name: int(split.of(name).sum()) for name in SHOWN}
