"""Which delays stand out from noise: those that are always there, or far longer than what else happens now and then."""

from __future__ import annotations

from dptrace.replay.noise import Losses, beyond_noise

MS = 1_000_000
STEPS = 10
NOISE = {(step % 2, str(step)): ms for step, ms in enumerate((3, 8, 5, 2, 9, 4, 6, 3, 7, 5))}


def at(rank: int, ms: int, *steps: int) -> dict[tuple[int, str], int]:
    """Return what a rank loses by a cause, as much in each of these steps; in all by default."""
    return {(rank, str(step)): ms * MS for step in steps or range(STEPS)}


def told(*causes: tuple[str, Losses]) -> list[bool]:
    return beyond_noise(causes, {place: ms * MS for place, ms in NOISE.items()}, STEPS)


def test_a_cause_is_told_from_noise() -> None:
    """By its own delays, and the longest of all others."""
    for lost, expected in (
        (at(1, 9), True),  # in each step: no longer than the noise, but always
        (at(1, 3), False),  # in each step, and shorter than the noise
        (at(1, 30, 2, 5, 8), True),  # now and then, three times as long
        (at(1, 12, 2, 5, 8), False),
        (at(1, 500, 4), True),  # once, far longer than all else
        (at(1, 12, 4), False),
        ({(step % 3, str(step)): 40 * MS for step in range(STEPS)}, True),  # in turns, as long each time
        ({(step % 3, str(step)): 8 * MS for step in range(STEPS)}, False),
    ):
        assert [expected] == told(("python", lost))


def test_ranks_without_a_core_in_turns_are_noise() -> None:
    """However long; one that always lacks its core, among others that don't, is not."""
    in_turns = at(0, 60, 1, 5, 7) | at(1, 60, 2, 6)

    assert [False] == told(("no_core", in_turns))
    assert [True] == told(("no_core", at(1, 30)))


def test_a_cause_beside_ranks_without_cores_is_compared_with_them() -> None:
    """What a busy machine does to one rank in its Python code is as long as what it does to others elsewhere."""
    busy = ("no_core", at(0, 20, 0, 3, 6) | at(1, 20, 1, 4, 7))

    assert [False, False] == told(busy, ("python", at(1, 25, 2, 5, 8)))
    assert [False, True] == told(busy, ("python", at(1, 80, 2, 5, 8)))


def test_a_rank_that_is_always_late_is_so_for_all_its_main_causes() -> None:
    """It computes longer, and where it competes for its core, it lacks one: in other steps."""
    compute, core = at(1, 50, 0, 2, 4, 6, 8), at(1, 60, 1, 3, 5, 7, 9)

    assert [True, True, False] == told(("compute", compute), ("no_core", core), ("python", at(1, 3, 0, 1)))
