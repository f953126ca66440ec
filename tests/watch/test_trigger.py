"""When a capture is asked for, from files whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.watch import account, trigger
from dptrace.watch.follow import Follower
from dptrace.watch.records import CORE_WAIT_BITS
from dptrace.watch.trigger import Trigger
from tests.support.watch_records import Job, Plant


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # A reader looks twice a second, and pauses after a capture.
    monkeypatch.setattr(account, "_BATCH", 10)
    monkeypatch.setattr(trigger, "_PAUSE_S", 0.0)


def reasons(folder: Path, job: Job) -> list[str]:
    asks = Trigger(folder, 9, 5)
    asks.say = lambda text: None
    Follower(job.write(folder), asks).poll()
    return [capture.why for capture in asks.captures]


@pytest.mark.heavy
def test_each_capture_needs_late_steps_of_its_own(tmp_path: Path) -> None:
    """Ten late steps ask for one; a single one after the pause asks for none; ten more do."""
    late = [Plant(1, "forward", 20.0, when) for when in ((60, 75), (172, 173), (230, 245))]
    found = reasons(tmp_path, Job("ddp", 3, late).run(260))

    assert 2 == len(found)
    assert all("rank 1 was late" in why and "took longer in forward" in why for why in found)


@pytest.mark.parametrize(("waits", "count"), [(0, 1), (300, 1), (700, 0)])
def test_lateness_that_waiting_for_cores_explains_asks_for_none(waits: int, count: int, tmp_path: Path) -> None:
    """Of a step of 40 to 60 ms, the ranks wait for a core for up to seven tenths, and one is late by 20 ms."""
    job = Job("ddp", 3, [Plant(1, "forward", 20.0, (60, 75))])
    for rank in job.ranks:
        rank.flags = waits << CORE_WAIT_BITS

    assert count == len(reasons(tmp_path, job.run(100)))


@pytest.mark.parametrize(("waits", "reason"), [(0, "no rank was late"), (999, "for a core, which other processes had")])
def test_a_slow_step_without_a_late_rank_says_what_is_known(waits: int, reason: str, tmp_path: Path) -> None:
    """Communication only where the ranks had their cores."""
    job = Job("ddp", 3).run(70)
    for rank in job.ranks:
        rank.flags = waits << CORE_WAIT_BITS
        rank.waits(2, rank.time + 200_000_000)
    job.run(1)
    for rank in job.ranks:
        rank.flags = 0
    (why,) = reasons(tmp_path, job.run(20))

    assert reason in why


@pytest.mark.parametrize(
    ("steps", "count", "names"), [((1, 100), 100, True), ((97, 100), 100, False), ((1, 40), 40, False)]
)
def test_a_line_names_a_rank_late_over_all_of_its_last_steps(
    steps: tuple[int, int], count: int, names: bool, tmp_path: Path
) -> None:
    """A line of every ten seconds is about more than the last half second, in which a rank may wait for a core."""
    job = Job("ddp", 3, [Plant(1, "forward", 20.0, steps)])
    for rank in job.ranks:
        rank.flags = 100 << CORE_WAIT_BITS
    follower = Follower(job.run(count).write(tmp_path))
    follower.poll()

    assert names == ("late: rank 1 in forward" in follower.line())


@pytest.mark.parametrize(
    ("low", "gain", "reason", "doubts"),
    [(8, 14, None, False), (0, 14, None, True), (None, None, "The replay misses.", True), (None, None, None, False)],
)
def test_a_captures_sentence_has_the_doubts_of_its_finding(
    low: int | None, gain: int | None, reason: str | None, doubts: bool
) -> None:
    """A gain that may be none, and one that a replay cannot tell."""
    gains = {"gain_ns": gain, "gain_low_ns": low, "gain_high_ns": 20, "gain_reason": reason}

    assert doubts == ("an't tell" in trigger._doubt(gains))
