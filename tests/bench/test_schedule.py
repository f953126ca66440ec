"""The order of the runs of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.bench import schedule
from dptrace.bench.execute import BenchRunError, Settings
from dptrace.bench.matrix import BenchConfig
from dptrace.bench.schedule import jobs, run_all
from dptrace.bench.store import Store

A, B = BenchConfig("small", "ddp", 2, (("bucket-cap-mb", "1"),)), BenchConfig("small", "ddp", 2)


def test_a_split_comes_last_or_right_before_its_run_is_timed() -> None:
    """Whatever the order, all are timed once before any is timed again."""
    last = [(job.config, job.repetition) for job in jobs([A, B], 2)]
    first = [(job.config, job.repetition) for job in jobs([A, B], 2, profile_first=True)]

    assert [(A, 0), (B, 0), (A, 1), (B, 1), (A, -1), (B, -1)] == last
    assert [(A, -1), (A, 0), (B, -1), (B, 0), (A, 1), (B, 1)] == first


@pytest.mark.parametrize(("profile_first", "expected"), [(True, ["recorded", "timed"]), (False, ["timed"])])
def test_what_cannot_be_timed_is_not_recorded_after_it(
    profile_first: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, nobody knows yet, even if an earlier attempt failed; parameters are kept once."""
    ran: list[str] = []
    kept: list[Path | None] = []

    def timed(config: BenchConfig, settings: Settings) -> dict[str, Any]:
        ran.append("timed")
        kept.append(settings.checkpoints)
        raise BenchRunError("out of memory")

    def profiled(config: BenchConfig, settings: Settings, out: Path) -> dict[str, Any]:
        ran.append("recorded")
        return {}

    monkeypatch.setattr(schedule, "run_timed", timed)
    monkeypatch.setattr(schedule, "run_profiled", profiled)
    store = Store(tmp_path)
    store.begin({}, False, False)
    store.save(f"{A.name}.0", {"failed": "an earlier attempt"})
    run_all(jobs([A], 1, profile_first=profile_first), Settings(checkpoints=tmp_path), store)
    run_all(jobs([B], 2, profile=False), Settings(checkpoints=tmp_path), store)

    assert [*expected, "timed", "timed"] == ran
    assert [tmp_path, tmp_path, None] == kept
