"""The metadata of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.rank_metadata import describe  # noqa: E402
from dptrace.record.recording import record  # noqa: E402


def test_a_rank_shows_where_it_ran_and_how_long_its_steps_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts of timed and recorded steps fit the schedule, and times are positive whole ns."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 4)
    with record("run", steps=2, warmup=2, wait=3, model=model, options={"model": "tiny", "lr": 0.1}) as recording:
        for _ in range(recording.total_steps):
            recording.step(model(torch.ones(1, 4)).sum())
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    (metadata,) = run["ranks"]

    assert (1, 2, 2, 7) == (
        *(len(metadata[key]) for key in ("unprofiled_ns", "profiled_ns")),
        metadata["recorded_steps"],
        len(run["losses"]),
    )
    assert all(type(ns) is int and ns > 0 for ns in metadata["unprofiled_ns"] + metadata["profiled_ns"])
    assert ("tiny", {"lr": 0.1}, 20, None) == (run["model"], run["options"], run["parameters"], run["ddp"])
    assert torch.__version__ == run["versions"]["torch"]


def test_what_cannot_be_metadata_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error in DDP's logging, or in the stopwatch after a CUDA error, costs only that entry."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("sick")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.record.rank_metadata.ddp_logging", fail)
    monkeypatch.setattr("dptrace.record.profiler.aligned_profile.Stopwatch.durations_ns", fail)
    recording = record("run", model=torch.nn.LazyLinear(4))
    metadata = describe(recording, recording.plan.windows[-1], [], 0, [])

    assert (None, [], []) == (metadata["ddp"], metadata["unprofiled_ns"], metadata["profiled_ns"])
    assert metadata["notes"] == [
        "The steps' times could not be read: RuntimeError: sick",
        "DDP's logging data could not be read: RuntimeError: sick",
    ]
    assert metadata["parameters"] is None
