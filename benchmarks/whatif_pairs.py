"""Predict runs from one another, and compare with what was recorded: naive, interleaved and DDP with several buckets.

::

    python benchmarks/whatif_pairs.py /tmp/pairs --rounds 3

records each way to train once per round, in turns, so that the machine's drift meets all of them, and prints for each
pair the error of the prediction, beside how far apart recordings of the same way are. Recordings that are there stay.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import dptrace

WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "naive": (["--mode", "naive"], {"schedule": "naive"}),
    "interleaved": (["--mode", "interleaved"], {"schedule": "interleaved"}),
    "ddp": (["--mode", "ddp"], {"schedule": "ddp"}),
    "ddp_1mb": (["--mode", "ddp", "--bucket-cap-mb", "1"], {"bucket_cap_mb": 1}),
    "ddp_4mb": (["--mode", "ddp", "--bucket-cap-mb", "4"], {"bucket_cap_mb": 4}),
}
"""By name: how it is recorded, and the what-if that leads to it."""


def record(folder: Path, steps: int) -> None:
    """Record all ways once, as far as they are not there."""
    for name, (options, _) in WAYS.items():
        run = folder / name
        if not (run / "run.json").exists():
            command = [sys.executable, "-m", "dptrace", "record", *options, "--gpus", "2", "--steps", str(steps)]
            subprocess.run([*command, "--out", str(run)], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Record and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    rounds = [given.folder / f"round{number}" for number in range(given.rounds)]
    for folder in rounds:
        record(folder, given.steps)
    runs = [{name: dptrace.open(folder / name) for name in WAYS} for folder in rounds]
    measured = [{name: run.whatif().measured_step_ns for name, run in one.items()} for one in runs]
    print("| from | to | predicted, ms | measured, ms | error | covered |\n| --- | --- | --: | --: | --: | --: |")
    errors, covered = list[float](), list[bool]()
    for source in WAYS:
        for target, (_, change) in WAYS.items():
            answers = [one[source].whatif(**change) for one in runs]
            truth = [one[target] for one in measured]
            off = [a.predicted_step_ns / t - 1 for a, t in zip(answers, truth, strict=True)]
            inside = [a.low_ns <= t <= a.high_ns for a, t in zip(answers, truth, strict=True)]
            if source != target:
                errors, covered = [*errors, *map(abs, off)], [*covered, *inside]
            predicted = statistics.median(a.predicted_step_ns for a in answers) / 1e6
            cells = f"{predicted:.1f} | {statistics.median(truth) / 1e6:.1f} | {statistics.median(off):+.1%}"
            print(f"| {source} | {target} | {cells} | {sum(inside)} of {len(inside)} |")
    share = sum(covered) / len(covered)
    print(
        f"\nMean absolute error {statistics.mean(errors):.1%}; the range covers {share:.0%}. By way, the recordings of"
    )
    spread = {name: max(one[name] for one in measured) / min(one[name] for one in measured) - 1 for name in WAYS}
    print("the same are apart by " + ", ".join(f"{name} {value:.1%}" for name, value in spread.items()) + ".")


if __name__ == "__main__":
    main()
