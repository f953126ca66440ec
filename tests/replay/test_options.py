"""The options of a what-if as text."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.replay.options import (
    changes_of,
    communication_of,
    launches_of,
    parse_factor,
    parse_kernel,
    parse_latency,
    parse_rate,
    parse_straggler,
)


def test_values_are_parsed() -> None:
    """A factor with or without ×, a pattern with any character, and times in every unit."""
    texts = ("2x", "0.5", " 1.25× ", "1e6x", ".5x", "1E-2")
    assert [2.0, 0.5, 1.25, 1e6, 0.5, 0.01] == [parse_factor(text, "--compute") for text in texts]
    assert ("a=b|c", 0.5) == parse_kernel("a=b|c=0.5x")
    assert [(2, 20_000_000), (0, 1_500), (1, 7)] == list(map(parse_straggler, ("2=20ms", "0=1.5us", "1=7ns")))


def test_a_factor_of_the_bandwidth_may_be_text() -> None:
    """As on the command line; a rate is another change."""
    assert changes_of(bandwidth=2) == changes_of(bandwidth="2x") != changes_of(bandwidth="2GBps")
    with pytest.raises(UsageError):
        changes_of(bandwidth="0x")


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "0e5", "nan", "1e", "2xx"])
def test_what_is_no_factor_is_refused(text: str) -> None:
    """Neither is zero, a negative number, or another spelling."""
    with pytest.raises(UsageError):
        parse_factor(text, "--compute")


def test_a_bad_factor_of_a_kernel_is_named_as_it_was_typed() -> None:
    """The message holds the whole value, as one word."""
    with pytest.raises(UsageError, match=r"--kernel \.\*=0x:"):
        parse_kernel(".*=0x")


@pytest.mark.parametrize("text", ["2", "2=20", "a=20ms", "2=20m", "=20ms"])
def test_what_is_no_straggler_is_refused(text: str) -> None:
    """A rank, a time and its unit are needed."""
    with pytest.raises(UsageError):
        parse_straggler(text)


def test_levelling_comes_before_a_new_straggler() -> None:
    """Ranks are levelled as recorded; the straggler that is asked for stays."""
    changes = changes_of(straggler={1: 5}, no_straggler=True, compute=2)

    assert ["no straggler", "compute 2×", "rank 1 5 ns late in each step"] == [one.describe() for one in changes]


def test_a_negative_delay_is_refused() -> None:
    """No host is early."""
    with pytest.raises(UsageError):
        changes_of(straggler={0: -1})


def test_an_option_that_is_none_is_a_type_error() -> None:
    """A misspelled keyword would otherwise be answered with a replay of the run as it was."""
    with pytest.raises(TypeError, match="banwidth"):
        changes_of(banwidth=2)  # type: ignore[call-arg]


# Options about communication as text.


def test_values_are_parsed_options() -> None:
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
