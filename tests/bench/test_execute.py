"""What the trainers of a benchmark are started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dptrace.bench import execute
from dptrace.bench.execute import BenchRunError, EpochLines, Settings, jobs, run_all, run_timed
from dptrace.bench.store import BenchConfig, Store


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


# The lines of epochs, read while another process writes them.


def test_epochs_are_reported_once_and_whole(tmp_path: Path) -> None:
    """Half a line waits for its other half; what is no epoch is ignored, and reading leaves the writer's place."""
    told: list[object] = []
    with (tmp_path / "out").open("w+") as file:
        lines = EpochLines(file, told.append)
        halves = ('noise\nEPOCH_JSON: {"epoch": 1}\nEPOCH_JSON: {"ep', 'och": 2}\n')
        for text in (*halves, "EPOCH_JSON: [1]\n", "EPOCH_JSON: {\n", ""):
            file.write(text)
            file.flush()
            lines.read()

    assert [{"epoch": 1}, {"epoch": 2}] == told
    assert (tmp_path / "out").read_text().startswith("noise\nEPOCH")


# The order of the runs of a benchmark.


A, B = BenchConfig("small", "ddp", 2, (("bucket-cap-mb", "1"),)), BenchConfig("small", "ddp", 2)


def test_a_split_comes_last_or_right_before_its_run_is_timed() -> None:
    """Whatever the order, all are timed once before any is timed again."""
    last = [(job.config, job.repetition) for job in jobs([A, B], 2)]
    first = [(job.config, job.repetition) for job in jobs([A, B], 2, profile_first=True)]

    assert [(A, 0), (B, 0), (A, 1), (B, 1), (A, -1), (B, -1)] == last
    assert [(A, 0)] == [(job.config, job.repetition) for job in jobs([A], 1, profile=False)]
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

    monkeypatch.setattr(execute, "run_timed", timed)
    monkeypatch.setattr(execute, "run_profiled", profiled)
    store = Store(tmp_path)
    store.begin({}, False, False)
    store.save(f"{A.name}.0", {"failed": "an earlier attempt"})
    run_all(jobs([A], 1, profile_first=profile_first), Settings(checkpoints=tmp_path), store)
    run_all(jobs([B], 2, profile=False), Settings(checkpoints=tmp_path), store)

    assert [*expected, "timed", "timed"] == ran
    assert [tmp_path, tmp_path, None] == kept
