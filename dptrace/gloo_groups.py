"""Whose each of gloo's events is: each process group has two threads of its own, made when the group was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dptrace.trace import UNTOLD, CommArgs

__all__ = ["THREADS", "in_their_groups"]

THREADS = 2
"""Of each group: torch's ProcessGroupGloo makes as many unless it is told otherwise, which its Python does not do."""
_PAIRS = frozenset({"send", "recv"})
"""What the calling thread does itself: which group it is in can't be told from its thread."""


class _Group(NamedTuple):
    name: str
    ranks: tuple[int, ...]
    description: str


_UNKNOWN = _Group(UNTOLD, (), "")


def in_their_groups(
    comm: Mapping[int, CommArgs], thread_of: Mapping[int, object], groups: Any, threads: Any = None
) -> dict[int, CommArgs]:
    """Name the group of each of gloo's events, where a rank is in groups of different ranks.

    Groups and threads are both counted in the order in which they were made. So if there are two threads for each
    group, they tell; a thread that did nothing while recording is missed in the file, and then only the recorder knows.

    Args:
        comm: what is said of collectives, by event.
        thread_of: the thread's id of each of them that is gloo's own.
        groups: the ``pg_config`` of ``distributedInfo``: every group that this rank is in.
        threads: ids of all of gloo's threads, as dptrace's recorder lists them; anything else where it did not.
    """
    known = list(filter(None, map(_group, groups))) if isinstance(groups, list) else []
    if len({group.ranks for group in known}) < 2:
        return dict(comm)
    mine = {event: thread for event, thread in thread_of.items() if comm[event].collective not in _PAIRS}
    owners = _owners(known, _listed(threads) or sorted({t for t in mine.values() if type(t) is int}))
    named = dict(comm)
    for event, thread in mine.items():
        group = owners.get(thread, _UNKNOWN)
        named[event] = replace(
            comm[event],
            group=group.name,
            group_size=len(group.ranks),
            ranks=group.ranks,
            description=group.description,
        )
    return named


def _owners(groups: Sequence[_Group], threads: Sequence[int]) -> dict[object, _Group]:
    if len(threads) != THREADS * len(groups):
        return {}
    return {thread: groups[place // THREADS] for place, thread in enumerate(threads)}


def _listed(threads: Any) -> list[int]:
    return threads if isinstance(threads, list) and all(type(thread) is int for thread in threads) else []


def _group(told: Any) -> _Group | None:
    """Read one entry of ``pg_config``; nothing for a group that has no part of gloo."""
    if not isinstance(told, dict) or "gloo" not in str(told.get("backend_config", "gloo")):
        return None
    ranks = told.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return None
    return _Group(str(told.get("pg_name", "")), tuple(ranks), str(told.get("pg_desc", "")))
