"""A run reads its files again for what a command asks."""

from __future__ import annotations

from pathlib import Path

from dptrace.load.open import open_run
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.second_pass import SecondPass
from tests.support.kineto_files import KinetoFile, training_step


def test_a_command_reads_what_it_needs(tmp_path: Path) -> None:
    """Two readings of one file don't mix; a run without files has neither."""
    file = KinetoFile(0, 1)
    training_step(file, 0, 0)
    file.write(tmp_path / "rank0.json")
    run = open_run([str(tmp_path)])
    (timeline,) = run.timelines
    names = SecondPass("names", tuple, lambda source, patterns: read_trace(source).names)
    starts = SecondPass("starts", list, lambda source, patterns: read_trace(source).start_ns.tolist())
    trace = read_trace(tmp_path / "rank0.json")

    assert trace.names == run.read_again(timeline, names)
    assert trace.start_ns.tolist() == run.read_again(timeline, starts)
    assert trace.names == run.read_again(timeline, names)
