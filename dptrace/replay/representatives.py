"""Replay some ranks of a large run for all of them: each stands for ranks whose steps are like its own.

::

    recorded   0  1  2  3  4  5  6  7      figures of each step: 0 2 4 6 are alike, so are 1 3 7; 5 is the slowest
    replayed   0  1           5
               │  └── for 3 and 7           what these do later than it at a collective, as recorded, the others
               └── for 2, 4 and 6          of the collective still wait for
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
import numpy as np

from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.intervals import Int64, mask_of, median
from dptrace.core.units import duration, share
from dptrace.run.notable_ranks import HELD_UP, notable_ranks
from dptrace.run.run import Run

MOST_REPLAYED = 64
"""Ranks that are replayed besides those that stand out; of a run with no more, all are."""
_MOST_NOTABLE = 12
"""Notable ranks that are replayed themselves, at most."""
_LATEST, _FEW_MATES = 2, 8
"""Late ranks whose groups are replayed, too, and ranks of such a group, at most."""
_ALIKE = 0.001
"""Share of a step by which the figures of ranks may differ where others are further apart."""
_MAX_REPLAYED_SHARE = 0.75
"""Share of the ranks from which all are replayed instead."""
_OTHER_PROGRAM = 1 << 50
"""More than any figure: ranks of another program never stand for each other."""


class Representatives(msgspec.Struct, frozen=True):
    """The ranks that are replayed, and for which others each stands."""

    whole: Run
    run: Run
    """The part of it that is replayed."""
    numbers: Int64
    """Of each timeline of the part: its number in the whole run."""
    of: Int64
    """Of each timeline of the whole run: the number, in the part, of the one that stands for it."""
    far_ns: Int64
    """Of each timeline of the whole run: the most by which a figure of a step differs from that of the other one."""

    @property
    def apart_ns(self) -> int:
        """The most by which a figure of a step differs between a rank and the one that stands for it."""
        return int(self.far_ns.max())

    @property
    def count(self) -> Int64:
        """For how many ranks each of the part stands, with itself."""
        return np.bincount(self.of, minlength=len(self.run.timelines))

    @property
    def text(self) -> str:
        """Describe what is replayed."""
        part = share(self.apart_ns / max(1.0, _step_ns(self.whole)))
        differ = f"by {duration(self.apart_ns)} ({part} of a step) at most" if self.apart_ns else "nowhere"
        return (
            f"{len(self.run.timelines):,} of {len(self.whole.timelines):,} ranks are replayed, each for those that are "
            f"like it: the figures of their steps differ {differ}. "
            "With --all-ranks, dptrace whatif and critical-path replay all."
        )


def representatives(run: Run, also: Collection[int] = (), alone: Collection[int] = ()) -> Representatives | None:
    """Choose the ranks of a whole run to replay: those that stand out, and others until all are near to one of them.

    Args:
        also: ranks to replay in any case.
        alone: ranks to replay in any case, each only for itself: something about them alone is different.

    Returns:
        None where all are replayed: of few ranks, or where too few are alike.
    """
    if len(run.timelines) <= MOST_REPLAYED or len(run.ranks) < len(run.timelines):
        return None
    units = _units(run)
    unit_of = np.empty(len(run.timelines), np.int64)
    for number, unit in enumerate(units):
        unit_of[unit] = number
    figures, times = _figures(run, units), _times_in_collectives(run, units)
    first = dict.fromkeys(unit_of[number].item() for number in _outstanding(run, {*also, *alone}))
    of_alone = {unit_of[n].item() for n, timeline in enumerate(run.timelines) if timeline.rank in alone}
    most = len(first) + max(2, MOST_REPLAYED // max(map(len, units)))
    centers, of, distance = _spread(
        np.hstack((figures, times)), list(first), of_alone, most, round(_ALIKE * _step_ns(run))
    )
    chosen = sorted(number for center in centers for number in units[center])
    if distance.max() >= _OTHER_PROGRAM or len(chosen) >= _MAX_REPLAYED_SHARE * len(run.timelines):
        return None
    stands = np.empty(len(run.timelines), np.int64)
    for number, unit in enumerate(units):
        stands[unit] = np.searchsorted(chosen, units[of[number]])
    part = run.select(ranks=[run.timelines[number].rank for number in chosen])
    far_ns = np.abs(figures - figures[of]).max(axis=1)
    return Representatives(run, part, np.array(chosen, np.int64), stands, far_ns[unit_of])


def _step_ns(run: Run) -> float:
    return float(median(np.concatenate([split.figures["wall_ns"] for split in run.splits])))


def _outstanding(run: Run, also: Collection[int]) -> Iterable[int]:
    """Return the timelines that stand for themselves: notable ones, such as late ones, and *also*."""
    found = [one for one in notable_ranks(run) if one.why]
    notable, late = [one.index for one in found], [one.index for one in found if HELD_UP in one.why]
    typical = notable[-1:]
    of_named = (number for number, timeline in enumerate(run.timelines) if timeline.rank in also)
    return *notable[:_MOST_NOTABLE], *_mates(run, late[:_LATEST]), *typical, *of_named


def _mates(run: Run, latest: Collection[int]) -> list[int]:
    """Return the timelines in small groups with the latest ranks, which make them late in their other groups, too."""
    late, ranks = {run.timelines[number].rank for number in latest}, set[int]()
    for group in run.cross_rank.matches.groups:
        ranks |= set(group.ranks) if len(group.ranks) <= _FEW_MATES and late & set(group.ranks) else set()
    return [number for number, timeline in enumerate(run.timelines) if timeline.rank in ranks]


def _units(run: Run) -> list[list[int]]:
    """Return the timelines in groups that are replayed together: a pipeline's stages, which wait for each other."""
    matches = run.cross_rank.matches
    messages = np.flatnonzero(matches.kind == "send_recv")
    first = matches.first[messages]
    pairs = np.unique(np.stack((matches.device[first], matches.device[matches.first[messages + 1] - 1])), axis=1)
    root = list(range(len(run.timelines)))

    def root_of(number: int) -> int:
        while root[number] != number:
            root[number] = number = root[root[number]]
        return number

    for one, other in pairs.T.tolist():
        low, high = sorted((root_of(one), root_of(other)))
        root[high] = low
    units: dict[int, list[int]] = {}
    for number in range(len(root)):
        units.setdefault(root_of(number), []).append(number)
    return list(units.values())


def _figures(run: Run, units: list[list[int]]) -> Int64:
    """Return the figures of each step of the ranks of each unit."""
    return _table([[run.splits[number].figures[name] for name in FIGURES] for number in unit] for unit in units)


def _times_in_collectives(run: Run, units: list[list[int]]) -> Int64:
    """Return the number of each unit's program, and how long its ranks are in each of their collectives.

    These end for all at once, so that ranks with equal times arrive at equal times.
    """
    matches = run.cross_rank.matches
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(matches.kind.tolist()))}
    kind = np.array([kinds[one] for one in matches.kind.tolist()], np.int64)
    order = np.lexsort((matches.index, matches.device))
    called = np.stack((kind, matches.bytes, matches.size.astype(np.int64)), axis=1)[matches.instance[order]]
    took = (matches.end_ns - matches.start_ns)[order]
    bounds = np.searchsorted(matches.device[order], np.arange(len(run.timelines) + 1)).tolist()
    rows, programs = list[list[list[Int64]]](), dict[tuple[object, ...], int]()
    for unit in units:
        calls = [slice(bounds[number], bounds[number + 1]) for number in unit]
        names = [run.timelines[number].windows.names for number in unit]
        program = tuple((own, called[part].tobytes()) for own, part in zip(names, calls, strict=True))
        number = programs.setdefault(program, len(programs))
        rows.append([[np.array([_OTHER_PROGRAM * number], np.int64), *(took[part] for part in calls)]])
    return _table(rows)


def _table(rows: Iterable[list[list[Int64]]]) -> Int64:
    """Put the values of each row beside each other, and 0 where one has fewer than others."""
    joined = [np.concatenate([part for own in row for part in own]) for row in rows]
    table = np.zeros((len(joined), max(map(len, joined))), np.int64)
    for row, values in zip(table, joined, strict=True):
        row[: len(values)] = values
    return table


def _spread(
    figures: Int64, first: list[int], alone: Collection[int], most: int, near: int
) -> tuple[list[int], Int64, Int64]:
    """Choose rows so that each is near to one: *first*, then the farthest one, until all are near or there are *most*.

    Args:
        alone: the chosen rows that no other counts as near to.

    Returns:
        The chosen rows; which of them each row is nearest to; how far it is, where they differ most.

    >>> _spread(np.array([[0], [2], [90], [91]]), [1], [], 2, 0)
    ([1, 3], array([1, 1, 3, 3]), array([2, 0, 1, 0]))
    """
    centers, of = list[int](), np.zeros(len(figures), np.int64)
    distance = np.full(len(figures), np.iinfo(np.int64).max)
    while len(centers) < most and (len(centers) < len(first) or distance.max() > near):
        center = first[len(centers)] if len(centers) < len(first) else int(distance.argmax())
        centers.append(center)
        new = np.abs(figures - figures[center]).max(axis=1)
        itself = np.arange(len(figures)) == center
        closer = itself | (new < distance) if center not in alone else itself
        of[closer], distance[closer] = center, new[closer]
    return centers, of, distance


# Which replayed rank the others arrive with at collectives.


def arrives_with(of: Representatives, start_ns: Int64) -> tuple[Int64, Int64]:
    """Return with whom each member of the whole run's collectives arrives, and the number of each in the part.

    A rank that is not replayed arrives with the one that stands for it, as much later or earlier as it did; where that
    one is not in the collective, with the last of the replayed ones that are.

    Args:
        start_ns: when each member arrives, on the shared clock.

    Returns:
        Of each member: the place of that member, its own where it is replayed, or -1 where none of the collective is;
        of each collective: its number among those of the part, or -1.
    """
    matches = of.whole.cross_rank.matches
    replayed, number = _replayed(of), numbers_in_part(of)
    last = np.full(len(matches), -1, np.int64)
    by_start = replayed[np.argsort(start_ns[replayed], kind="stable")]
    last[matches.instance[by_start]] = by_start
    # Members are sorted by collective, and by device in each.
    count = len(of.whole.timelines)
    keys = matches.instance[replayed] * count + matches.device[replayed]
    wanted = matches.instance * count + of.numbers[of.of[matches.device]]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    member = np.where(keys[found] == wanted, replayed[found], last[matches.instance])
    member[replayed] = replayed
    return member, number


def _replayed(of: Representatives) -> Int64:
    """Return the members of the whole run's collectives that are replayed."""
    matches = of.whole.cross_rank.matches
    return np.flatnonzero(mask_of(of.numbers, len(of.whole.timelines))[matches.device])


def numbers_in_part(of: Representatives) -> Int64:
    """Return the number of each of the whole run's collectives among those of the part, or -1."""
    matches = of.whole.cross_rank.matches
    number = np.full(len(matches), -1, np.int64)
    known = np.unique(matches.instance[_replayed(of)])
    number[known] = np.arange(len(known))
    return number
