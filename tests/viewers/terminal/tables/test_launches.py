"""The launch side in the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from dptrace.analysis.kernels.attribution import LaunchFigures
from dptrace.viewers.terminal.tables.launches import launch_sentence, print_host


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


def test_names_do_not_control_the_terminal() -> None:
    """They come from strangers' files; rows left out are counted."""
    row = {"kind": "operator", "count": 1, "self_ns": 1, "total_ns": 1, "mean_ns": 1.0, "share_of_step": None}
    console = Console(file=io.StringIO(), width=100)
    print_host([{**row, "call": "evil\x1b[31m", "launches": 0}] * 3, [], console, most=2)
    assert isinstance(console.file, io.StringIO)

    assert "\x1b" not in console.file.getvalue()
    assert "1 more row" in console.file.getvalue()
