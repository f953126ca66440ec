"""Predict runs from one another, and compare with what was recorded.

::

    python benchmarks/whatif_pairs.py /tmp/pairs --rounds 3

records each way to train once per round, in turns, so that the machine's drift meets all of them, and prints for each
pair the error of the prediction, and how far apart recordings of the same way are. Recordings that are there stay.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dptrace
from dptrace import Run
from dptrace.replay.whatif import WhatIf

SCRIPT = str(Path(__file__).with_name("whatif_script.py"))
SLEEP_MS = 20
SLEEP_NS = SLEEP_MS * 1_000_000

RECORDED: dict[str, list[str]] = {
    "naive": ["--mode", "naive", "--gpus", "2"],
    "interleaved": ["--mode", "interleaved", "--gpus", "2"],
    "ddp": ["--mode", "ddp", "--gpus", "2"],
    "ddp 1 MB": ["--mode", "ddp", "--bucket-cap-mb", "1", "--gpus", "2"],
    "ddp 4 MB": ["--mode", "ddp", "--bucket-cap-mb", "4", "--gpus", "2"],
    "single": ["--mode", "single", "--batch-size", "512", "--gpus", "1"],
    "accumulate 4": ["--mode", "accumulate", "--micro-batches", "4", "--batch-size", "4096", "--gpus", "2"],
    "script": ["--gpus", "2", "--stop", SCRIPT, "--sleep-ms", "0"],
    "script, rank 1 sleeps": ["--gpus", "2", "--stop", SCRIPT, "--sleep-ms", "0", str(SLEEP_MS)],
    "script, both sleep": ["--gpus", "2", "--stop", SCRIPT, "--sleep-ms", str(SLEEP_MS)],
}
"""By name: how it is recorded. Each rank computes with one thread, also where it is the only one."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "naive": {"schedule": "naive"},
    "interleaved": {"schedule": "interleaved"},
    "ddp": {"schedule": "ddp"},
    "ddp 1 MB": {"bucket_cap_mb": 1},
    "ddp 4 MB": {"bucket_cap_mb": 4},
}
"""The what-if that leads to each schedule from any of the others."""


class Pair(NamedTuple):
    """A recording, and the change that leads to another."""

    source: str
    target: str
    change: dict[str, Any]


def pairs(links: Path) -> Iterator[Pair]:
    """Yield all pairs."""
    for source in SCHEDULES:
        yield from (Pair(source, target, change) for target, change in SCHEDULES.items() if target != source)
    for target in ("naive", "ddp"):
        yield Pair("single", target, {"world_size": 2, "link": str(links), **SCHEDULES[target]})
    yield Pair("ddp", "accumulate 4", {"accumulate": 4})
    yield Pair("script", "script, rank 1 sleeps", {"straggler": {1: SLEEP_NS}})
    yield Pair("script", "script, both sleep", {"straggler": {0: SLEEP_NS, 1: SLEEP_NS}})
    yield Pair("script, rank 1 sleeps", "script", {"no_straggler": True})
    yield Pair("script, both sleep", "script", {"kernels": {"^Sleep$": 0.001}})


def record(folder: Path, steps: int) -> None:
    """Record all ways once, as far as they are not there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, options in RECORDED.items():
        run = folder / name.replace(" ", "_").replace(",", "")
        if not (run / "run.json").exists():
            command = [sys.executable, "-m", "dptrace", "record", "--steps", str(steps), "--out", str(run), *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def open_round(folder: Path) -> dict[str, Run]:
    """Open the recordings of a round, by name."""
    return {name: dptrace.open(folder / name.replace(" ", "_").replace(",", "")) for name in RECORDED}


def main() -> None:
    """Record and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    links = given.folder / "links.json"
    if not links.exists():
        given.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "dptrace", "links", "--gpus", "2", "-o", str(links)], check=True)
    rounds = [given.folder / f"round{number}" for number in range(given.rounds)]
    for folder in rounds:
        record(folder, given.steps)
    runs = [open_round(folder) for folder in rounds]
    measured = [{name: run.whatif().measured_step_ns for name, run in one.items()} for one in runs]
    answers = {pair[:2]: [one[pair.source].whatif(**pair.change) for one in runs] for pair in pairs(links)}
    print_pairs(answers, measured)
    print_spread(measured)


def print_pairs(answers: dict[tuple[str, str], list[WhatIf]], measured: list[dict[str, int]]) -> None:
    """Print each pair, and the mean of the errors."""
    print("| from | to | predicted, ms | measured, ms | error | range, ms | covers |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    errors, covered = list[float](), list[bool]()
    for (source, target), predicted in answers.items():
        truth = [one[target] for one in measured]
        off = [answer.predicted_step_ns / true - 1 for answer, true in zip(predicted, truth, strict=True)]
        inside = [answer.low_ns <= true <= answer.high_ns for answer, true in zip(predicted, truth, strict=True)]
        errors, covered = [*errors, *map(abs, off)], [*covered, *inside]
        low, high, middle = (
            statistics.median(getattr(answer, name) for answer in predicted) / 1e6
            for name in ("low_ns", "high_ns", "predicted_step_ns")
        )
        cells = f"{middle:.1f} | {statistics.median(truth) / 1e6:.1f} | {statistics.median(off):+.1%}"
        print(f"| {source} | {target} | {cells} | {low:.0f}–{high:.0f} | {sum(inside)} of {len(inside)} |")
    share = sum(covered) / len(covered)
    print(f"\nMean absolute error {statistics.mean(errors):.1%}; the range covers {share:.0%} of {len(covered)}.")


def print_spread(measured: list[dict[str, int]]) -> None:
    """Print how far apart recordings of the same way are."""
    spread = {name: max(one[name] for one in measured) / min(one[name] for one in measured) - 1 for name in RECORDED}
    print("Recordings of one way differ by", ", ".join(f"{value:.1%} ({name})" for name, value in spread.items()))


if __name__ == "__main__":
    main()
