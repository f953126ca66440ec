"""Host calls are read from a run's files on request, cached, and absent where a file can't be read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.load.rereader import FileRereader
from dptrace.readers.kineto import reader
from dptrace.readers.kineto.reader import read_trace
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, HostCalls, host_calls
from tests.support.kineto_files import KinetoFile, training_step


def two_ranks(folder: Path) -> Run:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        for step in range(2 + rank):
            training_step(file, step, 100 * step)
        file.write(folder / f"rank{rank}.json")
    return open_run([str(folder)])


def read(run: Run, number: int) -> HostCalls:
    calls = run.read_again(run.timelines[number], HOST_CALLS)
    assert calls is not None
    return calls


def test_each_rank_has_the_calls_of_its_file(tmp_path: Path) -> None:
    """In any order, and also after ranks and steps were selected."""
    run = two_ranks(tmp_path)
    expected = [host_calls(read_trace(tmp_path / f"rank{rank}.json", detailed=True)) for rank in (0, 1)]

    assert [len(expected[1]), len(expected[0])] == [len(read(run, 1)), len(read(run, 0))]
    assert len(expected[1]) == len(read(run.select(ranks=[1], steps=(1, 1)), 0))


def test_a_second_look_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal in every column; the file is not decoded again."""
    first = read(two_ranks(tmp_path), 0)
    run = open_run([str(tmp_path)])
    monkeypatch.setattr(reader, "read_trace", None)
    second = read(run, 0)

    assert first is not second
    for column in HostCalls.__struct_fields__:
        assert np.array_equal(getattr(first, column), getattr(second, column)), column


def test_a_file_that_is_gone_has_no_calls(tmp_path: Path) -> None:
    """The page is drawn without them."""
    options = ReadOptions(cache=False)
    run = two_ranks(tmp_path)
    assert run.sources is not None
    (tmp_path / "rank0.json").unlink()

    assert FileRereader(run.sources.files, options)(run.timelines[0].path, HOST_CALLS) is None
    assert FileRereader(run.sources.files, options)(run.timelines[1].path, HOST_CALLS) is not None


def test_figures_alone_have_no_calls(tmp_path: Path) -> None:
    """A run opened for its figures reads nothing further."""
    two_ranks(tmp_path)

    assert open_run([str(tmp_path)], ReadOptions(figures_only=True)).rereader is None
