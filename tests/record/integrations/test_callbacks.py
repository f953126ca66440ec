"""Recording with the callbacks of frameworks, and what they have in common."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dptrace
import dptrace.record
from dptrace.errors import DptraceError, UsageError

torch = pytest.importorskip("torch")

from dptrace.record.integrations.callback_recording import CallbackRecording  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of torch and the frameworks, which differ from version to version


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder, in a process that has recorded nothing."""
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.chdir(tmp_path)


def _check_steps(losses: list[float] | None = None) -> None:
    """Check a run of four steps: 32 batches are evaluated after the second and the fourth."""
    run = dptrace.open("x")
    split = run.steps()
    assert ("complete", []) == (run.metadata["status"], run.metadata["notes"])
    assert losses is None or losses == run.metadata["losses"]
    assert 4 == len(split)
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)
    # Loading batches, which is not marked, stays forward.
    assert split["other_ns"][0::2].min() > 5 * split["other_ns"][1::2].max()


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("TrainerCallback", ("transformers",)),
        ("LightningCallback", ("lightning", "lightning.pytorch", "pytorch_lightning")),
    ],
)
def test_without_a_framework_the_advice_is_to_install_it(
    name: str, packages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback of an import inside dptrace."""
    monkeypatch.delitem(sys.modules, "dptrace.record.integrations.huggingface", raising=False)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DptraceError, match=f"pip install {packages[0]}"):
        getattr(dptrace.record, name)("x")


def _recording(out: str, steps: int = 1, force: bool = False) -> Any:
    return CallbackRecording(out, force, steps=steps, warmup=2, wait=0)


def _train(recording: Any, steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    recording.begin(model.parameters())
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        recording.step(1.0)


@pytest.mark.heavy
def test_the_run_is_there_before_a_long_training_ends() -> None:
    """After the last recorded step it is written on a thread; further steps and the end lose nothing."""
    recording = _recording("x")
    _train(recording, 3)
    recording._recording.join_writer()
    run = json.loads(Path("x/run.json").read_text())
    recording.step()
    recording.close(None)

    assert ("complete", 5, [1.0] * 3) == (run["status"], run["parameters"], run["losses"])
    assert ["x"] == [path.name for path in Path().iterdir()]


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


def test_a_step_of_transformers_is_an_update_and_evaluation_is_other() -> None:
    """Two batches accumulate for each step; every second step is followed by an evaluation."""
    transformers = pytest.importorskip("transformers", reason="needs the extra frameworks")
    from dptrace.record import TrainerCallback

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))

        def forward(self, x: object, labels: object = None) -> dict[str, object]:
            result = self.layers(x).squeeze(-1)
            return {"loss": ((result - labels) ** 2).mean(), "logits": result}

    data = [{"x": torch.full((64,), float(number)), "labels": torch.tensor(1.0)} for number in range(256)]
    settings = {"max_steps": 6, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "dataloader_pin_memory": False}
    arguments = transformers.TrainingArguments(
        "out", use_cpu=True, eval_strategy="steps", eval_steps=2, **settings, **quiet
    )
    callbacks = [TrainerCallback("x", steps=4, warmup=2, wait=0)]
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train()

    _check_steps()


def _fit(package: str, callback: Any, fail_at: int | None = None, **settings: Any) -> None:
    lightning = importlib.import_module(package)

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))

        def training_step(self, batch: Any, number: int) -> Any:
            if number == fail_at:
                raise ValueError("boom")
            return self.layers(batch[0]).mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.layers(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(512, 64)), 16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, callbacks=[callback], **quiet, **settings)
    trainer.fit(Model(), data, data)


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_a_step_of_lightning_is_an_update_and_validation_is_other(package: str) -> None:
    """The forward and backward in the optimizer's closure are what they are, and so is the update."""
    pytest.importorskip(package, reason="needs the extra frameworks")
    from dptrace.record import LightningCallback

    settings = {"max_steps": 6, "val_check_interval": 4, "accumulate_grad_batches": 2}
    _fit(package, LightningCallback("x", steps=4, warmup=2, wait=0), **settings)

    _check_steps(losses=[])


def test_a_training_that_fails_keeps_its_trace() -> None:
    """Lightning tells its callbacks of the exception."""
    pytest.importorskip("lightning", reason="needs the extra frameworks")
    from dptrace.record import LightningCallback

    with pytest.raises(ValueError, match="boom"):
        _fit("lightning", LightningCallback("x", steps=9, warmup=2, wait=0), fail_at=5, max_steps=20)

    run = json.loads(Path("x.failed/run.json").read_text())
    assert "boom" in run["failure"]["message"]
    assert 3 == run["ranks"][0]["recorded_steps"]
    assert 5 == len(run["losses"])
