"""Parts of one run become one run folder; parts of different runs do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.record.collect.collect import collect
from tests.support.run_parts import write_part


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    """Write the parts of two machines with two ranks each."""
    return write_part(tmp_path / "a", range(2)), write_part(tmp_path / "b", range(2, 4))


def test_two_parts_are_one_complete_run(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """All traces, ranks in order, losses averaged over all ranks, no note that some are missing; the order is free."""
    (parts[1] / "rank3.log").write_text("a line")
    run = collect(tmp_path / "all", [parts[1], parts[0]], False)

    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert {"run.json", "rank3.log", *(f"rank{rank}.pt.trace.json.gz" for rank in range(4))} == names
    assert [0, 1, 2, 3] == [entry["rank"] for entry in run["ranks"]]
    assert ([1.5, 1.0], 0.015) == (run["losses"], run["profiler_overhead"])
    assert ("complete", []) == (run["status"], run["notes"])
    assert str(tmp_path / "all") == run.pop("folder")
    assert run == json.loads((tmp_path / "all" / "run.json").read_text())
    assert run["command"] == json.loads((parts[0] / "run.json").read_text())["command"]


def test_missing_ranks_stay_a_note_and_a_failure_stays_one(tmp_path: Path) -> None:
    """Three of six ranks are a run with a note; a part in which a rank died makes the run a failed one."""
    one = write_part(tmp_path / "one", range(2), 6)
    two = write_part(tmp_path / "two", range(2, 3), 6)
    (note,) = collect(tmp_path / "half", [one, two], False)["notes"]
    assert note.startswith("3 of 6 ranks are here")

    died = {"rank": 4, "message": "killed by SIGKILL"}
    three = write_part(tmp_path / "three", range(5, 6), 6, status="failed", failure=died)
    run = collect(tmp_path / "failed", [one, three], False)
    assert ("failed", died, [0, 1, 5]) == (run["status"], run["failure"], [entry["rank"] for entry in run["ranks"]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"world_size": 8}, "world size 4, not 8"),
        ({"mode": "fsdp"}, "mode ddp, not fsdp"),
        ({"command": ["dptrace", "record", "--mode", "ddp", "--lr", "1"]}, "--lr 1"),
        ({"created": "2020-01-01T00:00:00+00:00"}, "2020-01-01"),
        ({"created": "yesterday"}, "when it was created"),
    ],
)
def test_parts_of_different_jobs_are_refused(
    changes: dict[str, Any], says: str, parts: tuple[Path, Path], tmp_path: Path
) -> None:
    """The message names both parts and what differs; nothing is left."""
    other = write_part(tmp_path / "c", range(2, 4), **changes)
    with pytest.raises(DptraceError, match=says):
        collect(tmp_path / "all", [parts[0], other], False)
    assert {"a", "b", "c"} == {path.name for path in tmp_path.iterdir()}


def test_a_rank_may_come_twice_only_if_it_is_the_same(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """A part that was copied twice is no problem; two different traces of one rank are."""
    assert 4 == len(collect(tmp_path / "all", [*parts, parts[0]], False)["ranks"])
    (tmp_path / "a" / "rank1.pt.trace.json.gz").rename(tmp_path / "kept")
    again = write_part(tmp_path / "c", range(2))
    (again / "rank1.pt.trace.json.gz").write_bytes(b"another trace")
    (tmp_path / "kept").rename(tmp_path / "a" / "rank1.pt.trace.json.gz")
    with pytest.raises(DptraceError, match=r"rank1\.pt.*differ"):
        collect(tmp_path / "more", [parts[0], again], False)


def test_an_existing_run_is_replaced_only_with_force(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """With --force, a part itself may become the whole run."""
    with pytest.raises(UsageError, match="--force"):
        collect(parts[0], parts, False)
    run = collect(parts[0], parts, True)

    assert 4 == len(run["ranks"])
    assert 5 == len(list(parts[0].iterdir()))
