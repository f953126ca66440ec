"""When an answer is doubted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.replay.doubts import Question, doubts
from dptrace.replay.simulation.changes import Bandwidth, Change, Compute, NoHostDelay
from dptrace.replay.simulation.steady_state import SteadyState
from tests.support.kineto_files import KinetoFile

LEVEL = {"measured_ns": 100.0, "replayed_ns": 100.0, "predicted_ns": 80.0, "bound_ns": 60.0, "absent_share": 0.0}


@pytest.mark.parametrize(
    ("change", "different", "expected"),
    [
        (Compute(2), {}, {}),
        (Compute(2), {"replayed_ns": 94.0}, {"replay_misses": True}),
        (Compute(2), {"absent_share": 0.6}, {"absent_ranks": True}),
        (Compute(2), {"bound_ns": 86.0}, {"steady_state": True}),
        (Compute(2), {"host_share": 0.96}, {"host_sets": False}),
        (NoHostDelay(), {"host_share": 0.96}, {}),
        (Bandwidth(2), {}, {}),
    ],
)
def test_a_doubt_has_its_limit(
    run: dptrace.Run, change: Change, different: Mapping[str, Any], expected: dict[str, bool]
) -> None:
    """Each figure beyond its limit is a doubt; some refuse the answer, and some concern only other changes."""
    about = {"host_share": 0.1, "steps": 4, "steady": SteadyState(60, 50), **LEVEL, **different}

    found = doubts(Question(model=run.replay.model, changes=(change,), **about))

    assert expected == {doubt.kind: doubt.refuses for doubt in found}


def test_waiting_without_a_reason_refuses_an_answer(tmp_path: Path) -> None:
    """A kernel that starts long after its launch, with nothing to wait for, is unexplained."""
    file = KinetoFile().label("ProfilerStep#0", 0, 1000)
    for i in range(9):
        file.kernel("known", 20 + 20 * i, 30 + 20 * i, 10 + 20 * i)
    file.kernel("late", 700, 800, 300)
    opened = dptrace.open(file.write(tmp_path / "rank0.json"), cache=False)

    answer = opened.whatif(compute=2)

    assert not answer.can_tell
    assert "unexplained" in {doubt.kind for doubt in answer.doubts}
