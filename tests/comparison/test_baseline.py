"""Baselines: figures of recordings in a file, which compare as the recordings do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.comparison import baseline
from dptrace.comparison.compare import compare
from dptrace.comparison.sides import StoredRun
from dptrace.errors import DptraceError, UsageError
from dptrace.load.open import open_run
from dptrace.run.run import Run
from tests.support.jobs import job
from tests.support.paths import TRACES
from tests.support.real_traces import needs_real_traces, real


def stored(path: Path, runs: list[Run]) -> list[StoredRun]:
    baseline.save(path, runs)
    return baseline.read(path).runs(path)


def told(found: dptrace.Comparison) -> dict[str, Any]:
    """Return all that a comparison tells but its notes on where the recordings come from."""
    data = found.to_dict()
    for side in (data["a"], data["b"], *data["before"], *data["after"]):
        side["notes"] = []
    return {key: value for key, value in data.items() if key != "notes"}


@pytest.mark.heavy
@pytest.mark.parametrize("names", [("naive_cpu_2ranks", "interleaved_cpu_2ranks"), ("single_cpu", "ddp_cpu_2ranks")])
def test_a_stored_run_compares_as_the_run(tmp_path: Path, names: tuple[str, str]) -> None:
    """Every figure, verdict, interval, rank, collective and kernel, on either side; in a file of a few kilobytes."""
    a, b = (open_run([str(TRACES / name)]) for name in names)
    path = tmp_path / "a.json"
    (kept,) = stored(path, [a])

    assert told(compare(a, b)) == told(compare(kept, b))
    assert told(compare(b, a)) == told(compare(b, kept))
    assert path.stat().st_size < 20_000


@pytest.mark.slow
@needs_real_traces
def test_a_stored_run_of_eight_gpus_compares_as_the_run(tmp_path: Path) -> None:
    """With collectives that wait, transfers, and steps of two kinds."""
    run = open_run([real("sharded_h100_8ranks")])
    (kept,) = stored(tmp_path / "a.json", [run])
    other = run.select(steps=(0, 1000))

    assert told(compare(run, other)) == told(compare(kept, other))
    assert 1 < len(compare(kept, other).kinds)


@pytest.mark.heavy
def test_several_recordings_are_a_side_and_show_its_noise(tmp_path: Path) -> None:
    """As if the runs had been given; in Python, too."""
    runs = [job(seed=seed) for seed in range(3)]
    after = [job(seed=seed, factors={"backward": 1.1}) for seed in range(3, 6)]
    path = dptrace.save_baseline(tmp_path / "main.json", runs)

    found = dptrace.compare(dptrace.open_baseline(path), after)
    assert told(compare(runs, after)) == told(found)
    assert found.change("wall_ns").beyond
    with pytest.raises(UsageError, match="force overwrites"):
        dptrace.save_baseline(path, runs)


@pytest.mark.slow
def test_a_gate_passes_and_fails_as_planted(tmp_path: Path) -> None:
    """Of 20 branches that are alike none fails, and each of 20 whose backward takes 3 % longer does."""
    kept = stored(tmp_path / "main.json", [job(seed=seed, steps=10) for seed in range(3)])
    verdicts = {}
    for planted in (1.0, 1.05):
        sides = [[job(seed=100 * k + n, steps=10, factors={"backward": planted}) for n in (4, 5, 6)] for k in range(20)]
        verdicts[planted] = [compare(kept, side).check("wall > +2%").failed for side in sides]

    assert {1.0: [False] * 20, 1.05: [True] * 20} == verdicts


def test_a_baseline_can_not_be_taken_apart_or_lack_a_rank(tmp_path: Path) -> None:
    """Its kernels are means over its ranks: other ranks than those are refused, with what to do."""
    (kept,) = stored(tmp_path / "main.json", [job(ranks=2)])

    with pytest.raises(UsageError, match="select before you save"):
        kept.select(steps=(0, 1))
    with pytest.raises(DptraceError, match="the baseline has 2 devices, and 1 of them"):
        compare(kept, job(ranks=2).select(ranks="1"))
    with pytest.raises(DptraceError, match="different ranks"):
        baseline.save(tmp_path / "x.json", [job(ranks=2), job(ranks=3)])
    with pytest.raises(DptraceError, match="all its intervals"):
        baseline.save(tmp_path / "x.json", [kept])
    assert not (tmp_path / "x.json").exists()


@pytest.mark.heavy
def test_a_cause_of_idle_time_that_is_not_in_the_file_is_0_and_a_note_says_so(tmp_path: Path) -> None:
    """It was saved before dptrace told that cause."""
    path = tmp_path / "main.json"
    (kept,) = stored(path, [job()])
    data = json.loads(path.read_text())
    for device in data["recordings"][0]["devices"]:
        del device["figures"]["bubble_ns"]
    path.write_text(json.dumps(data))
    (older,) = baseline.read(path).runs(path)

    assert all(not device.idle_causes["bubble_ns"].any() for device in older.devices)
    assert told(compare(kept, job())) == told(compare(older, job()))
    assert ["pipeline bubble" in note for note in older.notes if note not in kept.notes] == [True]


@pytest.mark.heavy
def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """With its name, never with a traceback."""
    rows: list[Any] = [
        lambda data: data.pop("recordings"),
        lambda data: data.update(recordings=[]),
        lambda data: data.update(dptrace_baseline=1),
        lambda data: data["recordings"][0].update(steps=["ProfilerStep#1"]),
        lambda data: data["recordings"][0].update(devices=[]),
        lambda data: data["recordings"][0]["devices"][0]["figures"].pop("wall_ns"),
        lambda data: data["recordings"][0]["devices"][1]["figures"]["idle_ns"].pop(),
        lambda data: data["recordings"][0]["devices"][0]["figures"].update(wall_ns=[1 << 62] * 8),
        lambda data: data["recordings"][0]["kernels"][0].update(ns=[-1.0] * 8),
        lambda data: data["recordings"][0]["exposed_wait"].pop(),
        lambda data: data["recordings"][0]["collectives"][0]["values"].pop("wait"),
    ]
    for damage in rows:
        path = tmp_path / "main.json"
        baseline.save(path, [job()])
        data = json.loads(path.read_text())
        damage(data)
        path.write_text(json.dumps(data))
        with pytest.raises(DptraceError, match=r"main\.json"):
            baseline.read(path)
