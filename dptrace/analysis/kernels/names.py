"""Short names of kernels, for every table and page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dptrace.readers.kernel_name import short_name, short_names
from dptrace.timeline.model import Timeline

__all__ = ["kernel_names", "short_name", "short_names", "shortened"]


def kernel_names(timelines: Iterable[Timeline], cut: bool = True) -> dict[str, str]:
    """Return the short names of a run's kernels, or of its operators on a CPU: the same wherever the run is shown.

    Args:
        cut: cut those in their middle that are still long; otherwise who shows them does, where there is no room.
    """
    return short_names((name for timeline in timelines for name in timeline.names), cut)


def shortened(names: Sequence[str]) -> dict[int, str]:
    """Return the short names of kernels by number, where they differ from the names."""
    shorts = short_names(names)
    return {number: shorts[name] for number, name in enumerate(names) if shorts[name] != name}
