"""The table of kernels in the terminal shows names without control, and says what it leaves out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dptrace.analysis.kernels.attribution import LaunchFigures
from dptrace.analysis.kernels.summary import KernelSummary, summarize
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.viewers.terminal.kernels import launch_sentence, print_host, print_kernels
from tests.support.synthetic import training_timeline


def printed(summary: KernelSummary, most: int = 30) -> str:
    console = Console(file=io.StringIO(), width=132)
    print_kernels(summary, summary.rows, console, most=most)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def summary_of(*names: str) -> KernelSummary:
    timelines = [training_timeline(rank, 300, names=names) for rank in (0, 1)]
    return summarize(timelines, lambda timeline: OperatorCalls(), "kernel")


def test_names_do_not_control_the_terminal() -> None:
    """They come from strangers' files."""
    assert "\x1b" not in printed(summary_of("evil\x1b[31m", "[bold]gemm", "nccl", "Memcpy DtoD (x)"))
    assert "[bold]gemm" in printed(summary_of("evil", "[bold]gemm", "nccl", "Memcpy DtoD (x)"))


@pytest.mark.parametrize("most", [1, 3])
def test_rows_left_out_are_counted(most: int) -> None:
    """With their time."""
    text = printed(summary_of("add", "gemm", "nccl", "Memcpy DtoD (x)"), most)

    assert f"{4 - most} more row" in text


def test_overlapping_streams_are_said() -> None:
    """The sum of durations is more than the time with any kernel running."""
    text = printed(summary_of("add", "gemm", "nccl", "Memcpy DtoD (x)"))

    assert "busy" in text
    assert "max /" in text


# The launch side in the terminal.


def test_a_sentence_says_how_far_the_host_is_ahead() -> None:
    """Delay, queue, graphs and synchronizing calls, as far as they are known."""
    text = launch_sentence(LaunchFigures(0, 1_200, 5_000.0, 9_000.0, 3.0, 7.0, 0.25, 10, 0.5, 2, 4_000_000))

    for fact in (
        "1,200 launches",
        "3 queued",
        "25 % found an empty queue",
        "10 kernels by graphs",
        "2 synchronizing",
    ):
        assert fact in text
    assert "CPU" in launch_sentence(LaunchFigures(0, 0, None, None, None, None, None))


def test_names_do_not_control_the_terminal_launches() -> None:
    """They come from strangers' files; rows left out are counted."""
    row = {"kind": "operator", "count": 1, "self_ns": 1, "total_ns": 1, "mean_ns": 1.0, "share_of_step": None}
    console = Console(file=io.StringIO(), width=100)
    print_host([{**row, "call": "evil\x1b[31m", "launches": 0}] * 3, [], console, most=2)
    assert isinstance(console.file, io.StringIO)

    assert "\x1b" not in console.file.getvalue()
    assert "1 more row" in console.file.getvalue()
