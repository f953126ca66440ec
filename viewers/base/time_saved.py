"""Sentences on the time that the second of two runs saves, for the page and the terminal."""

from __future__ import annotations

from dptrace.comparison.step_alignment import AlignedSteps
from dptrace.core.units import duration, share
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline


def time_saved_text(ns: int, of: float, certain: bool) -> str:
    """Write what B saves or loses: ``31.5 ms saved (20 %)``; ``shorter`` or ``longer`` where that may be noise.

    Args:
        certain: whether the comparison of the runs calls such a difference beyond noise.
    """
    if ns == 0:
        return "the same"
    return f"{duration(abs(ns))} {_verb(ns, certain)} ({share(abs(of))})"


def _verb(ns: int, certain: bool) -> str:
    if certain:
        return "saved" if ns > 0 else "lost"
    return "shorter" if ns > 0 else "longer"


def notes_of_both(a: Run, b: Run) -> list[str]:
    """List the notes of both runs, each with the run that it belongs to; common notes once."""
    both = [note for note in a.notes if note in b.notes]
    own = [f"{letter}: {note}" for letter, run in (("A", a), ("B", b)) for note in run.notes if note not in both]
    return [*(f"A and B: {note}" for note in both), *own]


def titles(aligned: AlignedSteps) -> tuple[str, str]:
    """Return the names of the runs."""
    return headline(aligned.a.run).title, headline(aligned.b.run).title


def time_saved_sentence(aligned: AlignedSteps) -> str:
    """Write a sentence on what both runs took and what B saves, or why they can't be compared.

    Where the difference may be noise, B takes less or more in the steps drawn; it saves and loses nothing.
    """
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
    of = share(abs(saved) / a) if a else "–"
    if not aligned.certain(saved):
        less = "less" if saved > 0 else "more"
        drawn = "the step drawn" if count == 1 else f"the {steps} drawn"
        return f"In {drawn}, B takes {duration(abs(saved))} ({of}) {less}: {duration(b)} against A's {duration(a)}."
    verb = "saves" if saved > 0 else "loses"
    return f"B {verb} {duration(abs(saved))} ({of}) in {steps}: {duration(b)} against A's {duration(a)}."
