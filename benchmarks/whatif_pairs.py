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
from collections.abc import Iterator, Sequence
from itertools import chain
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
            command = [sys.executable, "-m", "dptrace", "record", "--steps", str(steps), "-o", str(run), *options]
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
    measured = [{name: run.whatif() for name, run in one.items()} for one in runs]
    answers = {pair[:2]: [one[pair.source].whatif(**pair.change) for one in runs] for pair in pairs(links)}
    rows = [row_of(pair, predicted, measured) for pair, predicted in answers.items()]
    print_pairs(rows)
    print_spread(measured)


class Row(NamedTuple):
    """A pair in all rounds; times in ms, medians over rounds."""

    source: str
    target: str
    predicted: float
    measured: float
    low: float
    high: float
    errors: list[float]
    covered: list[bool]
    even_errors: list[float]
    """At equal speed of the machine: the measured step is scaled by the forward of both recordings, which no schedule
    changes."""
    even_covered: list[bool]
    widths: list[float]


def row_of(pair: tuple[str, str], answers: list[WhatIf], measured: list[dict[str, WhatIf]]) -> Row:
    """Compare the predictions of a pair with what was recorded."""
    source, target = pair
    truth = [one[target].measured_step_ns for one in measured]
    even = [true * speed(one, source, target) for one, true in zip(measured, truth, strict=True)]
    low, high, middle = (
        statistics.median(getattr(answer, name) for answer in answers) / 1e6
        for name in ("low_ns", "high_ns", "predicted_step_ns")
    )
    return Row(
        source, target, middle, statistics.median(truth) / 1e6, low, high,
        *compared(answers, truth), *compared(answers, even),
        [(answer.high_ns - answer.low_ns) / answer.predicted_step_ns for answer in answers],
    )  # fmt: skip


def compared(answers: list[WhatIf], truth: Sequence[float]) -> tuple[list[float], list[bool]]:
    """Return the error of each answer, and whether its range covers the truth."""
    both = list(zip(answers, truth, strict=True))
    errors = [answer.predicted_step_ns / true - 1 for answer, true in both]
    return errors, [answer.low_ns <= true <= answer.high_ns for answer, true in both]


def speed(measured: dict[str, WhatIf], source: str, target: str) -> float:
    """Return how much faster the machine was in the recording of *source*, as far as its forward tells."""
    if not {source, target} <= {*SCHEDULES, "accumulate 4"}:
        return 1.0
    micro_steps = 4 if target == "accumulate 4" else 1
    return measured[source].measured["forward_ns"] * micro_steps / measured[target].measured["forward_ns"]


def print_pairs(rows: list[Row]) -> None:
    """Print each pair, and the mean of the errors."""
    print("| from | to | predicted, ms | measured, ms | error | at equal speed | range, ms | covers |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for row in rows:
        off, even = (f"{statistics.median(errors):+.1%}" for errors in (row.errors, row.even_errors))
        cells = f"{row.predicted:.1f} | {row.measured:.1f} | {off} | {even} | {row.low:.0f}–{row.high:.0f}"
        print(f"| {row.source} | {row.target} | {cells} | {sum(row.covered)} of {len(row.covered)} |")
    for title, errors, covered in (
        ("as measured", [row.errors for row in rows], [row.covered for row in rows]),
        ("at equal speed", [row.even_errors for row in rows], [row.even_covered for row in rows]),
    ):
        inside = list(chain(*covered))
        print(f"\n{title}: mean absolute error {statistics.mean(map(abs, chain(*errors))):.1%}", end="")
        print(f"; the range covers {statistics.mean(inside):.0%} of {len(inside)}", end="")
    widths = chain(*(row.widths for row in rows))
    print(f"\nmedian width of a range: {statistics.median(widths):.0%} of the prediction")


def print_spread(measured: list[dict[str, WhatIf]]) -> None:
    """Print how far apart recordings of the same way are, and what their forward took, which no schedule changes."""
    steps = {name: [one[name].measured_step_ns for one in measured] for name in RECORDED}
    spread = {name: max(times) / min(times) - 1 for name, times in steps.items()}
    print("Recordings of one way differ by", ", ".join(f"{value:.1%} ({name})" for name, value in spread.items()))
    for number, one in enumerate(measured):
        forward = {name: one[name].measured["forward_ns"] / 1e6 for name in SCHEDULES}
        print(f"Forward in round {number}:", ", ".join(f"{value:.1f} ms ({name})" for name, value in forward.items()))


if __name__ == "__main__":
    main()
