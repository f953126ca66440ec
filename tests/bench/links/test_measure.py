"""The measurement on one rank; test_launch.py runs it with real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dptrace.bench.links import measure  # noqa: E402 - needs torch
from dptrace.record.ranks.distributed import World, process_group  # noqa: E402


@given(st.integers(64, 10**6), st.integers(0, 10**9), st.sampled_from([8, 12, 16, 32, 64]))
def test_sizes_double_in_whole_units(least: int, more: int, unit: int) -> None:
    """Sizes lie between the limits, each within a unit of a doubling, and none is smaller than a unit."""
    sizes = measure.sizes_between(least, least + more, unit)

    assert all(size % unit == 0 and size >= unit for size in sizes)
    assert all(0 <= (least << k) - size < unit for k, size in enumerate(sizes))
    assert sizes[-1] <= least + more < least << len(sizes)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A measurement on one rank, whose collectives return at once."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = {"collectives": ["all_reduce", "broadcast"], "min_bytes": 1024, "max_bytes": 8192, "budget_s": 0.5}
    asked |= {"algorithms": [], "ranks_per_node": None}
    with process_group():
        yield measure._LinkBenchmark(World(0, 1, torch.device("cpu")), asked, 8192, tmp_path / "progress")


@pytest.mark.heavy
def test_of_three_timings_the_least_counts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds run until the budget is used, and each adds the shortest of three timings to a size."""
    bench.choose()
    ticks = iter(range(1, 10**9))
    monkeypatch.setattr(bench, "_time", lambda item: next(ticks) * 1e-3)
    bench.measure()
    times = bench.results()

    assert [("all_reduce", 1024 << k) for k in range(4)] == [(s["collective"], s["bytes"]) for s in times["samples"]][
        :4
    ]
    for item, sample in zip(bench.items, times["samples"], strict=True):
        assert times["rounds"] * item.timings_per_round == len(sample["seconds"])
        threes = [item.seconds[i : i + 3] for i in range(0, len(item.seconds), 3)]
        assert [min(three) for three in threes] == sample["seconds"]
    assert times["rounds"] >= 3
    assert bench._progress.read_text().endswith(" 100")


@pytest.mark.heavy
def test_larger_sizes_stop_where_the_budget_does(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective whose next size would take too long stops, with a note; the other continues."""
    monkeypatch.setattr(bench, "_time", lambda item: 1.0 if item.kind == "all_reduce" else 1e-6)
    bench.choose()

    assert [1024, 1024, 2048, 4096, 8192] == [item.size for item in bench.items]
    (note,) = bench.notes
    assert "--budget" in note
    assert "all_reduce at 1,024 bytes" in note


@pytest.mark.heavy
def test_what_a_backend_cannot_do_is_left_out(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note gives the reason; other errors are raised."""

    def refuse(item: measure.Measurement) -> float:
        if item.kind == "all_reduce":
            raise RuntimeError("ProcessGroupGloo does not support all_reduce")
        return 1e-6

    monkeypatch.setattr(bench, "_time", refuse)
    bench.choose()
    assert {"broadcast"} == {item.kind for item in bench.items}
    assert "all_reduce was skipped: RuntimeError: ProcessGroupGloo does not support all_reduce" in bench.notes

    monkeypatch.setattr(bench, "_time", lambda item: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.choose()
