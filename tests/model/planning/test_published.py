"""The page of published trainings: docs/published.md, from docs/published.csv."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from dptrace.model.planning.published import KINDS, kind_name
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow  # 132 searches for a layout

SCRIPT = runpy.run_path(str(ROOT / "docs" / "make_published.py"))


@pytest.fixture(scope="module")
def runs() -> Any:
    return SCRIPT["runs"]()


def test_each_kind_is_off_by_as_much_as_the_answers_say(runs: Any) -> None:
    """Medians with a run's source left out: 16 bits below 8 %, float8 15 %, experts 25 %; ranges hold 80 % then."""
    found = SCRIPT["kinds"](runs)
    most = {"dense in 16 bits": 0.08, "dense in float8": 0.15, "mixture of experts": 0.25, "long samples": 0.45}
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

    kinds = {name: one.kind for name, one in found.items()}
    assert kinds == KINDS, "run python docs/make_published.py, and write what it prints to planning/published.py"
    assert SCRIPT["left_out"](found) in page
    assert most.keys() == kinds.keys()
    for name, kind in kinds.items():
        own = [run for run in runs if run.layout and kind_name(run.layout.plan.plan) == name]
        inside = [ratio for ratio in found[name].ratios if kind.low <= ratio <= kind.high]
        assert len(own) == len(found[name].ratios) == kind.runs >= 15
        assert kind.left_out <= most[name]
        assert kind.median <= min(most[name], 0.2)
        assert len(inside) >= 0.8 * kind.runs


def test_no_run_is_far_off_without_a_reason(runs: Any) -> None:
    """In time, in memory, or in that it fits; of Llama 3 405B the search finds the layout that ran.

    Its stages stay gathered in a step, as those of ZeRO-2 and, in a pipeline, of FSDP do.
    """
    far = {run.row["run"] for run in runs for one in (run.layout, run.alone) if one and abs(one.error) > 0.3}
    far |= {run.row["run"] for run in runs if run.row["memory_gib"] and round(abs(off(run)), 2) > 0.1}
    far |= {run.row["run"] for run in runs if run.layout and not run.layout.plan.fits}
    llama = [run.alone.plan.label for run in runs if run.row["run"].startswith("Llama 3 405B")]

    assert {run.row["run"] for run in runs if run.row["reason"]} == far
    assert ["TP 8 × PP 16 v8 × ZeRO-2 ×64", "TP 8 × PP 16 v8 × FSDP ×128"] == llama


def off(run: Any) -> float:
    """Return predicted over measured memory, minus one."""
    return float(run.layout.plan.memory_bytes / (float(run.row["memory_gib"]) * 2**30) - 1)


def test_measured_memory(runs: Any) -> None:
    """What torchtitan reserved at most: 15 of 18 runs within 10 %, all within 20 %."""
    errors = sorted(abs(off(run)) for run in runs if run.row["memory_gib"])

    assert 18 == len(errors)
    assert round(errors[14], 2) <= 0.1
    assert errors[-1] < 0.2


def test_the_page_has_what_is_predicted_now(runs: Any) -> None:
    """If it has not, run python docs/make_published.py."""
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

    assert SCRIPT["table"](runs) in page
