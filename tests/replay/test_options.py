"""The options of a what-if: what they take as text and as keywords, and the changes that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.replay.changes import changes_of
from dptrace.replay.options import OPTIONS, parse_factor, parse_rate
from dptrace.replay.transforms.links import parse_latency


def test_values_are_parsed() -> None:
    """Factors with or without ×, a pattern with any character, and times and rates in every unit."""
    texts = ("2x", "0.5", " 1.25× ", "1e6x", ".5x", "1E-2")
    assert [2.0, 0.5, 1.25, 1e6, 0.5, 0.01] == [parse_factor(text, "--compute") for text in texts]
    assert ("a=b|c", 0.5) == OPTIONS["kernels"].read("a=b|c=0.5x")
    assert [(2, 20_000_000), (0, 1_500), (1, 7)] == list(map(OPTIONS["straggler"].read, ("2=20ms", "0=1.5us", "1=7ns")))
    assert ["latency 0.5×", "latency 5.00 µs"] == [parse_latency(text).describe() for text in ("0.5x", "5us")]
    assert [25e9, 1.5e8, 1e12] == [parse_rate(text) for text in ("25GBps", "150 MB/s", "1tbps")]


def test_other_texts_are_refused_as_they_were_typed() -> None:
    """Neither zero, a negative number, a missing unit nor another spelling is taken; the message holds the text."""
    unread: list[tuple[Callable[[str], Any], list[str]]] = [
        (OPTIONS["compute"].read, ["", "x", "-1", "0", "0e5", "nan", "1e", "2xx"]),
        (OPTIONS["kernels"].read, [".*=0x", "=2x", "gemm"]),
        (OPTIONS["straggler"].read, ["2", "2=20", "a=20ms", "2=20m", "=20ms"]),
        (parse_latency, ["", "5", "5 parsecs", "-1us"]),
        (parse_rate, ["0GBps", "25", "GBps", "25Gbit"]),
    ]
    for parse, texts in unread:
        for text in texts:
            with pytest.raises(UsageError) as refused:
                parse(text)
            assert text in str(refused.value)


def test_what_no_run_can_have_is_refused() -> None:
    """Values out of range or of another type, patterns that are none, and options that contradict each other."""
    refused: list[Any] = [
        *({"straggler": {0: -1}}, {"kernels": {"(": 0.5}}, {"kernels": "gemm=0.5x"}, {"compute": float("nan")}),
        *({"bandwidth": "0x"}, {"bandwidth": 0}, {"bandwidth": "25 GB"}, {"latency": 5}, {"latency": "fast"}),
        *({"world_size": 1}, {"link": "no such"}, {"bucket_cap_mb": 0}, {"accumulate": 0}, {"fuse": "("}),
        *({"compress": "fp1"}, {"compress": "all_reduce=fp1"}, {"compress": "fp16,bf16"}),
        *({"link": "pcie4", "latency": "5us"}, {"schedule": "naive", "bucket_cap_mb": 4}),
    ]
    for options in refused:
        with pytest.raises(UsageError):
            changes_of(**options)


def test_an_option_that_is_none_is_a_type_error() -> None:
    """A misspelled keyword would otherwise be answered with a replay of the run as it was."""
    with pytest.raises(TypeError, match="banwidth"):
        changes_of(banwidth=2)  # type: ignore[call-arg]


def test_a_factor_of_the_bandwidth_may_be_text() -> None:
    """As on the command line; a rate is another change."""
    assert changes_of(bandwidth=2) == changes_of(bandwidth="2x") != changes_of(bandwidth="2GBps")


def test_changes_apply_in_their_order() -> None:
    """What removes comes before what adds, and what regroups messages after what they cost."""

    def ordered(**options: Any) -> list[str]:
        return [one.describe() for one in changes_of(**options)]

    assert ["no straggler", "compute 2×", "rank 1 5 ns late in each step"] == ordered(
        straggler={1: 5}, no_straggler=True, compute=2
    )
    assert [
        "8 ranks, link PCIe 4.0 x16, messages in fp16",
        "buckets of 25 MB",
        "4 micro-steps for each step of the optimizer",
    ] == ordered(accumulate=4, bucket_cap_mb=25, compress="fp16", world_size=8, link="pcie4")
    assert ["no recomputation", "kernels 'x' fused", "CUDA graphs"] == ordered(
        cuda_graphs=True, fuse="x", no_recompute=True
    )
