"""Sentences on the time that the second of two runs saves, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.comparison.step_alignment import LETTERS, AlignedSteps
from dptrace.core.units import duration, share
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline


def time_saved_text(ns: float, of: float, certain: bool) -> str:
    """Write what B saves or loses: ``31.5 ms saved (20 %)``; ``shorter`` or ``longer`` where that may be noise.

    Args:
        certain: whether the comparison of the runs calls such a difference beyond noise.
    """
    if ns == 0:
        return "the same"
    return f"{duration(abs(ns))} {_verb(ns, certain)} ({share(abs(of))})"


def _verb(ns: float, certain: bool) -> str:
    if certain:
        return "saved" if ns > 0 else "lost"
    return "shorter" if ns > 0 else "longer"


def notes_of_all(*runs: Run, names: Sequence[str] = LETTERS) -> list[str]:
    """List the notes of runs on one axis, each with the runs that it belongs to; common notes once."""
    shared = [note for note in runs[0].notes if all(note in run.notes for run in runs)]
    own = [
        f"{name}: {note}" for name, run in zip(names, runs, strict=False) for note in run.notes if note not in shared
    ]
    return [*(f"{' and '.join(names[: len(runs)])}: {note}" for note in shared), *own]


def titles(*runs: Run) -> str:
    """Return the names of runs on one axis, of steps of one run its name."""
    return " → ".join({run.path: headline(run).title for run in runs}.values())


def time_saved_sentence(aligned: AlignedSteps) -> str:
    """Write a sentence on what a step of both runs takes and what the second saves, or why they can't be compared.

    Where the difference may be noise, B takes less or more in the steps drawn; it saves and loses nothing.
    """
    count, (a, b), (one, other) = len(aligned.a.names), aligned.mean_ns(), aligned.names
    mean, per = ("", "") if count == 1 else (f", the mean of {count}", " per step")
    if aligned.incomparable:
        return (
            f"Not compared: {aligned.incomparable}. A step of {one} takes {duration(a)} and one of {other} "
            f"{duration(b)}{mean}; neither saves anything."
        )
    saved = aligned.saved_ns()
    took = f"{duration(b)} against {one}'s {duration(a)}"
    if saved == 0:
        return f"A step of {one} and of {other} takes {duration(a)}{mean}."
    of = share(abs(saved) / a) if a else "–"
    if not aligned.certain(saved):
        less = "less" if saved > 0 else "more"
        drawn = "the step" if count == 1 else f"the {count} steps"
        return f"In {drawn} drawn, {other} takes {duration(abs(saved))} ({of}) {less}{per}: {took}."
    verb = "saves" if saved > 0 else "loses"
    return f"{other} {verb} {duration(abs(saved))} ({of}) per step: {took}{mean}."
