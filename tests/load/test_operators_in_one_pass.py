"""Operators are read together with the figures where a command asks for both: each file is decoded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.readers.kineto import reader
from dptrace.timeline.host_calls import OPERATOR_CALLS
from tests.support.layered_files import layered_file


@pytest.mark.heavy
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("jobs", [1, 2])
def test_each_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: bool, jobs: int) -> None:
    """With and without the cache, and where other processes read."""
    for rank in (0, 1):
        layered_file(rank, 2).write(tmp_path / f"rank{rank}.json")
    run = open_run([str(tmp_path)], ReadOptions(cache=cache, jobs=jobs, operators=True))
    monkeypatch.setattr(reader, "read_trace", None)
    found = [run.read_again(timeline, OPERATOR_CALLS) for timeline in run.timelines]

    assert [True, True] == [calls is not None and len(calls.table) > 1 for calls in found]


def test_figures_are_those_of_a_plain_reading(tmp_path: Path) -> None:
    """Whatever else was read."""
    layered_file().write(tmp_path / "rank0.json")
    both = open_run([str(tmp_path)], ReadOptions(cache=False, operators=True))

    assert open_run([str(tmp_path)]).to_dict() == both.to_dict()
