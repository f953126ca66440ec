"""The first screen of a run: its lines, its bar, and what stays said in it."""

from __future__ import annotations

import re

import pytest

import dptrace
from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import NOISE, Finding, Gain, top_findings
from dptrace.core.units import milliseconds, share
from dptrace.replay.findings import findings_of
from dptrace.run.run import Run
from dptrace.viewers.base.theme import GLYPHS
from dptrace.viewers.terminal.screen import LINES, print_screen, said
from tests.support.builders import TimelineBuilder
from tests.support.jobs import MS, job, late_run
from tests.support.paths import ROOT
from tests.support.real_traces import REAL
from tests.support.terminal_text import captured

RUNS = ("ddp_cpu_2ranks", "interleaved_cpu_2ranks", "ddp_h200_2ranks", "single_cpu")
OTHERS = ("straggler_v100_4ranks", "sharded_h100_8ranks", "dlrm_v100_4ranks", "ns_v100_1gpu", "ddp_mi300_rank0of8")


def screen(run: Run, width: int = 80) -> str:
    return captured(lambda console: print_screen(run, console), width)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_it_fits_a_terminal_and_its_figures_are_those_of_json(name: str) -> None:
    """24 lines of 80 columns, one of which is the next command; each share and each rank's figures are known ones."""
    if name in OTHERS and not REAL.exists():
        pytest.skip("needs ../shared")
    run = dptrace.open(REAL / name if name in OTHERS else ROOT / "traces" / name)
    text, answer = screen(run), run.to_dict()
    mean = answer["mean_step"]

    assert len(text.splitlines()) < LINES
    assert max(map(len, text.splitlines())) <= 80
    assert f"{milliseconds(mean['wall_ns'])} ms" in text
    known = {share(ns / mean["wall_ns"]) for ns in mean.values() if isinstance(ns, int)}
    known |= {share((mean["exposed_comm_ns"] - (mean["exposed_wait_ns"] or 0)) / mean["wall_ns"])}
    above = text.partition("\n\n")[0]
    assert set(re.findall(r"[A-Z·] ([\d.]+ %) (?:forward|backward|exposed comm|idle)", above)) <= known
    assert all(finding.text[:24] in text for finding in top_findings(findings_of(run))[:1])
    for width in (60, 100, 132):
        assert max(map(len, screen(run, width).splitlines())) <= width


def test_the_bar_is_to_scale() -> None:
    """A cell for each share of its width, in the letters that the line above it names."""
    lines = screen(late_run(30, 30, 70)).splitlines()
    bar = next(line for line in lines if len(line) == 80 and len(set(line)) < 8)
    letters = {name: letter for name, (letter, _) in GLYPHS.items()}

    assert bar.count(letters["exposed_wait_ns"]) == pytest.approx(0.267 * 80, abs=1)
    assert bar.count(letters["idle_ns"]) == pytest.approx(0.2 * 80, abs=1)
    assert "27 % waiting mostly for rank 2" in " ".join(lines)
    assert any("exposed  of it waiting" in line for line in lines if line.startswith("rank  "))


@pytest.mark.heavy
def test_what_is_unknown_stays_said() -> None:
    """Waiting of incomplete collectives; a run without a step; and the notes are counted."""
    lone = screen(late_run(30, size=2))
    assert "waiting unknown: rank 1 was not recorded" in lone
    assert "There is no step in this run." in screen(Run("r", (TimelineBuilder(bounds=()).build(),)))
    noted = Run("r", late_run(30, 70).timelines, notes=("mind this", "what that costs is unknown"))
    assert "! what that costs is unknown" in screen(noted)
    assert "--notes" in screen(noted)


def test_of_many_ranks_those_that_matter_are_shown() -> None:
    """Who holds others up first, and how many more there are."""
    text = screen(late_run(*[20] * 11, 70))

    assert "held others up" in next(line for line in text.splitlines() if line.startswith("11"))
    assert re.search(r"\d+ more ranks?: --split", text)


def with_straggler(run: Run, rank: int, gain: Gain, advice: str = "Pin it.") -> Run:
    """Let a late rank be all that is found in a run."""
    names = {"step": "s", "collective": "all_reduce", "cause": "unknown", "what": "", "where": ""}
    counts = {"instance": 0, "late_ns": 1, "count": 1}
    evidence = Straggler(rank=rank, ranks=[rank], waiting_ranks=[0], **names, **counts)  # type: ignore[arg-type]
    found = Finding("straggler", "Late.", advice, MS, 0.1, evidence, gain)
    vars(run)["findings_by_question"] = {"findings": (found,)}
    return run


def test_the_late_rank_of_the_findings_comes_first() -> None:
    """Also a stage that nobody waits for in a collective, and that is notable for something else."""
    text = screen(with_straggler(job(ranks=6), 4, Gain("level", 5 * MS, 4 * MS, 6 * MS, 5 * MS, 0.05)))
    rows = text[text.index("\nrank ") :].splitlines()

    assert rows[2].startswith("4 ")
    assert rows[2].endswith("late")


def test_a_range_has_its_unit() -> None:
    """As the figure above it has."""
    assert "4–6.5 ms  →" in screen(with_straggler(job(), 1, Gain("level", 5 * MS, 4 * MS, 13 * MS // 2, 5 * MS, 0.05)))


def test_a_long_word_of_an_advice_stays_on_its_line() -> None:
    """One that is longer than the room beside the figures begins further left."""
    word = f"PYTORCH_ALLOC_CONF={'x' * 30}."
    gain = Gain("level", 5 * MS, 4 * MS, 13 * MS // 2, 5 * MS, 0.05)
    lines = screen(with_straggler(job(), 1, gain, f"Set {word}"), 60).splitlines()

    assert max(map(len, lines)) <= 60
    assert [word] == [line.strip() for line in lines if "PYTORCH" in line]


def test_a_late_rank_that_may_gain_nothing_has_its_advice() -> None:
    """And why it may: where what it loses is hidden, after the advice; where it may be noise, as a condition."""
    cases = {
        "Of 7 ms, the rest is hidden.": "→ Pin it. Of 7 ms",
        f"{NOISE}: 0 to 3 ms.": "→ If it is more than noise, pin it.",
    }
    for reason, expected in cases.items():
        run, gain = late_run(30, 70), Gain("level", 5 * MS, 0, 6 * MS, 5 * MS, 0.05, reason=reason)
        assert expected in " ".join(screen(with_straggler(run, 1, gain)).split())


def test_names_of_strangers_give_no_orders() -> None:
    """A path with markup, an escape sequence or a line break stays text on its line."""
    run = job(path="runs/[red]x\x1b[31m\n! y")

    assert "\x1b" not in screen(run)
    assert r"\n! y" in screen(run)
    assert "[red]x" in screen(run)


def test_a_text_ends_with_a_clause() -> None:
    """However narrow: no list, no name in quotes and no parenthesis is cut, and nothing is an ellipsis."""
    for width in range(8, 90, 7):
        text = (
            "Ranks 0 and 1 wait for rank 2: its host runs “# my: label” (in a; b), up to 3 ms longer; look there. And."
        )
        short = said(text, width, 1)

        assert short == text or text.startswith(short.removesuffix(".")), width
        assert len(short) <= max(width, len("Ranks 0 and 1 wait for rank 2.")), width
        assert short == text or text[len(short) - 1] in ":;,. ", width
        assert (short.count("“"), short.count("(")) == (short.count("”"), short.count(")")), width
        assert "Send less, pack it, or wait." == said("Send less, pack it, or wait.", width, 1), width


@pytest.mark.heavy
def test_no_sentence_of_the_screen_is_cut() -> None:
    """With findings of long texts on a narrow terminal, too: what does not fit is left out, not cut."""
    for width in (60, 80, 132):
        text = screen(dptrace.open(ROOT / "traces" / "ddp_h200_2ranks"), width)
        assert "…" not in text
        assert re.search(r"! .*\.", " ".join(text.split()))
