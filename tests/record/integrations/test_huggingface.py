"""Recording with Hugging Face's Trainer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dptrace
from dptrace.errors import DptraceError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # of torch and transformers, which differ from version to version


def test_a_step_is_an_update_and_evaluation_is_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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

    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.chdir(tmp_path)
    data = [{"x": torch.full((64,), float(number)), "labels": torch.tensor(1.0)} for number in range(256)]
    settings = {"max_steps": 6, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "dataloader_pin_memory": False}
    arguments = transformers.TrainingArguments(
        "out", use_cpu=True, eval_strategy="steps", eval_steps=2, **settings, **quiet
    )
    callbacks = [TrainerCallback("x", steps=4, warmup=2, wait=0)]
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train()

    run = dptrace.open("x")
    split = run.steps()
    assert ("complete", []) == (run.metadata["status"], run.metadata["notes"])
    assert 4 == len(split)
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)
    # 32 batches are evaluated after the second and the fourth step. Loading them, which is not marked, stays forward.
    assert split["other_ns"][0::2].min() > 5 * split["other_ns"][1::2].max()


def test_without_transformers_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback of an import inside dptrace."""
    import dptrace.record

    monkeypatch.delitem(sys.modules, "dptrace.record.integrations.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DptraceError, match="pip install transformers"):
        dptrace.record.__getattr__("TrainerCallback")
