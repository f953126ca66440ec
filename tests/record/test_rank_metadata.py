"""What a rank notes of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.recording import record  # noqa: E402


def test_a_rank_tells_where_it_ran_and_how_long_its_steps_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts of timed and recorded steps fit the schedule, and times are whole nanoseconds above nothing."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 4)
    with record("run", steps=2, warmup=2, wait=3, model=model, options={"model": "tiny", "lr": 0.1}) as recording:
        for _ in range(recording.total_steps):
            recording.step(model(torch.ones(1, 4)).sum())
    told = recording.describe()

    assert (1, 2, 2, 7) == (
        *(len(told[key]) for key in ("unprofiled_ns", "profiled_ns")),
        told["recorded_steps"],
        len(told["losses"]),
    )
    assert all(type(ns) is int and ns > 0 for ns in told["unprofiled_ns"] + told["profiled_ns"])
    assert ("tiny", {"lr": 0.1}, 20, None) == (told["model"], told["options"], told["parameters"], told["ddp"])
    assert torch.__version__ == told["versions"]["torch"]


def test_what_cannot_be_told_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error of DDP's logging, or of a stopwatch after a CUDA error, costs that entry and nothing else."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("sick")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.record.recording.ddp_logging", fail)
    monkeypatch.setattr("dptrace.record.profiler.Stopwatch.durations_ns", fail)
    told = record("run", model=torch.nn.LazyLinear(4)).describe()

    assert (None, [], []) == (told["ddp"], told["unprofiled_ns"], told["profiled_ns"])
    assert told["notes"] == [
        "The steps' times could not be kept: RuntimeError: sick",
        "DDP's logging data could not be kept: RuntimeError: sick",
    ]
    assert told["parameters"] is None
