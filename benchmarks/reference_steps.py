"""Predict overlapped training from blocking training, for 28 published runs: how far each model of the step is off.

The runs are one benchmark of seven models and modes on 1, 2 and 4 GPUs; the table has the time of an epoch, and of
blocking runs the time of their all-reduces. From the single and the blocking (naive) rows alone, this predicts the
interleaved and DDP rows by models of the step, with C the time without and X that of the blocking all-reduces:

* sum: C + X
* max: max(C, X)
* overlap: gradients become ready layer by layer in backward, each message takes alpha + beta·n, one after the other.
  alpha and beta are fitted to the X of all models, and layers take time by their products
* copies: the same, and DDP copies all gradients into its buckets and back, each time reading and writing them once
* host: the same, but no shorter than the host takes to launch it. The host sets the small model's steps: its single run
  has the time per layer, and what its blocking run takes longer is that per all-reduce
* interference: the same, and compute takes 1.13 times as long while a message is under way: the mean of what kernels
  show that ran with and without communication in traces of other machines (H100 1.38, A100 1.02, V100 1.06 and 1.07)

The optimizer reads a gradient and a parameter and writes the parameter, at the memory bandwidth of the A100.

::

    python benchmarks/reference_steps.py ../shared/reference/a100_pcie_28_runs.csv
"""

from __future__ import annotations

import csv
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dptrace.model.alpha_beta import Line, bucket_ends, exposed_s, line_through

LAYERS = {
    "small": [784, 1024, 512, 256, 10],
    "medium": [784, 2048, 2048, 1024, 512, 10],
    "large": [784, 4096, 4096, 2048, 2048, 1024, 512, 10],
    "xlarge": [784, 4096, 4096, 4096, 2048, 2048, 1024, 512, 10],
}
STEPS = 32
_BACKWARD = 2 / 3
"""Share of backward: two products of matrices for each one of forward."""
_FIRST_CAP, _CAP = 1 << 20, 25 << 20
_INTERFERENCE = 1.13
_MEMORY_BYTES_PER_S = 1.935e12
MODELS = ("sum", "max", "overlap", "copies", "host", "interference")


class Run(NamedTuple):
    """A row of the table; times are seconds per step."""

    model: str
    mode: str
    gpus: int
    step_s: float
    comm_s: float


class Prediction(NamedTuple):
    """A run that was not used to fit anything, and what each model of the step says about it."""

    run: Run
    by_model: dict[str, float]

    def error(self, name: str) -> float:
        """Return the relative error of a model."""
        return self.by_model[name] / self.run.step_s - 1


def read(path: Path) -> list[Run]:
    """Read the table."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [
        Run(r["model"], r["mode"], int(r["gpus"]), float(r["avg_epoch_s"]) / STEPS, float(r["comm_s"] or 0) / STEPS)
        for r in rows
    ]


def gradients(model: str) -> tuple[list[int], list[float]]:
    """Return bytes of each gradient in the order of backward, and the share of backward after which it is ready."""
    sizes, ready, done = list[int](), list[float](), 0.0
    layers = list(pairwise(LAYERS[model]))
    # The first layer needs no gradient of its input: half of the products.
    work = [(1 if i == 0 else 2) * a * b for i, (a, b) in enumerate(layers)]
    for (inputs, outputs), products in zip(reversed(layers), reversed(work), strict=True):
        done += products / sum(work)
        sizes += [4 * outputs, 4 * inputs * outputs]
        ready += [done, done]
    return sizes, ready


def fitted_line(runs: list[Run], gpus: int) -> Line:
    """Fit the time of a message of n bytes to the blocking all-reduces of all models on so many GPUs."""
    naive = [run for run in runs if run.mode == "naive" and run.gpus == gpus]
    counts = np.array([len(gradients(run.model)[0]) for run in naive])
    bytes_each = np.array([sum(gradients(run.model)[0]) for run in naive]) / counts
    return line_through(bytes_each, np.array([run.comm_s for run in naive]) / counts)


def predict(runs: list[Run], wanted: Run) -> Prediction:
    """Predict a run from the blocking run of the same model on as many GPUs."""
    naive = next(r for r in runs if (r.model, r.mode, r.gpus) == (wanted.model, "naive", wanted.gpus))
    compute, line = naive.step_s - naive.comm_s, fitted_line(runs, wanted.gpus)
    sizes, ready = gradients(wanted.model)
    ends = list(range(1, len(sizes) + 1))
    if wanted.mode == "ddp":
        first = bucket_ends(sizes, _FIRST_CAP)[0]
        ends = [first, *(first + end for end in bucket_ends(sizes[first:], _CAP))]
    sums = np.cumsum([0, *sizes])
    buckets = [int(sums[end] - sums[begin]) for begin, end in pairwise([0, *ends])]
    backward = _BACKWARD * (compute - 3 * sum(sizes) / _MEMORY_BYTES_PER_S)
    exposed = exposed_s(buckets, [ready[end - 1] * backward for end in ends], line)
    hidden = max(0.0, sum(line.seconds(size) for size in buckets) - exposed)
    slower = (_INTERFERENCE - 1) * hidden
    copies = 4 * sum(sizes) / _MEMORY_BYTES_PER_S if wanted.mode == "ddp" else 0.0
    host = host_s(runs, wanted, len(buckets))
    overlap = compute + exposed
    by_model = (
        compute + naive.comm_s,
        max(compute, naive.comm_s),
        overlap,
        overlap + copies,
        max(overlap + copies, host),
        max(overlap + copies + slower, host),
    )
    return Prediction(wanted, dict(zip(MODELS, by_model, strict=True)))


def host_s(runs: list[Run], wanted: Run, messages: int) -> float:
    """Return what the host takes to launch a step with so many all-reduces, by the small model's blocking runs."""
    small = {run.mode: run.step_s for run in runs if run.model == "small" and run.gpus in (1, wanted.gpus)}
    layers = len(LAYERS["small"]) - 1
    per_layer, per_message = small["single"] / layers, (small["naive"] - small["single"]) / (2 * layers)
    return (len(LAYERS[wanted.model]) - 1) * per_layer + messages * max(0.0, per_message)


def predictions(runs: list[Run]) -> list[Prediction]:
    """Predict all interleaved and DDP runs."""
    return [predict(runs, run) for run in runs if run.mode in ("interleaved", "ddp")]


def mean_absolute_error(found: list[Prediction], name: str) -> float:
    """Return the mean absolute error of a model of the step, without the small model's runs."""
    return float(np.mean([abs(one.error(name)) for one in found if one.run.model != "small"]))


def main() -> None:
    """Print the table."""
    found = predictions(read(Path(sys.argv[1])))
    print(f"| model | mode | GPUs | measured, ms | {' | '.join(MODELS)} |\n|{' --- |' * (4 + len(MODELS))}")
    for one in found:
        cells = [f"{1e3 * one.by_model[name]:.2f} ({one.error(name):+.0%})" for name in MODELS]
        run = one.run
        print(f"| {run.model} | {run.mode} | {run.gpus} | {1e3 * run.step_s:.2f} | {' | '.join(cells)} |")
    errors = [f"{mean_absolute_error(found, name):.1%}" for name in MODELS]
    print(f"| **mean absolute error without small** | | | | {' | '.join(errors)} |")


if __name__ == "__main__":
    main()
