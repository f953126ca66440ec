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
    """Medians: dense in 16 bits below 8 %, float8 15 %, experts 25 %; each answer's range holds 80 % of its kind."""
    found = SCRIPT["kinds"](runs)
    most = {"dense in 16 bits": 0.08, "dense in float8": 0.15, "mixture of experts": 0.25, "long samples": 0.2}

    assert found == KINDS, "run python docs/make_published.py, and write what it prints to planning/published.py"
    assert most.keys() == found.keys()
    for name, kind in found.items():
        own = [run.layout for run in runs if run.layout and kind_name(run.layout.plan.plan) == name]
        inside = [one for one in own if kind.low <= 1 / (1 + one.error) <= kind.high]
        assert len(own) == kind.runs >= 15
        assert kind.median <= most[name]
        assert len(inside) >= 0.8 * len(own)


def test_no_run_is_far_off_without_a_reason(runs: Any) -> None:
    """In time with its layout or by itself, or in memory; of Llama 3 405B the search finds the layout that ran."""
    far = {run.row["run"] for run in runs for one in (run.layout, run.alone) if one and abs(one.error) > 0.3}
    llama = [run.alone.plan.label for run in runs if run.row["run"].startswith("Llama 3 405B")]

    assert {run.row["run"] for run in runs if run.row["reason"]} == far | {
        run.row["run"] for run in runs if run.row["memory_gib"] and abs(off(run)) > 0.3
    }
    assert ["TP 8 × PP 16 v8 × ZeRO-2 ×64", "TP 8 × PP 16 v8 × ZeRO-2 ×128"] == llama


def off(run: Any) -> float:
    """Return predicted over measured memory, minus one."""
    return float(run.layout.plan.memory_bytes / (float(run.row["memory_gib"]) * 2**30) - 1)


def test_measured_memory(runs: Any) -> None:
    """Torchtitan's FSDP of 8 billion parameters on H100s, with up to 262,144 tokens in a sample: within 6 %."""
    rows = [run for run in runs if run.row["memory_gib"] and "8B" in run.row["run"] and "H100" in run.row["run"]]

    assert 8 == len(rows)
    assert max(abs(off(run)) for run in rows) < 0.06


def test_the_page_has_what_is_predicted_now(runs: Any) -> None:
    """If it has not, run python docs/make_published.py."""
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

    assert SCRIPT["table"](runs) in page
