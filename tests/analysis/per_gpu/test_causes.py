"""What a record of a cause of idle time, or of a late rank, is enough for, and what it must have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.findings.stragglers import straggler_advice, straggler_reason
from dptrace.analysis.per_gpu.causes import CAUSES, DELAY_CAUSES, IDLE_CAUSES, DelayCause, IdleCause
from dptrace.analysis.per_gpu.split import idle
from dptrace.commands.diff import command as diff
from dptrace.comparison import baseline
from dptrace.timeline.model import HOST_CAUSE_WORDS, HostCause
from tests.support.paths import ROOT
from tests.support.planted_cause import LABEL, NAME, PLANTED, TEXT

RUN = str(ROOT / "traces" / "single_h200")


def _doc(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_idle_time_has_a_set_for_each_cause_in_order() -> None:
    """Also where causes are not known."""
    assert [*CAUSES] == [*idle(dptrace.open(RUN).timelines[0]).sets]


@pytest.mark.parametrize("host", HostCause, ids=lambda host: host.name)
def test_what_a_host_does_has_words_and_one_cause_of_delays(host: HostCause) -> None:
    """Whoever adds a thing that hosts do learns all places where it belongs."""
    delays = [cause.name for cause in DELAY_CAUSES if host in cause.host_causes]
    idle = [cause.name for cause in IDLE_CAUSES if host in cause.host_causes and cause.name != "launching_ns"]
    wanted = {
        "Add its words to HOST_CAUSE_WORDS in timeline/model.py.": host in HOST_CAUSE_WORDS,
        f"Put it into one DelayCause in per_gpu/causes.py, not {len(delays)}.": len(delays) == 1,
        f"Put it into one IdleCause in per_gpu/causes.py, not {len(idle)}.": len(idle) == 1,
    }

    assert "" == "\n".join(advice for advice, is_so in wanted.items() if not is_so)


@pytest.mark.parametrize("cause", IDLE_CAUSES, ids=lambda cause: cause.name)
def test_a_cause_is_complete(cause: IdleCause) -> None:
    """Whoever adds one learns what its record and the documents lack; ``test_every_kind.py`` asks for its gain."""
    row = f"| *{cause.label.removeprefix('pipeline ')}* |"
    figures = (diff.help or "").partition("FIGURE is")[2].partition(". ")[0].replace(",", "").split()
    others = [other for other in IDLE_CAUSES if {*cause.look[::2]} & {*other.look[::2]}]
    wanted = {
        f"Add the row {row} to Idle causes in definitions.md.": row in _doc("definitions.md"),
        f"Add {cause.kind} to the figures in guides/ci.md.": f"`{cause.kind}`" in _doc("guides/ci.md"),
        f"Add {cause.name} to reference/json.md.": f"`{cause.name}`" in _doc("reference/json.md"),
        f"Add {cause.kind} to the FIGUREs in the help of commands/diff.py.": cause.kind in figures,
        "Say what the page says of its gaps: set gap, or host_causes.": cause.gap or cause.host_causes,
        "Its advice is not shown: set text, too.": cause.text or not cause.advice,
        "What hosts spend no time in is unknown: set host_causes.": cause.host_causes or not cause.without,
        "Take a color that is like no other: `python -m benchmarks.palette` proposes one.": others == [cause],
    }

    assert "" == "\n".join(advice for advice, is_so in wanted.items() if not is_so)


@pytest.mark.parametrize("cause", DELAY_CAUSES, ids=lambda cause: cause.name)
def test_a_late_rank_s_cause_has_words_and_advice(cause: DelayCause) -> None:
    """However many ranks are late, whether or not it is known in what."""
    advice = straggler_advice(cause.name, {"torch": "2.14.0"}, "cudaMalloc")
    told = {straggler_reason(cause.name, what, "a", late, False) for what in ("", "f") for late in ([1], [1, 2])}

    assert advice.endswith(".")
    assert all(told) or cause.name in ("not_recorded", "unknown"), f"Set the reason of {cause.name} in causes.py."
    rows = _doc("definitions.md").partition("\n| Cause | Where the late rank")[2].partition("\n\n")[0]
    assert f"`{cause.name}`" in rows or cause.name == "not_recorded", f"Add {cause.name} to definitions.md."


@pytest.mark.slow
@pytest.mark.spawn
def test_a_planted_cause_is_told_everywhere(tmp_path: Path) -> None:
    """Its record alone puts it into tables, JSON, pages and findings with gains; a baseline that was saved without it
    has 0 of it.
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
