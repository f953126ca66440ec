"""When a host that shows no event was blocked."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.timeline.blocked import Pauses, Work, awaited

MS = 1_000_000
STEPS = np.arange(6) * 100 * MS
JITTER = np.array([0, 3, -2, 5, -4, 1]) * MS


def pauses(length_ns: np.ndarray) -> Pauses:
    """Return a pause in each of six steps, all in one place of the program."""
    return Pauses(STEPS, STEPS + length_ns, np.zeros(6, np.bool_), np.zeros(6, np.int64))


def collectives(end_ns: np.ndarray) -> Work:
    """Return a collective of each step that was launched right before the pause and ends at these times after it."""
    return Work(STEPS - 10_000, STEPS + end_ns, STEPS - 20_000, np.zeros(6, np.int64))


def test_a_pause_that_ends_with_a_collective_is_a_wait() -> None:
    """The length varies with the collective, and the host goes on a constant time after it."""
    end = 40 * MS + JITTER

    assert [*range(6)] == awaited(pauses(end + 100_000), collectives(end), on_cpu=True).tolist()


@pytest.mark.parametrize(("first", "waits"), [(2, True), (3, False)])
def test_a_pause_of_constant_length_is_a_sleep(first: int, waits: bool) -> None:
    """Although a collective that was launched before it ends in it; fewer than three pauses can't tell."""
    sleeps, works = pauses(np.full(6, 60 * MS)), collectives(40 * MS + JITTER)
    some = Pauses(*(getattr(sleeps, name)[:first] for name in Pauses.__struct_fields__))

    assert waits == (awaited(some, works, on_cpu=True) >= 0).all()


def test_other_places_are_judged_apart() -> None:
    """A wait stays one where a sleep of another place has the same collectives."""
    end = 40 * MS + JITTER
    sleeps, waits = pauses(np.full(6, 60 * MS)), pauses(end + 100_000)
    since, until = (
        np.concatenate([getattr(one, name) for one in (sleeps, waits)]) for name in ("since_ns", "until_ns")
    )
    both = Pauses(since, until, np.zeros(12, np.bool_), np.repeat(np.arange(2), 6))

    assert [False] * 6 + [True] * 6 == (awaited(both, collectives(end), on_cpu=True) >= 0).tolist()
