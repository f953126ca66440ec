"""What the callbacks of frameworks have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder, in a process that has recorded nothing."""
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.chdir(tmp_path)


def _recording(out: str, steps: int = 1, force: bool = False) -> Any:
    from dptrace.record.integrations.callback_recording import CallbackRecording

    return CallbackRecording(out, force, steps=steps, warmup=2, wait=0)


def _train(recording: Any, steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    recording.begin(model.parameters())
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        recording.step(1.0)


def test_the_run_is_there_before_a_long_training_ends() -> None:
    """After the last recorded step it is written on a thread; further steps and the end lose nothing."""
    recording = _recording("x")
    _train(recording, 3)
    recording._recording.join_writer()
    run = json.loads(Path("x/run.json").read_text())
    recording.step()
    recording.close(None)

    assert not recording._remove_hook
    assert ("complete", 5, [1.0] * 3) == (run["status"], run["parameters"], run["losses"])
    assert ["x"] == [path.name for path in Path().iterdir()]


def test_a_training_that_fails_keeps_its_trace() -> None:
    """Under an honest name, with the reason."""
    recording = _recording("x", steps=5)
    _train(recording, 4)
    recording.close(ValueError("boom"))

    run = json.loads(Path("x.failed/run.json").read_text())
    assert ("failed", 2) == (run["status"], run["ranks"][0]["recorded_steps"])
    assert "boom" in run["failure"]["message"]


@pytest.mark.heavy
def test_a_folder_that_is_taken_is_refused_before_the_training() -> None:
    """Unless it is a run, and force says to replace it."""
    _train(recording := _recording("x"), 3)
    recording.close(None)

    with pytest.raises(UsageError, match="already contains a run"):
        _recording("x")
    _train(recording := _recording("x", force=True), 3)
    recording.close(None)


def test_what_cannot_be_recorded_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that was taken meanwhile; the training goes on."""
    recording = _recording("x")
    Path("x").write_text("")
    _train(recording, 3)
    recording.close(None)

    (line,) = capsys.readouterr().err.splitlines()
    assert "x exists" in line


def test_what_was_put_around_the_training_is_gone_after_it() -> None:
    """Hooks of optimizers and of eval() end with the recording."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    hooks, original = len(_global_optimizer_pre_hooks), torch.nn.Module.eval
    recording = _recording("x", steps=5)
    _train(recording, 2)
    during = len(_global_optimizer_pre_hooks), torch.nn.Module.eval is original
    recording.close(None)

    assert ((hooks + 1, False), (hooks, original)) == (during, (len(_global_optimizer_pre_hooks), torch.nn.Module.eval))
