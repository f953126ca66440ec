"""Recording with Lightning."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.errors import DptraceError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # of torch and Lightning, which differ from version to version


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder, in a process that has recorded nothing."""
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.chdir(tmp_path)


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
def test_a_step_is_an_update_and_validation_is_other(package: str) -> None:
    """The forward and backward in the optimizer's closure are what they are, and so is the update."""
    pytest.importorskip(package, reason="needs the extra frameworks")
    from dptrace.record import LightningCallback

    settings = {"max_steps": 6, "val_check_interval": 4, "accumulate_grad_batches": 2}
    _fit(package, LightningCallback("x", steps=4, warmup=2, wait=0), **settings)

    run = dptrace.open("x")
    split = run.steps()
    assert ("complete", [], []) == (run.metadata["status"], run.metadata["notes"], run.metadata["losses"])
    assert 4 == len(split)
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)
    # 32 batches are validated after the second and the fourth step. Loading them, which is not marked, stays forward.
    assert split["other_ns"][0::2].min() > 5 * split["other_ns"][1::2].max()


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


def test_without_lightning_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever name it would have."""
    from dptrace.record import LightningCallback

    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DptraceError, match="pip install lightning"):
        LightningCallback("x")
