"""A critical path in the terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import dptrace
from dptrace.viewers.terminal.replay.critical_path import print_critical_path
from tests.support.kineto_files import KinetoFile


def printed(run: dptrace.Run, every: bool = False) -> str:
    text = StringIO()
    print_critical_path(run.critical_path(), Console(file=text, width=200, highlight=False), every)
    return text.getvalue()


@pytest.mark.heavy
def test_of_many_pieces_the_longest_are_listed(tmp_path: Path) -> None:
    """Forty pieces are printed, all of them on request; control characters and long names do not reach the terminal."""
    file = KinetoFile().label("ProfilerStep#1", 0, 5000)
    for i in range(60):
        file.kernel(f"\x1b[31mgemm_{i}" + "x" * 200, 20 + 50 * i, 50 + 50 * i, 10 + 50 * i)
        file.event("cuda_runtime", "cudaDeviceSynchronize", 13 + 50 * i, 55 + 50 * i)
    run = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False)

    few, all_of_them = printed(run), printed(run, every=True)

    assert "the 40 longest of" in few
    assert len(all_of_them.splitlines()) > len(few.splitlines()) + 20
    assert "\x1b" not in all_of_them
    assert "x" * 100 not in all_of_them
