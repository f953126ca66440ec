"""Windows that begin while training runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.distributed import RankStore  # noqa: E402
from dptrace.record.messages import request_path  # noqa: E402
from dptrace.record.windows import WindowRequests  # noqa: E402


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dptrace.record.windows._POLL_NS", 0)


def _ask(folder: Path, number: int, kind: str) -> None:
    request_path(folder, number).write_text(json.dumps({"kind": kind}))


def test_all_ranks_begin_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 chooses a step ahead of its own, and the others find it, wherever they are."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr("dptrace.record.distributed._store", lambda: store)
    monkeypatch.setenv("WORLD_SIZE", "3")
    ranks = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(WindowRequests(tmp_path, RankStore("x")))
    _ask(tmp_path, 1, "record")

    assert ranks[1].poll(99) is None
    answers = [requests.poll(step) for requests, step in zip(ranks, (100, 101, 99), strict=True)]
    assert answers[0] is not None
    assert answers[0].first > 100
    assert 1 == len(set(answers))


def test_restarted_ranks_do_not_answer_older_requests(tmp_path: Path) -> None:
    """They were for the ranks before the restart."""
    requests = WindowRequests(tmp_path, RankStore("x"))
    _ask(tmp_path, 1, "record")
    requests.forget_older()

    assert requests.poll(1) is None
