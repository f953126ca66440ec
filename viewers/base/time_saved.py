"""What the second of two runs saves, in words: the same on the page and in the terminal."""

from __future__ import annotations

from dptrace.comparison.step_alignment import AlignedSteps
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline

__all__ = ["duration", "notes_of_both", "time_saved_sentence", "time_saved_text", "titles"]


def duration(ns: float) -> str:
    """Give a duration in its unit with three significant digits.

    >>> duration(31_500_000), duration(999), duration(152_300_000)
    ('31.5 ms', '999 ns', '152 ms')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 1000)):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f} {unit}"
    return f"{ns:.0f} ns"


def percent_text(of: float) -> str:
    """Give a share as per cent: one digit below ten, none above.

    >>> share(0.203), share(0.0456), share(0.0001)
    ('20 %', '4.6 %', '< 0.1 %')
    """
    if 0 < of < 0.0005:
        return "< 0.1 %"
    return f"{100 * of:.{1 if of < 0.0995 else 0}f} %"


def time_saved_text(ns: int, of: float) -> str:
    """Say what B saves or loses: ``31.5 ms saved (20 %)``."""
    if ns == 0:
        return "the same"
    return f"{duration(abs(ns))} {'saved' if ns > 0 else 'lost'} ({percent_text(abs(of))})"


def notes_of_both(a: Run, b: Run) -> list[str]:
    """Say of each note whose it is, and once what holds for both."""
    both = [note for note in a.notes if note in b.notes]
    own = [f"{letter}: {note}" for letter, run in (("A", a), ("B", b)) for note in run.notes if note not in both]
    return [*(f"A and B: {note}" for note in both), *own]


def titles(aligned: AlignedSteps) -> tuple[str, str]:
    """Name the runs."""
    return headline(aligned.a.run).title, headline(aligned.b.run).title


def time_saved_sentence(aligned: AlignedSteps) -> str:
    """Say in a sentence what both runs took, and what B saves; or why that can't be said."""
    count, (a, b) = len(aligned.a.names), aligned.total_ns()
    steps = "its step" if count == 1 else f"{count} steps"
    if aligned.incomparable:
        return (
            f"Not compared: {aligned.incomparable}. For {steps}, A takes {duration(a)} and B {duration(b)}; "
            "neither saves anything."
        )
    saved = aligned.saved_ns()
    if saved == 0:
        return f"A and B take {duration(a)} each for {steps}."
    verb = "saves" if saved > 0 else "loses"
    of = percent_text(abs(saved) / a) if a else "–"
    return f"B {verb} {duration(abs(saved))} ({of}) in {steps}: {duration(b)} against A's {duration(a)}."
