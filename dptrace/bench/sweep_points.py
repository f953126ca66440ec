"""The points of a sweep: the values to try, what each run measured, and where less communication stops paying off."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig
from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS, check_model
from dptrace.record.options.modes import MODELS, modes_with
from dptrace.record.options.validation import check_batch, check_replicas
from dptrace.trainers.parts.epoch_results import LAST_STEPS, QUALITY

BUCKET_CAP = "bucket-cap-mb"
SWEPT = (BUCKET_CAP, "micro-batches", "batch-size", "compress")
"""Options that can be swept; the first swept one is the x axis of the charts."""
SWEPT_MODES = modes_with("ddp")
"""The modes that a sweep trains with."""

_OPTIONS = {option.name: option for option in OPTIONS}
MIN_STEPS = 8
"""Steps for a standard error of the median."""


def values(name: str, text: str) -> tuple[str, ...]:
    """Read comma-separated values of an option, without duplicates, in the order given.

    Raises:
        UsageError: the option does not take a value, or the list is empty.
    """
    option = _OPTIONS[name]
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        if option.choices and part not in option.choices:
            raise UsageError(f"--{name}: unknown value {part!r}; choose from {', '.join(option.choices)}.")
        try:
            read = option.type(part)
        except ValueError as error:
            reason = "is not a whole number" if option.type is int else error
            raise UsageError(f"--{name} {part}: {reason}.") from None
        found.append(f"{read:.10g}" if isinstance(read, int | float) else part)
    if not found:
        raise UsageError(f"--{name}: the list is empty; give values separated by commas.")
    return tuple(dict.fromkeys(found))


def configs(mode: str, model: str, gpus: int, chosen: Mapping[str, Sequence[str]]) -> list[BenchConfig]:
    """Return a configuration for each combination of the values.

    Args:
        chosen: values by option; an option with one value applies to all.

    Raises:
        UsageError: the mode lacks an option, a batch is not divisible, or there is nothing to compare.
    """
    check_model(mode, model)
    for name in chosen:
        modes = _OPTIONS[name].modes
        if modes and mode not in modes:
            others = " or ".join(f"--mode {other}" for other in modes if other in SWEPT_MODES)
            raise UsageError(f"--{name}: mode {mode} does not have this option; use {others}.")
    if not swept_options(chosen):
        raise UsageError(f"Nothing to compare: give one option several values, such as --{BUCKET_CAP} 0.5,1,2,4,8")
    names = [name for name in reversed(SWEPT) if name in chosen]
    configs_run = []
    for combination in itertools.product(*(chosen[name] for name in names)):
        given = dict(zip(names, combination, strict=True))
        batch = int(given.get("batch-size", MODELS[model].batch_size))
        check_batch(batch, gpus)
        parts = given.get("micro-batches")
        check_replicas(mode, {"batch_size": batch, "micro_batches": None if parts is None else int(parts)}, gpus)
        configs_run.append(
            BenchConfig(model, mode, gpus, tuple((name, given[name]) for name in SWEPT if name in given))
        )
    return configs_run


def check_samples(configs_run: Sequence[BenchConfig], samples: int) -> None:
    """Check that the training data fills a batch of each configuration.

    Raises:
        UsageError: it does not.
    """
    for config in configs_run:
        batch = int(dict(config.options).get("batch-size", MODELS[config.model].batch_size))
        if batch > samples:
            raise UsageError(
                f"A batch of {batch} samples is more than the {samples:,} to train on: give a smaller --batch-size, or "
                "more --samples."
            )


def swept_options(chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the options that have several values, in the order of :data:`SWEPT`."""
    return [name for name in SWEPT if len(chosen.get(name, ())) > 1]


def label(name: str, value: str) -> str:
    """Return the label of a value.

    >>> label("bucket-cap-mb", "4"), label("batch-size", "128"), label("compress", "none")
    ('4 MiB', 'batch 128', 'no compression')
    """
    if name == "compress":
        return "no compression" if value == "none" else value
    return {BUCKET_CAP: f"{value} MiB", "batch-size": f"batch {value}"}.get(name, f"{value} {name}")


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values; times in seconds, None where a figure was not measured."""

    options: dict[str, str]
    """All given options, also those with one value."""
    label: str
    """The values that distinguish it from other points: ``4 MiB``."""
    failed: str | None = None
    steps: int = 0
    """Number of timed steps that count: the last 20 of each repetition."""
    batch_size: int = 0
    step_p50_s: float | None = None
    step_p95_s: float | None = None
    error_s: float | None = None
    """Standard error of the median, from the middle half of the steps; None for fewer than eight."""
    samples_per_s: float | None = None
    """At the median step."""
    tflops: float | None = None
    """FLOPs of the model on one rank over the median step, in TFLOP/s."""
    mfu: float | None = None
    """The same as a share of the GPU's peak."""
    compute_s: float | None = None
    comm_s: float | None = None
    communication_fraction: float | None = None
    """s = T_comm / (T_comp + T_comm), communication overlapped or not."""
    exposed_s: float | None = None
    collectives: float | None = None
    bytes: float | None = None
    accuracy: float | None = None
    """Final accuracy on the validation data, as a share."""
    validation_loss: float | None = None
    """Mean cross-entropy of the validation data at the end."""
    training_accuracy: float | None = None
    """Final accuracy on as many of the training data, as a share."""
    training_loss: float | None = None
    inference: tuple[dict[str, Any], ...] = ()
    """For each batch size the latency of the trained model, see ``inference_latency``."""
    predicted_exposed_s: float | None = None
    """Prediction of the alpha-beta line, for points without compression where caps were swept."""
    predicted_collectives: int | None = None

    def value(self, option: str) -> float:
        """Return the value of an option that takes numbers."""
        return float(self.options[option])

    def cost_s(self, swept: Sequence[str]) -> float | None:
        """Return what points are compared by: seconds of a step, or of a sample where batch sizes were swept."""
        return self._compared(self.step_p50_s, swept)

    def cost_error_s(self, swept: Sequence[str]) -> float | None:
        """Return the standard error of the same."""
        return self._compared(self.error_s, swept)

    def _compared(self, seconds: float | None, swept: Sequence[str]) -> float | None:
        return seconds / self.batch_size if seconds is not None and "batch-size" in swept else seconds


def points(
    configs_run: Sequence[BenchConfig],
    chosen: Mapping[str, Sequence[str]],
    results: Mapping[BenchConfig, Sequence[dict[str, Any]]],
    recordings: Mapping[BenchConfig, RecordedFigures],
) -> list[Point]:
    """Return the figures of each configuration that has a result.

    Args:
        results: the repetitions of each configuration, from ``execute.results``.
        recordings: figures of the recorded runs that could be read.
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
    steps = np.concatenate([np.asarray(one["step_s"][-LAST_STEPS:], float) for one in good])
    low, middle, high, late = np.percentile(steps, [25, 50, 75, 95]).tolist()
    quality: dict[str, Any] = {name: of_epochs(good[0], name)[-1] for name in QUALITY}
    return Point(
        options,
        named,
        steps=len(steps),
        batch_size=int(good[0]["batch_size"]),
        step_p50_s=middle,
        step_p95_s=late,
        # For a normal distribution, the quartiles are 1.349 standard deviations apart, and the standard error of the
        # median is 1.2533 times that of the mean.
        error_s=1.2533 * (high - low) / 1.349 / len(steps) ** 0.5 if len(steps) >= MIN_STEPS else None,
        samples_per_s=int(good[0]["batch_size"]) / middle,
        **quality,
        inference=tuple(good[0].get("inference") or ()),
        **_split(recordings, middle),
    )


def _split(recordings: RecordedFigures | None, step_s: float) -> dict[str, Any]:
    if recordings is None:
        return {}
    figures = {name: getattr(recordings, name) for name in ("compute_s", "comm_s", "exposed_s", "collectives", "bytes")}
    tflops, mfu = (None if of is None else of / step_s for of in (recordings.tflop, recordings.mfu_s))
    return figures | {"communication_fraction": recordings.fraction, "tflops": tflops, "mfu": mfu}


def of_epochs(result: Mapping[str, Any], name: str) -> list[float | None]:
    """Return a figure after each epoch; None for all but the last where the result has only the final one."""
    values = result.get(name)
    if isinstance(values, list) and values:
        return values
    return [*[None] * (len(result["epoch_s"]) - 1), values if isinstance(values, int | float) else None]


def epochs(
    configs_run: Sequence[BenchConfig],
    results: Mapping[BenchConfig, Sequence[dict[str, Any]]],
    recordings: Mapping[BenchConfig, RecordedFigures],
) -> list[dict[str, Any]]:
    """Return a row for each timed epoch, with the communication fraction of the recorded steps."""
    rows = []
    for config in configs_run:
        fraction = recordings[config].fraction if config in recordings else None
        for number, one in enumerate(results.get(config, ()), 1):
            if "failed" in one:
                continue
            samples = one["batch_size"] * one["steps_per_epoch"]
            for epoch, seconds in enumerate(one["epoch_s"], 1):
                figures = {"seconds": seconds, "samples_per_s": samples / seconds, "communication_fraction": fraction}
                for name in ("step_p50_s", *QUALITY):
                    of_each = of_epochs(one, "epoch_step_p50_s" if name == "step_p50_s" else name)
                    known = of_each[epoch - 1] if epoch <= len(of_each) else None
                    figures["validation_accuracy" if name == "accuracy" else name] = known
                rows.append({**dict(config.options), "repetition": number, "epoch": epoch, **figures})
    return rows


def buckets(
    configs_run: Sequence[BenchConfig], recordings: Mapping[BenchConfig, RecordedFigures]
) -> list[dict[str, Any]]:
    """Return a row for each DDP bucket in each recorded step."""
    return [
        {**dict(config.options), **row}
        for config in configs_run
        if config in recordings
        for row in recordings[config].buckets
    ]


# Where less communication stops paying off: s against the validation loss, from point to point of a sweep.


_MIN_FALL = 0.1
"""Fall of s with a doubling of the value, as a share of s, below which returns count as diminished."""
_MAX_RISE = 0.01
"""Rise of the validation loss over the least, as a share of it, above which less communication counts as harmful."""


class Step(msgspec.Struct, frozen=True):
    """From one point to the next."""

    start: str
    end: str
    factor: float
    """s of the end over s of the start, for a doubling of the value: 0.5 where doubling it halves s."""


class Onset(msgspec.Struct, frozen=True):
    """Along the points, from the most communication to the least."""

    order: list[str]
    """Labels of the points with s and a validation loss."""
    steps: list[Step]
    """Empty where the values are no numbers, or several options were swept."""
    diminishing: str | None
    """The first point from which no further step lowers s by a tenth with each doubling of the value."""
    harmful: str | None
    """The first point from which all further ones have a validation loss of more than 1 % above the least."""


def find_onset(points: Sequence[Point], swept: Sequence[str]) -> Onset | None:
    """Find where less communication stops to lower s, and where it begins to cost validation loss.

    Points are taken in the order of their value, where one option with numbers was swept, otherwise by falling s.
    None for fewer than two points with both figures.
    """
    known = [point for point in points if point.communication_fraction and point.validation_loss is not None]
    numbers = len(swept) == 1 and swept[0] != "compress"
    known.sort(key=lambda point: point.value(swept[0]) if numbers else -_s(point))
    if len(known) < 2:
        return None
    steps = [_step(a, b, swept[0]) for a, b in itertools.pairwise(known)] if numbers else []
    diminishing = _first_of_rest([step.factor > 1 - _MIN_FALL for step in steps])
    least = min(_loss(point) for point in known)
    harmful = _first_of_rest([_loss(point) > (1 + _MAX_RISE) * least for point in known])
    return Onset(
        [point.label for point in known],
        steps,
        None if diminishing is None else known[diminishing].label,
        None if harmful is None else known[harmful].label,
    )


def _s(point: Point) -> float:
    return point.communication_fraction or 0.0


def _loss(point: Point) -> float:
    return 0.0 if point.validation_loss is None else point.validation_loss


def _step(start: Point, end: Point, option: str) -> Step:
    doublings = math.log2(end.value(option) / start.value(option))
    return Step(start.label, end.label, (_s(end) / _s(start)) ** (1 / doublings))


def _first_of_rest(held: Sequence[bool]) -> int | None:
    """Return from where on all hold; None if the last does not.

    >>> _first_of_rest([True, False, True, True]), _first_of_rest([True, False])
    (2, None)
    """
    begin = len(held)
    while begin and held[begin - 1]:
        begin -= 1
    return begin if begin < len(held) else None
