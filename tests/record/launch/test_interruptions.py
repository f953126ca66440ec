"""However a recording ends, its complete steps are kept, no process and no hidden folder stays, and the end is said."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.interruptions import STEPS, interrupt

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

BOTH, FEW = {0, 1}, 3
"""The ranks, and the steps that have ended when a script ends in the window."""
MANY = 2500
"""Operators of a step that make writing take a second."""


@pytest.mark.parametrize(
    ("how", "when", "who", "code", "run", "steps", "says"),
    [
        ("SIGINT", "in", "0", 130, "t", FEW, "Recorded, and kept: t"),
        ("SIGINT", "writing", "0", 130, "t", STEPS, "writing the traces of"),
        ("SIGTERM", "writing", "0", 143, "t", STEPS, "Recorded, and kept: t"),
        ("os._exit(0)", "in", "all", 0, "t", FEW, f"{FEW} of {STEPS} steps"),
        ("os._exit(3)", "in", "all", 1, "t.failed", FEW, "exit code 3"),
        ("os._exit(0)", "writing", "all", None, "t", STEPS, ""),  # the second one to end may lose the first
        ("return", "in", "1", 1, "t.failed", FEW, "rank 1 ended without an error first"),
        ("raise", "in", "1", 1, "t.failed", FEW, "Rank 1 died: ValueError: boom"),
        ("SIGTERM to rank", "writing", "1", 1, "t", STEPS, "Rank 1 died"),
        ("kill recorder", "in", "0", -9, "t.failed", FEW, ""),
        ("kill recorder", "writing", "0", -9, "t.failed", STEPS, ""),
        ("kill torchrun", "in", "0", 1, "t.failed", FEW, "was killed by SIGKILL"),
    ],
)
def test_complete_steps_are_kept(
    tmp_path: Path, how: str, when: str, who: str, code: int | None, run: str, steps: int, says: str
) -> None:
    """Signals, exits, exceptions and kills, in the recorded steps and while these are written."""
    left = interrupt(tmp_path, how, when, who, MANY if when == "writing" else 10)

    assert code in (left.code, None), left.said
    assert [run] == [name for name, ranks in left.runs.items() if ranks], left.said  # besides logs without traces
    assert BOTH == set(left.runs[run])
    assert min(left.runs[run].values()) >= steps
    assert says in left.said
    assert ([], 0) == (left.hidden, left.orphans)


def test_a_killed_rank_loses_its_own_steps_only(tmp_path: Path) -> None:
    """Nothing can be written by a process that is killed; its peer writes, and the run is not called complete."""
    left = interrupt(tmp_path, "kill rank", "in", "1")

    assert (1, {"t.failed": {0: FEW}}) == (left.code, left.runs)
    assert "Rank 1 died: killed by SIGKILL" in left.said
    assert ([], 0) == (left.hidden, left.orphans)


def test_what_a_killed_recorder_has_left_is_kept_by_the_next(tmp_path: Path) -> None:
    """If torchrun is killed, too, traces stay in the hidden folder until somebody records to the same name."""
    left = tmp_path / ".t.recording" / "window1"
    recorded = interrupt(tmp_path, "nothing")
    assert recorded.runs, recorded.said
    (tmp_path / "t").rename(tmp_path / "first")
    left.mkdir(parents=True)
    (left.parent / "owner").write_text(f"999999999 {platform.node()}")
    for path in (tmp_path / "first").glob("rank*"):
        path.rename(left / path.name)

    again = interrupt(tmp_path, "nothing")
    assert 0 == again.code
    assert "t.failed" in again.said
    assert {"t", "t.failed", "first"} == set(again.runs)
    assert 2 == len(list((tmp_path / "t.failed").glob("rank*.gz")))
