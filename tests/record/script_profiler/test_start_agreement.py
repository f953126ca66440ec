"""Ranks that agree when to record."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def _ranks(monkeypatch: pytest.MonkeyPatch, *seen: bool) -> list[Any]:
    """Return an agreement for each of two ranks that share a store; *seen*: whose script profiles itself."""
    from dptrace.record.ranks import distributed
    from dptrace.record.script_profiler.start_agreement import StartAgreement

    store = torch.distributed.HashStore()
    monkeypatch.setattr(distributed, "_store", lambda: store)
    monkeypatch.setattr("dptrace.record.run_folder.messages.world_size", lambda: 2)
    guards: list[Any] = [SimpleNamespace(foreign_seen=own) for own in seen]
    return [StartAgreement(distributed.RankStore("1"), guard) for guard in guards]


def _both(ranks: list[Any], ask: Callable[[int, Any], bool]) -> list[bool]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, range(2), ranks))


def test_without_a_profiler_of_the_script_no_rank_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank decides alone, although the other never asks."""
    ranks = _ranks(monkeypatch, False, False)

    assert not ranks[0].blocked(False, 3)


def test_one_rank_that_cannot_record_blocks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks get the same answer at the same step."""
    ranks = _ranks(monkeypatch, True, False)
    ranks[0].announce()

    assert [True, True] == _both(ranks, lambda rank, agreement: agreement.blocked(rank == 0, 3))
    assert [False, False] == _both(ranks, lambda rank, agreement: agreement.blocked(False, 4))


def test_a_rank_that_no_one_answers_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once, not at each step."""
    monkeypatch.setattr("dptrace.record.script_profiler.start_agreement._TIMEOUT", timedelta(milliseconds=50))
    rank, _ = _ranks(monkeypatch, True, False)

    assert [True, False] == [rank.blocked(True, 3), rank.blocked(False, 4)]


def test_a_single_process_decides_alone() -> None:
    """There is no store to ask."""
    from dptrace.record.ranks.distributed import RankStore
    from dptrace.record.script_profiler.start_agreement import StartAgreement

    agreement = StartAgreement(RankStore("1"), SimpleNamespace(foreign_seen=True))  # type: ignore[arg-type]

    assert [True, False] == [agreement.blocked(True, 1), agreement.blocked(False, 2)]
