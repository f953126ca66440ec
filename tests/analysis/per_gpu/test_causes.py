"""What a record of a cause of idle time is enough for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import idle
from dptrace.comparison import baseline
from tests.support.paths import ROOT
from tests.support.planted_cause import LABEL, NAME, PLANTED, TEXT

RUN = str(ROOT / "traces" / "single_h200")


def test_idle_time_has_a_set_for_each_cause_in_order() -> None:
    """Also where causes are not known."""
    assert [*CAUSES] == [*idle(dptrace.open(RUN).timelines[0]).sets]


@pytest.mark.spawn
def test_a_planted_cause_is_told_everywhere(tmp_path: Path) -> None:
    """Its record, intervals and change alone put it into tables, JSON, pages and findings with gains; a baseline that
    was saved without it has 0 of it.
    """
    saved = tmp_path / "main.json"
    baseline.save(saved, [dptrace.open(RUN)])
    command = [sys.executable, "-m", "tests.support.planted_cause", RUN, str(tmp_path), str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert 0 == done.returncode, done.stderr
    found = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    analyzed, compared = json.loads(found["analyze.json"]), json.loads(found["diff.json"])
    (figure,) = [row for row in compared["figures"] if row["figure"] == NAME]

    assert all(LABEL in found[name].lower() for name in ("view.txt", "report.html", "page.html"))
    assert TEXT in " ".join(found["analyze.txt"].split())
    assert 0 < next(one["gain_ns"] for one in analyzed["findings"] if one["kind"] == "planted")
    assert PLANTED.look[0] in found["page.html"]
    assert (0, True) == (figure["a_ns"], figure["b_ns"] > 2_000_000)
    assert any(LABEL in note for note in compared["a"]["notes"])
