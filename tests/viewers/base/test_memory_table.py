"""Tables of memory in the terminal."""

from __future__ import annotations

from pathlib import Path

import dptrace
from dptrace.run.memory import device_reports
from dptrace.run.run import Run
from dptrace.viewers.base.memory_table import peaks_table, print_memory
from tests.support.memory_files import memory_run, training_file
from tests.support.terminal_text import captured


def printed(run: Run, all_rows: bool = False) -> str:
    return captured(lambda console: print_memory(run, console, all_rows), 120)


def test_the_highest_peak_is_explained(tmp_path: Path) -> None:
    """Peak, phases, kinds, operators, blocks and calls; with --all, of each device."""
    run = dptrace.open(memory_run(tmp_path))
    text = printed(run)

    for word in ("1.3 kB", "gradients", "MmBackward0", "layers.0", "cudaMalloc"):
        assert word in text
    assert 1 == text.count("by kind, at the peak of rank")
    assert 2 == printed(run, all_rows=True).count("by kind, at the peak of rank")


def test_a_gpu_comes_before_a_cpu(tmp_path: Path) -> None:
    """What is explained is the GPU's peak, even where the CPU has allocated more."""
    file = training_file()
    file.memory(5, 10**9, 1, 10**9)
    run = dptrace.open(file.write(tmp_path / "a.json"))

    assert "at the peak of rank 0 GPU 0" in printed(run)
    assert [("rank 0 GPU 0", "1.3 kB"), ("rank 0 CPU", "1.0 GB")] == [
        (row[0], row[3]) for row in peaks_table(device_reports(run)).rows
    ]


def test_hostile_names_control_no_terminal(tmp_path: Path) -> None:
    """An operator's name is a stranger's text."""
    file = training_file().op("\x1b[31mred\u202e", 61, 63)
    file.memory(62, 10_000, 50, 11_100, device=0)
    text = printed(dptrace.open(file.write(tmp_path / "a.json")))

    assert "red" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
