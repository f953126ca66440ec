"""Other links, on a job whose all-reduce of 4 KiB on two ranks takes 100 µs of a step of 800."""

from __future__ import annotations

from typing import Any

import pytest

import dptrace
from dptrace.errors import DptraceError, UsageError
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


# A ring among two ranks pays the latency twice and moves the 4,096 bytes once; among eight, 14 times and 1.75 times.
@pytest.mark.parametrize(
    ("options", "transfer_ns"),
    [
        ({"bandwidth": "1GBps"}, 4_096),
        ({"bandwidth": "0.1 GB/s"}, 40_960),
        ({"latency": "5us"}, 100_000 + 10_000),
        ({"link": "5us:1GB/s"}, 10_000 + 4_096),
        ({"world_size": 8}, 175_000),
        ({"world_size": 8, "link": "5us:1GB/s"}, 6 * 5_000 + 7_168),
        ({"compress": "fp16"}, 50_000 + 2 * 1.5 * 4_096 / 10),
        ({"compress": "int8"}, 25_000 + 2 * 1.25 * 4_096 / 10),
        ({"compress": "fp16", "link": "5us:1GB/s"}, 10_000 + 2_048 + 2 * 1.5 * 4_096 / 10),
    ],
)
def test_the_transfer_has_the_cost_of_the_formula(
    run: dptrace.Run, options: dict[str, Any], transfer_ns: float
) -> None:
    """Latency by the hops, bytes by the share of the algorithm; casts at the memory's bandwidth."""
    answer = run.whatif(**options)

    assert answer.predicted_step_ns == pytest.approx(800_000 - 100_000 + transfer_ns, abs=2)


@needs_real_traces
@pytest.mark.heavy
def test_one_kind_of_collective_is_compressed_alone() -> None:
    """The exchange of embeddings in half of its bits gains; the all-reduces of the same job keep theirs."""
    job = dptrace.open(real("dlrm_v100_4ranks"))

    both, exchange, reduces = (
        job.whatif(compress=text).step_gain_ns for text in ("fp16", "all_to_all=fp16", "all-reduce=fp16")
    )

    assert 0 < exchange < both
    assert reduces < both


def test_a_kind_that_the_run_lacks_is_refused(run: dptrace.Run) -> None:
    """The message names those it has."""
    with pytest.raises(DptraceError, match="all_reduce"):
        run.whatif(compress="all_to_all=fp16")


def test_a_nominal_link_says_that_it_is_one(run: dptrace.Run) -> None:
    """Collectives reach a share of the data sheet's bandwidth, and more ranks are taken to be like those recorded."""
    answer = run.whatif(link="nvlink4", world_size=64)

    assert ["64 ranks, link NVLink 4 (H100)"] == list(answer.changes)
    assert 2 == sum(doubt.kind == "assumed" for doubt in answer.doubts)


def test_latency_counts_where_sizes_show_it() -> None:
    """With messages of nine sizes, twice the latency makes a step longer; with none, a share of it is not known."""
    naive = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")

    assert naive.whatif(latency="2x").run_gain_ns < 0 < naive.whatif(latency="0x").run_gain_ns


@pytest.mark.parametrize(
    "options",
    [
        {"latency": "fast"},
        {"bandwidth": "25 GB"},
        {"link": "no such"},
        {"link": "nvlink4", "latency": "5us"},
        {"compress": "fp1"},
        {"compress": "all_reduce=fp1"},
        {"compress": "fp16,bf16"},
        {"world_size": 1},
    ],
)
def test_what_is_no_link_is_wrong_use(run: dptrace.Run, options: dict[str, Any]) -> None:
    """Text of another form, unknown names, and options that contradict each other."""
    with pytest.raises(UsageError):
        run.whatif(**options)


def test_a_share_of_an_unknown_latency_is_refused(run: dptrace.Run) -> None:
    """With one size of message, latency and transfer can't be told apart."""
    with pytest.raises(DptraceError):
        run.whatif(latency="0.5x")


def test_a_run_without_collectives_is_refused() -> None:
    """A single rank has no links, whatever is said about them."""
    single = dptrace.open(ROOT / "traces" / "single_cpu")
    refused: list[dict[str, Any]] = [
        {"world_size": 2},
        {"bandwidth": 2.0},
        {"bandwidth": "25GBps"},
        {"perfect_overlap": True},
    ]
    for options in refused:
        with pytest.raises(DptraceError):
            single.whatif(**options)
