"""Options about communication as text."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.replay.transforms.options import communication_of, launches_of, parse_latency, parse_rate


def test_values_are_parsed() -> None:
    """Factors, times and rates in every unit."""
    assert ["latency 0.5×", "latency 5.00 µs"] == [parse_latency(text).describe() for text in ("0.5x", "5us")]
    assert [25e9, 1.5e8, 1e12] == [parse_rate(text) for text in ("25GBps", "150 MB/s", "1tbps")]


@pytest.mark.parametrize("text", ["", "5", "5 parsecs", "-1us"])
def test_what_is_no_latency_is_refused(text: str) -> None:
    """A number needs × or a unit."""
    with pytest.raises(UsageError):
        parse_latency(text)


@pytest.mark.parametrize("text", ["0GBps", "25", "GBps", "25Gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    """A number above 0 and bytes per second are needed."""
    with pytest.raises(UsageError):
        parse_rate(text)


def test_messages_are_regrouped_at_their_new_cost() -> None:
    """Links and bytes come before the schedule that is computed with them, and micro-steps last."""
    changes = communication_of(
        {"accumulate": 4, "bucket_cap_mb": 25, "compress": "fp16", "world_size": 8, "link": "pcie4"}, None
    )

    assert [
        "8 ranks, link PCIe 4.0 x16, messages in fp16",
        "buckets of 25 MB",
        "4 micro-steps for each step of the optimizer",
    ] == [change.describe() for change in changes]


def test_what_is_removed_is_not_fused() -> None:
    """Recomputation goes first, then kernels are fused, then launched at once."""
    changes = launches_of({"cuda_graphs": True, "fuse": "x", "no_recompute": True})

    assert ["no recomputation", "kernels 'x' fused", "CUDA graphs"] == [change.describe() for change in changes]
