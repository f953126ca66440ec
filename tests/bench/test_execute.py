"""What the trainers of a benchmark are started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dptrace.bench import execute
from dptrace.bench.execute import Settings, run_timed
from dptrace.bench.matrix import BenchConfig


def started(monkeypatch: pytest.MonkeyPatch, config: BenchConfig, settings: Settings) -> list[str]:
    """Return the arguments of the trainer that a timed run would start."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], *_: Any) -> str:
        commands.append(command)
        return 'RESULTS_JSON: {"epoch_s": [1.0]}'

    monkeypatch.setattr(execute, "_run", run)
    run_timed(config, settings)
    return [word for word in commands[0] if word.startswith("--")]


def test_a_run_keeps_a_checkpoint_of_each_epoch_and_continues_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a checkpoint of the same configuration is there, and the compression keeps nothing of its own."""
    config = BenchConfig("small", "ddp", 2, (("compress", "fp16"),))
    settings = Settings(checkpoints=tmp_path, inference="1,8", seed=7)
    first = started(monkeypatch, config, settings)
    (tmp_path / config.name).mkdir()
    (tmp_path / config.name / "step-00000259").touch()
    again = started(monkeypatch, config, settings)
    stateful = started(monkeypatch, BenchConfig("small", "ddp", 2, (("compress", "topk"),)), settings)

    assert ["--seed=7"] == [word for word in first if "seed" in word]
    assert {"--checkpoint-every=1", f"--checkpoints={tmp_path / config.name}", "--inference=1,8"} <= set(first)
    assert ["--resume"] == [word for word in again if word not in first]
    assert not [word for word in stateful if "--checkpoint" in word]
    assert not [word for word in started(monkeypatch, config, Settings()) if "--inference" in word or "para" in word]


def test_epochs_are_reported_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is told before the process ends."""
    import sys

    seen = tmp_path / "seen"
    script = (
        "import os, time\n"
        "print('EPOCH_JSON: {\"epoch\": 1}', flush=True)\n"
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
        "print('EPOCH_JSON: {\"epoch\": 2}', flush=True)\n"
    )
    told: list[int] = []

    def tell(epoch: dict[str, Any]) -> None:
        told.append(epoch["epoch"])
        seen.touch()

    output = execute._run([sys.executable, "-c", script], 1, 60, tell)

    assert [1, 2] == told
    assert 2 == output.count("EPOCH_JSON")
