"""Captures in a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")


from dptrace.record.profiler import AlignedProfile  # noqa: E402
from dptrace.watch.capture import Captures  # noqa: E402


def test_a_capture_that_fails_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps after it are not disturbed, and the next request is recorded."""

    def fail(self: object) -> None:
        raise RuntimeError("sick")

    for name in ("watch.capture", "record.windows"):
        monkeypatch.setattr(f"dptrace.{name}._POLL_NS", 0)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    captures = Captures(tmp_path)

    def run(until: int) -> None:
        (tmp_path / f"request-{until // 10}.json").write_text(json.dumps({"kind": "record", "steps": 1}))
        for step in range(until - 9, until + 1):
            (torch.ones(1, requires_grad=True) * 2).backward()
            captures.step(step)

    with monkeypatch.context() as broken:
        broken.setattr(AlignedProfile, "step", fail)
        run(10)
    assert not captures.disturbs
    run(20)
    captures.close(None)
    assert ["capture2"] == [path.name for path in tmp_path.glob("capture*")]
