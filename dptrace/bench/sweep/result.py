"""The result of a sweep, computed from the results and recorded runs in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from dptrace.bench.matrix import BenchConfig
from dptrace.bench.schedule import Job, results
from dptrace.bench.store import Store
from dptrace.bench.sweep.bucket_cap import BucketCapChoice, FittedLine, choose, fit_recorded
from dptrace.bench.sweep.conclusions import best, conclusions, cost_s, equally_good
from dptrace.bench.sweep.onset import find_onset, onset_sentences
from dptrace.bench.sweep.points import Point, buckets, epochs, label, points, swept_options
from dptrace.bench.sweep.recorded import RecordedFigures, recorded_figures
from dptrace.errors import DptraceError

__all__ = ["SCHEMA", "SweepRequest", "SweepResult", "sweep_result"]

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
    found = results(request.configs, request.repeat, store)
    recordings, trouble = _recordings(request.configs, store)
    sweep_points = points(request.configs, request.chosen, found, recordings)
    good = next((one for ones in found.values() for one in ones if "failed" not in one), {})
    sweep_points, chosen, fitted = _chosen(request, sweep_points, recordings, good.get("parameter_bytes", ()))
    if isinstance(fitted, str):
        trouble.append(f"Cannot fit a line alpha + beta·n: {fitted}.")
    line = fitted if isinstance(fitted, FittedLine) else None
    onset = find_onset(sweep_points, swept_options(request.chosen))
    by_epoch = epochs(request.configs, found, recordings)
    content = {
        "schema": SCHEMA,
        "kind": "sweep",
        **_about(request, good),
        "reading": [
            *conclusions(sweep_points, swept_options(request.chosen), chosen, line),
            *onset_sentences(onset),
        ],
        "points": _points(sweep_points, swept_options(request.chosen)),
        "fit": None if line is None else _fit(line),
        "chosen": [asdict(one) for one in chosen],
        "onset": None if onset is None else msgspec.to_builtins(onset),
        "by_epoch": by_epoch,
        "notes": [
            *notes,
            *trouble,
            *(f"{point.label} failed: {point.failed}" for point in sweep_points if point.failed),
        ],
    }
    return SweepResult(content, by_epoch, buckets(request.configs, recordings))


def _fit(fitted: FittedLine) -> dict[str, Any]:
    ranges = {name: getattr(fitted, name) for name in ("alpha_range_s", "beta_range_s_per_byte")}
    about = {"r2": fitted.r2, "source": fitted.source, "unsure": fitted.unreliable_reason or None}
    return {**msgspec.structs.asdict(fitted.line), **ranges, **about}


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


def _recordings(
    sweep_points: Sequence[BenchConfig], store: Store
) -> tuple[dict[BenchConfig, RecordedFigures], list[str]]:
    """Read the recorded runs; return their figures, and a note for each that cannot be read."""
    from dptrace.load.open import open_run

    recordings, trouble = {}, []
    for config in sweep_points:
        result = store.result(Job(config, -1).name)
        if result is None:
            continue
        if "failed" in result:
            trouble.append(f"{config}: {result['failed']}")
            continue
        try:
            recordings[config] = recorded_figures(open_run([str(store.folder / "traces" / config.name)]))
        except DptraceError as error:
            trouble.append(f"{config}: cannot read its recorded run: {error}")
            continue
        trouble += [f"{config}: {note}" for note in recordings[config].notes]
    return recordings, trouble


def _chosen(
    request: SweepRequest,
    sweep_points: list[Point],
    recordings: Mapping[BenchConfig, RecordedFigures],
    parameter_bytes: Sequence[int],
) -> tuple[list[Point], list[BucketCapChoice], FittedLine | str | None]:
    """Let the line choose the cap, where caps were swept among several ranks."""
    if "bucket-cap-mb" not in swept_options(request.chosen) or request.configs[0].gpus < 2 or not recordings:
        return sweep_points, [], None
    fitted = request.links or fit_recorded(recordings)
    if isinstance(fitted, str) or fitted.unreliable_reason:
        return sweep_points, [], fitted
    sweep_points, chosen = choose(
        sweep_points, fitted, {config.options: one for config, one in recordings.items()}, parameter_bytes
    )
    return sweep_points, chosen, fitted


def _points(sweep_points: Sequence[Point], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the points, each with its place in the chart and its comparison with the best."""
    per_sample = "batch-size" in names
    fastest, alike = best(sweep_points, per_sample), equally_good(sweep_points, per_sample)
    return [
        asdict(point)
        | {
            "x": point.options[names[0]],
            "series": ", ".join(label(name, point.options[name]) for name in names[1:]),
            "cost_s": cost_s(point, per_sample),
            "best": point is fastest,
            "as_good": any(point is one for one in alike),
        }
        for point in sweep_points
    ]
