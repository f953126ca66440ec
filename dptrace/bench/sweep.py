"""The result of a sweep, computed from what its folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from dptrace.bench.bucket_caps import BucketCapChoice, FittedLine, choose, fit_recorded
from dptrace.bench.conclusions import best_points, onset_sentences, sweep_conclusions
from dptrace.bench.execute import recordings, results
from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig, Store
from dptrace.bench.sweep_points import (
    BUCKET_CAP,
    Point,
    buckets,
    epochs,
    find_onset,
    label,
    points,
    swept_options,
)

SCHEMA = 1
"""Version of sweep.json; docs/guides/sweep.md describes it."""


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options of a sweep."""

    configs: Sequence[BenchConfig]
    chosen: Mapping[str, Sequence[str]]
    """Values by option."""
    epochs: int
    repeat: int
    links: FittedLine | None = None
    """A separately measured line; by default it is fitted to the recorded runs."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep."""

    content: dict[str, Any]
    """The content of sweep.json."""
    epochs: list[dict[str, Any]]
    buckets: list[dict[str, Any]]


def sweep_result(request: SweepRequest, store: Store, notes: Sequence[str] = ()) -> SweepResult:
    """Compute the result of a sweep from its folder, also where runs are missing."""
    configs, swept = request.configs, swept_options(request.chosen)
    found = results(configs, request.repeat, store)
    recorded, missing = recordings(configs, store)
    trouble = [f"{config}: {why}" for config, why in missing.items()]
    trouble += [f"{config}: {note}" for config, one in recorded.items() for note in one.notes]
    good = next((one for ones in found.values() for one in ones if "failed" not in one), {})
    measured, chosen, fitted = _chosen(
        request, points(configs, request.chosen, found, recorded), recorded, good.get("parameter_bytes", ())
    )
    if isinstance(fitted, str):
        trouble.append(f"Cannot fit a line alpha + beta·n: {fitted}.")
    line = fitted if isinstance(fitted, FittedLine) else None
    onset = find_onset(measured, swept)
    by_epoch = epochs(configs, found, recorded)
    failed = [f"{point.label} failed: {point.failed}" for point in measured if point.failed]
    fit = None
    if line is not None:
        ranges = {"alpha_range_s": line.alpha_range_s, "beta_range_s_per_byte": line.beta_range_s_per_byte}
        about = {"r2": line.r2, "source": line.source, "unsure": line.unreliable_reason or None}
        fit = msgspec.structs.asdict(line.line) | ranges | about
    content = {
        "schema": SCHEMA,
        "kind": "sweep",
        **_about(request, good),
        "reading": [*sweep_conclusions(measured, swept, chosen, line), *onset_sentences(onset)],
        "points": _points(measured, swept),
        "fit": fit,
        "chosen": [asdict(one) for one in chosen],
        "onset": None if onset is None else msgspec.to_builtins(onset),
        "by_epoch": by_epoch,
        "notes": [*notes, *trouble, *failed],
    }
    return SweepResult(content, by_epoch, buckets(configs, recorded))


def _about(request: SweepRequest, good: Mapping[str, Any]) -> dict[str, Any]:
    config = request.configs[0]
    about = {
        "model": config.model,
        "mode": config.mode,
        "gpus": config.gpus,
        "epochs": request.epochs,
        "repeat": request.repeat,
    }
    about |= {name: good.get(name) for name in ("parameters", "device", "versions", "data", "steps_per_epoch")}
    return about | {
        "swept": swept_options(request.chosen),
        "values": {name: list(given) for name, given in request.chosen.items()},
    }


def _chosen(
    request: SweepRequest,
    sweep_points: list[Point],
    recordings: Mapping[BenchConfig, RecordedFigures],
    parameter_bytes: Sequence[int],
) -> tuple[list[Point], list[BucketCapChoice], FittedLine | str | None]:
    """Let the line choose the cap, where caps were swept among several ranks."""
    if BUCKET_CAP not in swept_options(request.chosen) or request.configs[0].gpus < 2 or not recordings:
        return sweep_points, [], None
    fitted = request.links or fit_recorded(recordings)
    if isinstance(fitted, str) or fitted.unreliable_reason:
        return sweep_points, [], fitted
    sweep_points, chosen = choose(
        sweep_points, fitted, {config.options: one for config, one in recordings.items()}, parameter_bytes
    )
    return sweep_points, chosen, fitted


def _points(measured: Sequence[Point], swept: Sequence[str]) -> list[dict[str, Any]]:
    """Return the points, each with its place in the chart."""
    best, alike = best_points(measured, swept)
    return [
        asdict(point)
        | {
            "x": point.options[swept[0]],
            "series": ", ".join(label(name, point.options[name]) for name in swept[1:]),
            "cost_s": point.cost_s(swept),
            "best": point is best,
            "as_good": any(point is one for one in alike),
        }
        for point in measured
    ]
