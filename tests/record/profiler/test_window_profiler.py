"""torch's profiler over one window of steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("device", "backends", "shapes", "expected"),
    [
        ("cpu", "cpu:gloo,cuda:gloo", False, ({"CPU"}, True)),
        ("cuda:1", "cuda:nccl", False, ({"CPU", "CUDA"}, False)),
        ("cuda:1", "cuda:nccl", True, ({"CPU", "CUDA"}, True)),
        ("cuda:1", "cpu:gloo,cuda:gloo", False, ({"CPU", "CUDA"}, True)),
    ],
)
def test_what_is_recorded_fits_where_training_is(
    device: str,
    backends: str,
    shapes: bool,
    expected: tuple[set[str], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPU work is recorded only if parameters are on a GPU; shapes only if gloo's sizes or the user need them."""
    from dptrace.record import record

    asked: dict[str, Any] = {}

    class Profile:
        def __init__(self, rank_store: object, window: object, **settings: Any) -> None:
            asked.update(settings)

        def start(self) -> None: ...

        def finish(self) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr("dptrace.record.profiler.window_profiler.AlignedProfile", Profile)
    monkeypatch.setattr("dptrace.record.recording.Stopwatch.begin", lambda self: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: backends)
    recording = record("x", steps=1, warmup=2, wait=0, shapes=shapes)
    recording.set_parameters([SimpleNamespace(device=torch.device(device), numel=lambda: 7)])  # type: ignore[list-item]
    with recording:
        pass

    assert expected == ({activity.name for activity in asked["activities"]}, asked["record_shapes"])
    assert 7 == recording.parameters
