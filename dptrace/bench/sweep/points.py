"""One training with an option's values in turn: what runs are made of them, and the figures of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from dptrace.bench.matrix import BenchConfig
from dptrace.bench.sweep.recorded import RecordedFigures
from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.models import MODELS
from dptrace.record.options.parse import check_batch, check_model
from dptrace.record.options.validation import check_replicas

__all__ = [
    "BUCKET_CAP",
    "SWEPT",
    "Point",
    "as_dict",
    "buckets",
    "configs",
    "epochs",
    "label",
    "points",
    "swept_options",
    "values",
]

BUCKET_CAP = "bucket-cap-mb"
SWEPT = (BUCKET_CAP, "micro-batches", "batch-size", "compress")
"""Options that can be swept, the one first that a chart shows along its axis."""
LAST = 20
"""Steps at the end of each timed run that count."""
FEWEST = 8
"""Steps from which on it is told how far a median may be off."""


def values(name: str, text: str) -> tuple[str, ...]:
    """Read the values of an option, with commas between; each once, in the order given.

    Raises:
        UsageError: one that the option does not take, or none.
    """
    option = next(option for option in OPTIONS if option.name == name)
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        if option.choices and part not in option.choices:
            raise UsageError(f"--{name} {part}: there is none of that name. There are {', '.join(option.choices)}.")
        try:
            read = option.type(part)
        except ValueError as error:
            raise UsageError(f"--{name} {part}: {error}.") from None
        found.append(f"{read:.10g}" if isinstance(read, int | float) else part)
    if not found:
        raise UsageError(f"--{name}: an empty list; give values with commas between them.")
    return tuple(dict.fromkeys(found))


def configs(mode: str, model: str, gpus: int, chosen: Mapping[str, Sequence[str]]) -> list[BenchConfig]:
    """Give a cell for each combination of the values.

    Args:
        chosen: values by option; options with one value hold for all.

    Raises:
        UsageError: the mode has not such an option, a batch does not divide, or there is nothing to compare.
    """
    check_model(mode, model)
    for name in chosen:
        option = next(option for option in OPTIONS if option.name == name)
        if option.modes and mode not in option.modes:
            others = " or ".join(f"--mode {other}" for other in option.modes if other in ("ddp", "accumulate"))
            raise UsageError(f"--{name}: the mode {mode} has no such option; {others} has.")
    if not swept_options(chosen):
        raise UsageError(
            f"There is nothing to compare: give one of the options several values: --{BUCKET_CAP} 0.5,1,2,4,8"
        )
    names = [name for name in reversed(SWEPT) if name in chosen]
    configs_run = []
    for combination in product(*(chosen[name] for name in names)):
        given = dict(zip(names, combination, strict=True))
        batch = int(given.get("batch-size", MODELS[model].batch_size))
        check_batch(batch, gpus)
        parts = given.get("micro-batches")
        check_replicas(mode, {"batch_size": batch, "micro_batches": None if parts is None else int(parts)}, gpus)
        configs_run.append(
            BenchConfig(model, mode, gpus, tuple((name, given[name]) for name in SWEPT if name in given))
        )
    return configs_run


def swept_options(chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """Give the options that have several values, in the order of :data:`SWEPT`."""
    return [name for name in SWEPT if len(chosen.get(name, ())) > 1]


def label(name: str, value: str) -> str:
    """Give a value as it is said.

    >>> label("bucket-cap-mb", "4"), label("batch-size", "128"), label("compress", "none")
    ('4 MiB', 'batch 128', 'no compression')
    """
    if name == "compress":
        return "no compression" if value == "none" else value
    return {BUCKET_CAP: f"{value} MiB", "batch-size": f"batch {value}"}.get(name, f"{value} {name}")


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values; times in seconds, None for what was not measured."""

    options: dict[str, str]
    """All that were chosen, those with one value too."""
    label: str
    """What sets it apart from the others: ``4 MiB``."""
    failed: str | None = None
    steps: int = 0
    """Timed steps that count: the last 20 of each repetition."""
    batch_size: int = 0
    step_p50_s: float | None = None
    step_p95_s: float | None = None
    error_s: float | None = None
    """Standard error of the median, from the middle half of the steps; None of fewer than eight."""
    samples_per_s: float | None = None
    """At the median step."""
    compute_s: float | None = None
    comm_s: float | None = None
    communication_fraction: float | None = None
    """s = T_comm / (T_comp + T_comm), communication overlapped or not."""
    exposed_s: float | None = None
    collectives: float | None = None
    bytes: float | None = None
    accuracy: float | None = None
    """Share of the validation data, at the end."""
    predicted_exposed_s: float | None = None
    """By the alpha-beta line; of points that differ in their cap alone, without compression."""
    predicted_collectives: int | None = None


def points(
    configs_run: Sequence[BenchConfig],
    chosen: Mapping[str, Sequence[str]],
    results: Mapping[BenchConfig, Sequence[dict[str, Any]]],
    recordings: Mapping[BenchConfig, RecordedFigures],
) -> list[Point]:
    """Give the figures of each cell that has a result.

    Args:
        results: of each config its repetitions, as ``schedule.results`` gives them.
        read: what the recorded runs tell, of those that could be read.
    """
    names = swept_options(chosen)
    return [
        _point(config, names, results[config], recordings.get(config)) for config in configs_run if results.get(config)
    ]


def _point(
    config: BenchConfig, names: Sequence[str], repetitions: Sequence[dict[str, Any]], recordings: RecordedFigures | None
) -> Point:
    options = dict(config.options)
    named = ", ".join(label(name, options[name]) for name in names)
    good = [one for one in repetitions if "failed" not in one]
    if not good:
        return Point(options, named, failed=str(repetitions[0]["failed"]))
    steps = np.concatenate([np.asarray(one["step_s"][-LAST:], float) for one in good])
    low, middle, high, late = np.percentile(steps, [25, 50, 75, 95]).tolist()
    return Point(
        options,
        named,
        steps=len(steps),
        batch_size=int(good[0]["batch_size"]),
        step_p50_s=middle,
        step_p95_s=late,
        # Of normal errors the quartiles are 1.349 standard deviations apart, and the median's error is 1.2533 times
        # the mean's.
        error_s=1.2533 * (high - low) / 1.349 / len(steps) ** 0.5 if len(steps) >= FEWEST else None,
        samples_per_s=int(good[0]["batch_size"]) / middle,
        accuracy=_accuracies(good[0])[-1],
        **_split(recordings),
    )


def _split(recordings: RecordedFigures | None) -> dict[str, Any]:
    if recordings is None:
        return {}
    figures = {name: getattr(recordings, name) for name in ("compute_s", "comm_s", "exposed_s", "collectives", "bytes")}
    return figures | {"communication_fraction": recordings.fraction}


def _accuracies(result: Mapping[str, Any]) -> list[float | None]:
    """Give the accuracy after each epoch; where only the last is told, of that alone."""
    accuracy = result.get("accuracy")
    if isinstance(accuracy, list) and accuracy:
        return accuracy
    return [*[None] * (len(result["epoch_s"]) - 1), accuracy if isinstance(accuracy, int | float) else None]


def epochs(
    configs_run: Sequence[BenchConfig],
    results: Mapping[BenchConfig, Sequence[dict[str, Any]]],
    recordings: Mapping[BenchConfig, RecordedFigures],
) -> list[dict[str, Any]]:
    """Give a row for each timed epoch; the communication fraction is the recorded steps', which no epoch has."""
    rows = []
    for config in configs_run:
        fraction = recordings[config].fraction if config in recordings else None
        for number, one in enumerate(results.get(config, ()), 1):
            if "failed" in one:
                continue
            samples = one["batch_size"] * one["steps_per_epoch"]
            measured_epochs = zip(one["epoch_s"], _accuracies(one), strict=False)
            for epoch, (seconds, accuracy) in enumerate(measured_epochs, 1):
                figures = {"seconds": seconds, "samples_per_s": samples / seconds, "communication_fraction": fraction}
                about = {**dict(config.options), "repetition": number, "epoch": epoch}
                rows.append(about | figures | {"validation_accuracy": accuracy})
    return rows


def buckets(
    configs_run: Sequence[BenchConfig], recordings: Mapping[BenchConfig, RecordedFigures]
) -> list[dict[str, Any]]:
    """Give a row for each of DDP's buckets in each recorded step."""
    return [
        {**dict(config.options), **row}
        for config in configs_run
        if config in recordings
        for row in recordings[config].buckets
    ]


def as_dict(point: Point) -> dict[str, Any]:
    """Give a point for JSON."""
    return asdict(point)
