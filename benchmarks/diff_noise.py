"""Measure how often ``dptrace diff`` raises a false alarm, and what it finds: the figures of docs/accuracy.md.

::

    python benchmarks/diff_noise.py                                    # simulated steps
    python benchmarks/diff_noise.py --long runs/long --recordings runs/r1 … runs/r6
    python benchmarks/diff_noise.py --stretch sharded_h100_8ranks

``--long`` is one long recording, cut into blocks of ten steps, each compared with each; ``--recordings`` are several of
one command, compared in all ways of splitting them into two sides. No claim in them is right. ``--stretch`` compares a
folder of traces with a copy whose all-gathers take 20 % longer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

import dptrace
from dptrace.comparison.significance import FIGURES_ALPHA, Steps, judge
from dptrace.run.run import Run

Float = NDArray[np.float64]
FIGURES = 12
"""Figures of a simulated step, correlated by 0.5; the first is the wall time."""
BLOCK = 10


def autoregressive(draw: np.random.Generator, shape: tuple[int, ...], phi: float) -> Float:
    """Draw stationary AR(1) noise of unit variance along the last axis."""
    noise = draw.standard_normal(shape)
    for k in range(1, shape[-1]):
        noise[..., k] = phi * noise[..., k - 1] + np.sqrt(1 - phi**2) * noise[..., k]
    return noise


def recording(draw: np.random.Generator, steps: int, phi: float, start: float) -> Float:
    """Draw figures by steps, in standard deviations of a step; starts of the job differ by *start*."""
    common = autoregressive(draw, (1, steps), phi) + start * draw.standard_normal((1, 1))
    own = autoregressive(draw, (FIGURES, steps), phi) + start * draw.standard_normal((FIGURES, 1))
    return np.sqrt(0.5) * (common + own)


def simulate(pairs: int, steps: int, phi: float, start: float, recordings: int, moved: float) -> tuple[float, float]:
    """Return how often a figure that did not move is called different, and how often the one that moved is, in %."""
    draw = np.random.default_rng(7)
    count = 2 * recordings
    design = Steps(
        side=np.repeat([0, 1], recordings * steps),
        recording=np.repeat(np.arange(count), steps),
        kind=np.zeros(count * steps, np.int64),
        place=np.tile(np.arange(steps), count),
    )
    shares = np.array([0.5, *[0.5 / (FIGURES - 1)] * (FIGURES - 1)])
    alarms = found = 0
    for _ in range(pairs):
        values = 100 + np.concatenate([recording(draw, steps, phi, start) for _ in range(count)], axis=1)
        values[0] += moved * design.side
        verdicts = [one.verdict == "beyond noise" for one in judge(values, design, 0.1, 3, FIGURES_ALPHA, shares)]
        alarms += any(verdicts[1:] if moved else verdicts)
        found += verdicts[0]
    return 100 * alarms / pairs, 100 * found / pairs


def simulated(pairs: int) -> None:
    print(f"Simulated, {pairs} pairs, {FIGURES} figures: false alarms in any of them; the wall time found, moved by sd")
    print(
        f"{'recordings':>10} {'steps':>5} {'lag-1':>5} {'starts':>6} {'alarms':>7} {'2 sd':>6} {'3 sd':>6} {'5 sd':>6}"
    )
    for recordings, steps, phi, start in (
        *((1, steps, phi, 0.0) for steps in (3, 4, 6, 10, 20, 50) for phi in (0.0, 0.5)),
        *((1, steps, 0.8, 0.0) for steps in (3, 10, 20, 50)),
        *((1, 10, 0.5, start) for start in (0.3, 1.0)),
        *((recordings, 10, 0.5, start) for recordings in (2, 3, 4) for start in (0.0, 1.0)),
    ):
        alarms, _ = simulate(pairs, steps, phi, start, recordings, 0)
        found = [simulate(pairs // 4, steps, phi, start, recordings, moved)[1] for moved in (2, 3, 5)]
        cells = " ".join(f"{one:6.1f}" for one in found)
        print(f"{recordings:>10} {steps:>5} {phi:>5} {start:>6} {alarms:7.1f} {cells}", flush=True)


def report(pairs: Iterator[tuple[Sequence[Run], Sequence[Run]]]) -> None:
    """Print how many of the comparisons, none of which is of different things, claim a difference."""
    results = []
    for before, after in pairs:
        found = dptrace.compare(before, after)
        rows = [row.transfer for row in found.collective_changes if row.transfer is not None]
        named = [change.name for change in (*found.changes, *found.wait_and_transfer, *rows) if change.beyond]
        wall = found.change("wall_ns")
        results.append((bool(named), wall.beyond, wall.verdict, (wall.detectable or 0) / wall.a, named))
    count = len(results)
    claimed, walls = (sum(one[k] for one in results) for k in (0, 1))
    finds = np.median([one[3] for one in results])
    cannot = sum(one[2] == "cannot tell" for one in results)
    print(f"  {count} pairs: {claimed} claim any figure ({100 * claimed / count:.1f} %), {walls} the wall time;")
    print(f"  {cannot} cannot tell about the wall time; a change of it by {100 * finds:.1f} % would be found (median)")
    print("  claimed:", sorted({name for one in results for name in one[4]}) or "nothing")


def blocks(run: Run) -> Iterator[tuple[Sequence[Run], Sequence[Run]]]:
    """Yield every pair of blocks of ten steps."""
    numbers = [int(name.rpartition("#")[2]) for name in run.splits[0].names]
    starts = numbers[: len(numbers) - len(numbers) % BLOCK : BLOCK]
    parts = [run.select(steps=(start, start + BLOCK - 1)) for start in starts]
    for a, b in combinations(parts, 2):
        yield [a], [b]


def splits(runs: Sequence[Run]) -> Iterator[tuple[Sequence[Run], Sequence[Run]]]:
    """Yield every way of splitting the recordings into two sides of the same size."""
    half = len(runs) // 2
    for chosen in combinations(range(len(runs)), half):
        if 0 in chosen:
            yield [runs[k] for k in chosen], [runs[k] for k in range(len(runs)) if k not in chosen]


def autocorrelation(run: Run) -> str:
    wall = np.mean([split.figures["wall_ns"] for split in run.splits], axis=0) / 1e6
    rest = wall - wall.mean()
    lag = (rest[1:] * rest[:-1]).sum() / (rest**2).sum()
    return f"{len(wall)} steps of {wall.mean():.1f} ms, standard deviation {wall.std(ddof=1):.1f} ms, lag-1 {lag:.2f}"


def stretched(folder: Path) -> None:
    """Compare traces with a copy whose all-gathers take 20 % longer, and with itself."""
    with tempfile.TemporaryDirectory() as target:
        for path in folder.iterdir():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                trace = json.load(file)
            for event in trace["traceEvents"]:
                if event.get("cat") == "kernel" and "AllGather" in event["name"]:
                    event["dur"] *= 1.2
            with gzip.open(Path(target, path.name), "wt", compresslevel=1, encoding="utf-8") as file:
                json.dump(trace, file)
        found = dptrace.compare(dptrace.open(folder), dptrace.open(target))
    print(f"  {found.summary()}")
    for row in found.collective_changes:
        if row.transfer is not None and (row.transfer.beyond or row.collective.kind == "all_gather"):
            a, b = row.transfer.a / 1e3, row.transfer.b / 1e3
            print(f"  {row.label}: {a:.0f} to {b:.0f} µs, p {row.transfer.p or 0:.3f}, {row.transfer.verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=500, help="simulated pairs per row")
    parser.add_argument("--long", type=Path, help="one long recording")
    parser.add_argument("--recordings", type=Path, nargs="+", help="several recordings of one command")
    parser.add_argument("--stretch", type=Path, help="a folder of traces with all-gathers")
    options = parser.parse_args()
    if options.long:
        run = dptrace.open(options.long, figures_only=True)
        print(f"Blocks of {BLOCK} steps of {options.long}: {autocorrelation(run)}")
        report(blocks(dptrace.open(options.long)))
    if options.recordings:
        runs = [dptrace.open(path, figures_only=True) for path in options.recordings]
        means = [np.mean([split.figures["wall_ns"] for split in run.splits]) / 1e6 for run in runs]
        print("Recordings of one command, mean steps in ms:", ", ".join(f"{mean:.1f}" for mean in means))
        report(splits(runs))
        print("The same, one recording per side")
        report(([a], [b]) for a, b in combinations(runs, 2))
    if options.stretch:
        print(f"All-gathers of {options.stretch} 20 % longer")
        stretched(options.stretch)
    if not (options.long or options.recordings or options.stretch):
        simulated(options.pairs)


if __name__ == "__main__":
    main()
