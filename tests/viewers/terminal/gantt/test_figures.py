"""The figures below the terminal's picture: those of the split."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import FIGURES
from tests.support.builders import two_rank_timelines
from tests.support.jobs import job
from tests.support.terminal_text import drawn, paired, run_of, training


def test_the_figures_are_the_splits() -> None:
    """Below the picture stand the figures of each rank, as shares and the wall time, with what of it is waiting."""
    run = run_of(*two_rank_timelines())
    waits = run.cross_rank.exposed_waits

    rows = [line.split() for line in drawn(run) if line.startswith("rank ") and "%" in line]

    for split, row in zip(run.splits, rows, strict=True):
        total = split.total() | waits[split.rank].total()
        names = [*FIGURES[:5], "exposed_wait_ns", *FIGURES[5:-1]]
        shares = [f"{100 * (total[name] or 0) / (total['wall_ns'] or 1):.1f}%" for name in names]
        assert ["rank", str(split.rank), *shares, "200", "µs"] == row


def test_narrow_terminals_get_sentences() -> None:
    """Where the table would be cut the figures are told in words, none of them cut."""
    text = " ".join(drawn(run_of(training(0, 2)), 40))

    assert "rank 0: forward 30.0%, backward 40.0%" in text
    assert "exposed comm 15.0%, overlapped comm 20.0%" in " ".join(text.split())


def test_the_figures_of_both_runs_stand_below() -> None:
    """Shares by rank, steps side by side, idling by cause and collectives by kind, of each."""
    a, b = job(), job(seed=1, factors={"exposed": 0.2})
    text = "\n".join(paired(a, b, 120))

    for letter, run in (("A", a), ("B", b)):
        for split in run.splits:
            share = 100 * split.total()["backward_ns"] / split.total()["wall_ns"]
            assert any(
                line.startswith(f"{letter} rank {split.rank} ") and f"{share:.1f}%" in line
                for line in text.splitlines()
            )
        assert f"{letter}  all_reduce: 1 per step, 4.1 kB" in text
        assert f"{letter}  Idle 4.0" in text or f"{letter}  Idle 3.9" in text
    assert 8 == sum("saved (" in line and line.strip()[0].isdigit() for line in text.splitlines())


def test_the_names_of_compared_steps_are_text() -> None:
    """Also where the terminal's library would take them for markup."""
    timeline = training(0, 2)
    timeline = replace(timeline, windows=replace(timeline.windows, names=("one[/b]", "two[/b]")))

    assert any("one[/b]" in line and "µs" in line for line in paired(run_of(timeline), run_of(timeline), 120))


def test_causes_and_kinds_are_reported() -> None:
    """Why the GPU was idle, and what of each collective was hidden: means of a step."""
    lines = drawn(run_of(*two_rank_timelines()), 108)

    assert any(
        line.startswith(
            "all_reduce: 1 per step, 4.1 kB, 10.5 µs exposed (none of it waiting), 20.0 µs overlapped (65.6"
        )
        for line in lines
    )
    assert any(line.startswith("Idle 11.5 µs per step: ") for line in lines)


def test_a_wait_that_is_not_known_has_no_column() -> None:
    """One of two ranks does not show how long it waited."""
    alone, both = (drawn(run_of(*two_rank_timelines()[:count]), 108) for count in (1, 2))

    assert not any("waiting)" in line or " wait " in line for line in alone)
    assert any("waiting)" in line for line in both)
