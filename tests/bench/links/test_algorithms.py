"""The check of the algorithms before they are timed; test_operations.py runs them on two ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dptrace.bench.links import algorithms  # noqa: E402 - needs torch
from dptrace.errors import RecordingError  # noqa: E402
from dptrace.model.collectives import ALL_REDUCES  # noqa: E402
from dptrace.record.ranks.distributed import World  # noqa: E402


def test_an_algorithm_that_adds_up_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed then; the sums of one rank are right."""
    alone = World(0, 1, torch.device("cpu"))
    algorithms.check_sums(ALL_REDUCES, alone, 1)

    def forget(name: str, *_: object) -> Callable[[], object]:
        return lambda: None

    monkeypatch.setattr(algorithms, "all_reduce_call", forget)
    with pytest.raises(RecordingError, match=r"tree all-reduce among 2 ranks gave .* wrong sums on rank 1"):
        algorithms.check_sums(["tree"], World(1, 2, torch.device("cpu")), 1)
