"""Matching of collectives, on synthetic ranks and on real ones with missing parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.matching.match import Matches, match
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.timeline.model import Collective
from tests.support.rank_cases import (
    JOBS,
    Call,
    cut,
    instances,
    of_trace,
    rank,
    real_ranks,
    real_traces,
    reduce,
    shifted,
    without,
)
from tests.support.real_traces import needs_real_traces

MS = 1_000_000


def members(matches: Matches) -> list[list[int]]:
    table: list[list[int]] = matches.member.tolist()
    return table


def test_calls_of_a_step_match_by_sort_and_order() -> None:
    """The n-th call of a size in a step is the n-th of that size on the other rank, regardless of calls in between."""
    one = [reduce(0, 1 * MS), reduce(0, 2 * MS, 8_000), reduce(0, 3 * MS), reduce(1, 9 * MS)]
    two = [reduce(0, 1 * MS), reduce(0, 2 * MS), reduce(0, 3 * MS, 8_000), reduce(1, 9 * MS)]

    matches = match([rank(0, one), rank(1, two)])

    assert [[0, 0], [1, 2], [2, 1], [3, 3]] == sorted(members(matches))
    assert ["ProfilerStep#0"] * 3 + ["ProfilerStep#1"] == matches.step.tolist()
    assert ["all_reduce"] * 4 == matches.kind.tolist()
    assert [4_000, 4_000, 4_000, 8_000] == sorted(matches.bytes.tolist())
    assert matches.complete.all()
    assert () == matches.notes


@pytest.mark.heavy
def test_one_of_404_equal_calls_missing_shifts_none() -> None:
    """DDP by parameter: all-reduces of one size, 20 µs apart; the other ranks' calls keep their partners."""
    ends = np.cumsum(np.random.default_rng(0).integers(60_000, 200_000, 404)).tolist()
    calls = [reduce(0, end) for end in ends] + [reduce(1, ends[-1] + 10 * MS + i * MS) for i in range(4)]
    whole, third = rank(0, calls), rank(2, calls)
    for missing, ahead_ms in ((0, 0), (0, 5), (1, -500), (200, 0), (200, 5), (402, -500), (403, 5)):
        short = rank(1, calls[:missing] + calls[missing + 1 :])
        matches = match([whole, shifted(short, ahead_ms * MS), third])
        expected = [[i, i - (i > missing) if i != missing else -1, i] for i in range(408)]
        assert expected == members(matches)
        assert [[], [], []] == [lone.tolist() for lone in matches.unmatched]
        assert (missing > 0) == any("Rank 1 lacks 1 collective" in note for note in matches.notes)


def test_each_of_two_ranks_may_lack_another() -> None:
    """The same number on both, but different calls: their end times decide."""
    ends = np.cumsum(np.random.default_rng(0).integers(300_000, 900_000, 40)).tolist()
    calls = [reduce(0, end) for end in ends]

    matches = match([rank(0, calls[:17] + calls[18:]), shifted(rank(1, calls[:25] + calls[26:]), 3 * MS)])

    assert 38 == int((np.diff(matches.first) == 2).sum())
    assert [[24], [17]] == [lone.tolist() for lone in matches.unmatched]
    assert ["Rank 0: 1 collective has no counterpart on any other rank."] == list(matches.notes[:1])


def test_sequence_numbers_come_before_all() -> None:
    """Sequence numbers match, even against steps and times."""
    one = [reduce(0, (i + 1) * MS, seq=70 + i) for i in range(5)]
    two = [reduce(1, (i + 40) * MS, seq=72 + i) for i in range(5)]

    assert [[0, -1], [1, -1], [2, 0], [3, 1], [4, 2], [-1, 3], [-1, 4]] == members(match([rank(0, one), rank(1, two)]))


def test_groups_of_one_name_with_other_ranks_do_not_mix() -> None:
    """Tensor-parallel and data-parallel pairs in a job of four ranks, all with the same name."""

    def calls(number: int) -> list[Call]:
        tensor = (0, 1) if number < 2 else (2, 3)
        data = (0, 2) if number % 2 == 0 else (1, 3)
        late = 10_000 if number >= 2 else 0
        return [
            reduce(0, (i + 1) * MS + late, group="1", group_size=2, ranks=tensor if i % 2 else data) for i in range(8)
        ]

    matches = match([rank(number, calls(number)) for number in range(4)])

    assert 16 == len(matches)
    assert {2} == set(np.diff(matches.first).tolist())
    for i in range(16):
        here = tuple(matches.device[matches.first[i] : matches.first[i + 1]].tolist())
        assert here == matches.groups[matches.group[i]].ranks
    assert matches.complete.all()


def test_one_name_for_several_groups_is_not_guessed_at() -> None:
    """Without a list of ranks, the two members among four ranks are unknown: noted, not matched."""
    calls = [reduce(0, (i + 1) * MS, group="tp", group_size=2) for i in range(3)]

    matches = match([rank(number, calls) for number in range(4)])

    assert 12 == len(matches)
    assert not matches.complete.any()
    assert "Group 'tp' has 2 ranks but is used on more" in matches.notes[0]
    assert 1 == len(matches.notes)


def point(kind: str, peer: int, end: int, **about: object) -> Call:
    return 0, end - 10_000, end, Collective(kind, 1_000, "Half", "pp", 3, peer=peer, **about)  # type: ignore[arg-type]


def test_a_send_is_matched_with_its_receive() -> None:
    """A pipeline of three stages: two micro-batches forward, from each stage to the next."""
    first = [point("send", 1, 1 * MS), point("send", 1, 2 * MS)]
    second = [point("recv", 0, 1 * MS), point("send", 2, 2 * MS), point("recv", 0, 3 * MS), point("send", 2, 4 * MS)]
    third = [point("recv", 1, 2 * MS), point("recv", 1, 4 * MS)]

    matches = match([rank(0, first), rank(1, second), rank(2, third)])

    assert [[-1, 1, 0], [-1, 3, 1], [0, 0, -1], [1, 2, -1]] == sorted(members(matches))
    assert {"send_recv"} == set(matches.kind.tolist())
    assert matches.complete.all()
    assert {2} == set(matches.size.tolist())


def test_between_two_ranks_a_send_meets_a_coalesced_kernel() -> None:
    """In a group of two the peer is known, even if one kernel sends and receives."""
    pair = {"group": "pp", "ranks": (0, 1)}
    one = [(0, i * MS, i * MS + 10_000, Collective("send", 1_000, "Half", group_size=2, **pair)) for i in range(4)]  # type: ignore[arg-type]
    two = [(0, i * MS, i * MS + 10_000, Collective("send_recv", 0, "Half", group_size=2, **pair)) for i in range(4)]  # type: ignore[arg-type]

    assert [[i, i] for i in range(4)] == members(match([rank(0, one), rank(1, two)]))


def test_sends_that_do_not_say_to_whom_are_left_alone() -> None:
    """In a group of three the peer is unknown."""
    calls = [point("send", -1, i * MS) for i in range(1, 4)]

    matches = match([rank(number, calls) for number in range(3)])

    assert 9 == len(matches)
    assert any("9 sends and receives" in note and "not matched" in note for note in matches.notes)


def test_a_call_launched_before_recording_is_matched_with_what_others_show_of_it() -> None:
    """Without a recorded launch it has no bytes, step or group; the group of its stream and its end time decide."""
    full = [reduce(0, 1 * MS), reduce(1, 5 * MS), reduce(1, 9 * MS)]
    orphan = (-1, full[0][1], full[0][2], Collective("all_reduce"))
    late = rank(1, [orphan, *((0, *call[1:]) for call in full[1:])], ("ProfilerStep#1",))

    matches = match([rank(0, full), late])

    assert [[0, 0], [1, 1], [2, 2]] == members(matches)
    assert "ProfilerStep#0" == matches.step[0]
    assert 4_000 == matches.bytes[0]


def test_a_rank_without_a_trace_is_reported() -> None:
    """For groups that list their ranks, groups of known size, and a job of known size."""
    listed = [reduce(0, MS, group_size=4, ranks=(0, 1, 2, 3)), reduce(0, 2 * MS, group="1", ranks=(0, 1), group_size=2)]
    sized, plain = [reduce(0, MS, group_size=3)], [reduce(0, MS, group="")]
    of_list = match([rank(0, listed), rank(1, listed)])
    of_size = match([rank(0, sized), rank(1, sized)])
    of_job = match([rank(0, plain), rank(2, plain)], world_size=3)

    for matches, said in ((of_list, "ranks 2, 3"), (of_size, "not recorded"), (of_job, "")):
        (note,) = matches.notes
        assert "1 collective is incomplete" in note
        assert said in note
    assert [False, True] == of_list.complete.tolist()
    assert [4, 2] == of_list.size.tolist()
    assert not of_job.complete.any()


def test_files_of_two_jobs_have_no_complete_collective() -> None:
    """Rank 0 of two and ranks 1 to 3 of four are four ranks, but their groups are not of one size."""
    small, large = [reduce(0, MS, group_size=2)], [reduce(0, MS, group_size=4)]
    matches = match([rank(0, small), *(rank(number, large) for number in (1, 2, 3))])

    assert [4] == np.diff(matches.first).tolist()
    assert [False] == matches.complete.tolist()


def test_a_lone_call_is_complete_only_where_its_group_has_one_rank() -> None:
    """Whether a single rank of a group of unknown size is all of it, nothing shows."""
    alone, unknown = reduce(0, MS, group_size=1), reduce(0, 2 * MS, group="a")

    assert [True, False] == match([rank(0, [alone, unknown])]).complete.tolist()


def test_ranks_without_communication_have_no_collectives() -> None:
    """Neither an empty run nor a single rank is an error."""
    for count in (0, 1, 2):
        matches = match([rank(number, []) for number in range(count)])
        assert 0 == len(matches)
        assert (0, count) == matches.member.shape
        assert () == matches.notes


def test_several_gpus_of_one_rank_are_devices_of_their_own() -> None:
    """Two processes with two GPUs each: an all-reduce over four."""
    calls = [reduce(0, MS, group_size=4)]
    both = [
        replace(d, timeline=replace(d.timeline, device=gpu)) for d in (rank(0, calls), rank(1, calls)) for gpu in (0, 1)
    ]

    matches = match(both)

    assert ((0, 0), (0, 1), (1, 0), (1, 1)) == matches.device_ids
    assert [[0, 0, 0, 0]] == members(matches)
    assert matches.complete.all()


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(300_000, 900_000)), min_size=6, max_size=40),
    st.lists(st.sets(st.integers(0, 39), max_size=3), min_size=2, max_size=3),
    st.integers(-(10**9), 10**9),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_missing_no_two_collectives_are_mixed(
    plan: list[tuple[int, int, int]], missing: list[set[int]], ahead: int
) -> None:
    """Steps of random lengths and sizes, ranks that lack calls, a shifted clock: every call finds its instance."""
    ends = np.cumsum([gap for _, _, gap in plan]).tolist()
    steps = np.sort([step for step, _, _ in plan]).tolist()
    calls = [reduce(step, end, 4_000 * (1 + size)) for step, end, (_, size, _) in zip(steps, ends, plan, strict=True)]
    # A last step that all ranks have in full: without a certain match, the result is a guess.
    calls += [reduce(3, ends[-1] + (i + 1) * MS + i * i * 70_000, 100) for i in range(4)]
    kept = [[i for i in range(len(calls)) if i not in lost or i >= len(plan)] for lost in [set[int](), *missing]]
    names = tuple(f"ProfilerStep#{k}" for k in range(4))
    run = [rank(number, [calls[i] for i in own], names) for number, own in enumerate(kept)]

    matches = match([run[0], shifted(run[1], ahead), *run[2:]])

    found = {
        frozenset((d, kept[d][i]) for d, i in enumerate(row) if i >= 0): {
            kept[d][i] for d, i in enumerate(row) if i >= 0
        }
        for row in members(matches)
    }
    assert all(len(calls_of) == 1 for calls_of in found.values())
    assert len(calls) == len(found)


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("job", JOBS)
def test_all_of_a_real_job_is_matched(job: str) -> None:
    """Every collective that all ranks recorded has a member on each, and nothing is unmatched."""
    run = real_ranks(job)
    matches = match(run)

    recorded = min(len(device.timeline.collectives) for device in run)
    assert recorded <= len(matches)
    assert recorded == int((np.diff(matches.first) == len(run)).sum())
    assert all(len(lone) == 0 for lone in matches.unmatched)
    ends = np.where(matches.member >= 0, matches.to_table(matches.end_ns, 0), np.iinfo(np.int64).max)
    assert (np.diff(ends.min(axis=1)) >= 0).all()


def expected(run: tuple[DeviceFigures, ...], who: int, kept: set[int]) -> set[frozenset[tuple[int, int]]]:
    """Return the instances of the complete run without the members of one rank that were cut."""
    found = {frozenset(m for m in one if m[0] != who or m[1] in kept) for one in instances(match(run))}
    return found - {frozenset()}


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("low", "high"), [(1 / 3, 1), (0, 2 / 3)], ids=["begins late", "ends early"])
@pytest.mark.parametrize("ahead", [0, 5 * MS])
def test_what_a_shorter_capture_holds_is_matched_as_before(job: str, low: float, high: float, ahead: int) -> None:
    """One rank loses the first or the last third of its events: the rest keeps its partners."""
    run = real_ranks(job)
    short = of_trace(cut(real_traces(job)[1], low, high))
    matches = match([run[0], shifted(short, ahead), *run[2:]])

    assert expected(run, 1, set(short.timeline.start_ns.tolist())) == instances(matches, ahead, 1)


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("ahead", [0, -500 * MS])
def test_one_missing_collective_or_rank_moves_no_other(job: str, ahead: int) -> None:
    """Each of one rank's collectives is dropped in turn, then the rank."""
    run = real_ranks(job)
    comm = run[1].timeline.start_ns[run[1].timeline.collective >= 0]
    for index in range(0, len(comm), 3):
        matches = match([run[0], shifted(without(run[1], index), ahead), *run[2:]])
        assert expected(run, 1, set(np.delete(comm, index).tolist())) == instances(matches, ahead, 1)

    assert expected(run, 1, set()) == instances(match([run[0], *run[2:]]))


# Notes on a matching.


CALLS = [reduce(0, (i + 1) * MS, 4_000 + i) for i in range(6)]


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


def test_absent_ranks_are_named_once() -> None:
    """One, or the first eight; those of a job of known size are named in the run's own notes."""
    for ranks, named in (((0, 1, 2), "(rank 2)"), (tuple(range(14)), "(ranks 2, 3, 4, 5, 6, 7, 8, 9 and 4 more)")):
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
