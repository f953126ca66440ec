"""Notes on a matching."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dptrace.analysis.matching.match import match
from dptrace.timeline.model import Collective
from tests.support.rank_cases import rank, reduce

MS = 1_000_000
CALLS = [reduce(0, (i + 1) * MS, 4_000 + i) for i in range(6)]


def test_a_complete_run_needs_no_words() -> None:
    """All ranks recorded, all calls matched."""
    assert () == match([rank(0, CALLS), rank(1, CALLS)], world_size=2).notes


def test_what_a_rank_lacks_in_its_own_time_is_reported() -> None:
    """Calls before or after its capture do not count."""
    matches = match([rank(0, CALLS), rank(1, [*CALLS[1:3], *CALLS[4:5]]), rank(2, CALLS)])

    (note,) = matches.notes
    assert "Rank 1 lacks 1 collective" in note
    assert "(all_reduce in ProfilerStep#0)" in note
    assert [[], [], []] == [lone.tolist() for lone in matches.unmatched]


def test_what_no_other_rank_has_is_counted() -> None:
    """Two barriers on one rank, one of them launched before the first step."""
    extra = [
        (0, 500_000, 600_000, Collective("barrier", 1, "Byte", "0")),
        (-1, 10, 20, Collective("barrier", 1, "Byte", "0")),
    ]

    matches = match([rank(0, [*CALLS, *extra]), rank(1, CALLS)])

    assert (
        "Rank 0: 2 collectives have no counterpart on any other rank, 1 of them launched outside the recorded steps.",
    ) == matches.notes


@pytest.mark.parametrize(
    ("ranks", "named"),
    [((0, 1, 2), "(rank 2)"), (tuple(range(14)), "(ranks 2, 3, 4, 5, 6, 7, 8, 9 and 4 more)")],
)
def test_absent_ranks_are_named_once(ranks: tuple[int, ...], named: str) -> None:
    """One, or the first eight; those of a job of known size are named in the run's own notes."""
    calls = [reduce(0, MS, ranks=ranks, group_size=len(ranks))]

    (note,) = match([rank(0, calls), rank(1, calls)]).notes
    assert named in note
    assert note.startswith("1 collective is incomplete")
    (note,) = match([rank(0, calls), rank(1, calls)], len(ranks)).notes
    assert named not in note


def test_sizes_come_from_the_group_else_from_the_job_else_from_who_is_here() -> None:
    """A send and its receive have size two."""
    named, unnamed = reduce(0, MS, group_size=5), (*reduce(0, 2 * MS)[:3], Collective("all_reduce", 4, "Float"))
    sent = 0, 3 * MS, 3 * MS + 10, Collective("send", 1, "Float", "0", 5, peer=1)
    received = (*sent[:3], replace(sent[3], kind="recv", peer=0))
    run = [rank(0, [named, unnamed, sent]), rank(1, [named, unnamed, received])]

    assert [5, 2, 2] == match(run).size.tolist()
    assert [5, 3, 2] == match(run, world_size=3).size.tolist()
