"""What a benchmark leaves in its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptrace.commands.measuring.bench_files import BenchResult, draw_charts, machine_info, write
from tests.support.bench_tables import WORKSHOP, with_losses


@pytest.mark.heavy
def test_every_file_is_listed_and_there(tmp_path: Path) -> None:
    """The list names what was written; bench.json keeps the plan, and gets rows, machine and sentences."""
    result = BenchResult(
        with_losses(WORKSHOP), "Benchmark", ["a note"], {"devices": ["A100"]}, plan={"plan": {"epochs": 5}}
    )
    written = write(tmp_path, result, draw_charts(result, False), png=False)

    assert ["charts.html", "charts/ (6 pictures)", "table.csv", "table.md", "bench.json"] == written
    content = json.loads((tmp_path / "bench.json").read_text())
    assert ({"epochs": 5}, {"devices": ["A100"]}, ["a note"]) == (content["plan"], content["machine"], content["notes"])
    assert 8 == len(content["rows"][0]["losses"])
    assert "84 % of Amdahl's ceiling" in (tmp_path / "table.md").read_text()
    page = (tmp_path / "charts.html").read_text()
    assert "<span>28 rows</span><span>A100</span>" in page
    assert "a note" in page


@pytest.mark.heavy
def test_a_chart_that_can_no_longer_be_drawn_is_taken_away(tmp_path: Path) -> None:
    """So that the folder never shows figures of another benchmark."""
    result = BenchResult(with_losses(WORKSHOP), "Benchmark")
    write(tmp_path, result, draw_charts(result, False), png=False)
    assert (tmp_path / "charts" / "loss.svg").exists()

    bare = replace(result, rows=WORKSHOP)
    write(tmp_path, bare, draw_charts(bare, False), png=False)
    assert not (tmp_path / "charts" / "loss.svg").exists()


def test_the_machine_is_what_the_runs_say() -> None:
    """All kinds of devices, and the versions of one run; nothing of runs that failed or told nothing."""
    runs: list[dict[str, Any]] = [
        {"device": "A100", "versions": {"torch": "2.13"}},
        {"device": "H100"},
        {"failed": "x", "device": "B"},
        {},
    ]

    assert {"devices": ["A100", "H100"], "versions": {"torch": "2.13"}} == machine_info({"cell": runs})
    assert {"devices": [], "versions": {}} == machine_info({})
