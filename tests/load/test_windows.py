"""Folders with several windows of each process, as torch's handler writes them under a schedule that repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError, UsageError
from tests.support.mesh import Mesh

TIMES = (1759300074000000000, 1759300999000000000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two windows of each of four ranks: of three steps, and of two."""
    found = tmp_path / "windows"
    for time, steps in zip(TIMES, (3, 2), strict=True):
        for file in Mesh(tp=2, dp=2, steps=steps).write(found).glob("*.rank*"):
            host = file.name.partition(".")[0]
            file.rename(found / f"{host}.{time}.pt.trace.json")
    return found


@pytest.mark.parametrize(("window", "steps"), [(1, 4), (2, 3)])
def test_a_window_is_chosen_by_its_number(folder: Path, window: int, steps: int) -> None:
    """In the order of their times, on all ranks."""
    run = dptrace.open(folder, window=window, cache=False)

    assert (0, 1, 2, 3) == run.ranks
    assert {steps} == {len(timeline.windows) for timeline in run.timelines}


def test_a_process_that_lacks_a_window_has_its_others_in_their_times(folder: Path) -> None:
    """Rank 1 has the second window alone, written a second later than that of the others."""
    first, second = sorted(folder.glob("*_4001.*"))
    first.unlink()
    second.rename(folder / second.name.replace(str(TIMES[1]), str(TIMES[1] + 10**9)))

    assert (0, 2, 3) == dptrace.open(folder, window=1, cache=False).ranks
    assert (0, 1, 2, 3) == dptrace.open(folder, window=2, cache=False).ranks


def test_a_history_has_a_run_for_each_window(folder: Path) -> None:
    """With all ranks, in the order of time, and of the number that --window has."""

    def listed(*options: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(cli, ["history", str(folder), "--json", "--no-cache", *options])
        rows: list[dict[str, object]] = json.loads(done.stdout)["series"][0]["runs"]
        return rows

    rows = listed()

    assert [4, 4] == [row["ranks"] for row in rows]
    assert [(f"{folder} --window 1", 4), (f"{folder} --window 2", 3)] == [(row["run"], row["steps"]) for row in rows]
    assert [f"{folder} --window 2"] == [row["run"] for row in listed("--window", "2")]
    assert 2 == CliRunner().invoke(cli, ["history", str(folder), "--window", "3"]).exit_code


@pytest.mark.parametrize("window", ["1", 1.0, True])
def test_a_window_is_an_integer(folder: Path, window: object) -> None:
    """In Python, where no option parses it."""
    with pytest.raises(UsageError, match="integer"):
        dptrace.open(folder, window=window)  # type: ignore[arg-type]


def test_several_windows_are_refused_before_they_are_read(folder: Path) -> None:
    """The message names two of them, and what chooses one; one that is not there is wrong use."""
    for file in folder.iterdir():
        file.write_text("{")

    with pytest.raises(DptraceError, match="2 windows") as caught:
        dptrace.open(folder, cache=False)

    assert all(str(time) in str(caught.value) for time in TIMES)
    with pytest.raises(UsageError, match="2 windows"):
        dptrace.open(folder, window=3, cache=False)
