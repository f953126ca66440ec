"""The bucket cap that the alpha-beta line predicts to be best for a sweep, among the tried ones and overall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig
from dptrace.bench.sweep_points import BUCKET_CAP, Point
from dptrace.core.units import plural, share
from dptrace.errors import DptraceError
from dptrace.model.alpha_beta import Line, best_cap, fit, pipelined_bytes, predict

_MIB = 1 << 20
"""Bytes of a MiB, the unit of DDP's ``bucket_cap_mb``."""
_SLACK = 0.02
"""Share of exposed time too small to justify another bucket."""
_MIN_SIZES = 3
"""Sizes of a fit: two always lie on a line."""
_MIN_R2 = 0.5
"""R² of a line for a choice."""
_MAX_RATIO = 10.0
"""Largest ratio of the ends of a confidence interval: the choice is proportional to sqrt(alpha/beta)."""


@dataclass(frozen=True, slots=True)
class FittedLine:
    """The line of an all-reduce, and its source."""

    line: Line
    source: str
    r2: float | None = None
    alpha_range_s: tuple[float, float] | None = None
    """95 % confidence."""
    beta_range_s_per_byte: tuple[float, float] | None = None
    sizes: int | None = None
    """Number of different sizes that it was fitted to."""

    @property
    def unreliable_reason(self) -> str:
        """Why the line allows no choice; empty where it does."""
        if self.sizes is not None and self.sizes < _MIN_SIZES:
            return f"all-reduces of {plural(self.sizes, 'different size')} do not determine a line"
        if self.line.beta_s_per_byte <= 0:
            return "larger all-reduces did not take longer than smaller ones"
        if self.r2 is not None and self.r2 < _MIN_R2:
            return f"the line explains only {share(max(self.r2, 0.0))} of the variance of the all-reduce times"
        ends = self.beta_range_s_per_byte
        if ends is not None and (ends[0] <= 0 or ends[1] > _MAX_RATIO * ends[0]):
            low, high = (f"{1e9 * end:.2g}" for end in ends)
            return f"the time per byte is only known to be between {low} and {high} ns"
        return ""


@dataclass(frozen=True, slots=True)
class BucketCapChoice:
    """The choice of the line for points that differ only in their cap."""

    options: dict[str, str]
    """Options that these points have in common."""
    tried_mb: float
    """The best of the tried caps, in MiB."""
    tried_exposed_s: float
    best_mb: float
    """The best of all caps, in MiB."""
    best_exposed_s: float
    best_buckets: int
    closed_form_mb: float | None
    """sqrt(S·alpha/beta), see ``alpha_beta.pipelined_bytes``."""


def fit_recorded(recordings: Mapping[BenchConfig, RecordedFigures]) -> FittedLine | str:
    """Fit the line to the recorded all-reduces without compression, or return the reason why there is no fit."""
    by_size: dict[int, list[float]] = {}
    for config, one in recordings.items():
        if not _compressed(dict(config.options)):
            for size, seconds in one.sent:
                by_size.setdefault(size, []).append(seconds)
    sizes = sorted(by_size)
    if not sizes:
        return "no recorded all-reduce has a known size and the times of all ranks"
    try:
        found = fit(sizes, [by_size[size] for size in sizes])
    except ValueError as error:
        return str(error)
    count = sum(map(len, by_size.values()))
    ranges = found.alpha_range_s, found.beta_range_s_per_byte
    return FittedLine(found.line, f"this sweep's {count:,} recorded all-reduces", found.r2, *ranges, len(sizes))


def fit_from_links(content: Mapping[str, Any], path: str, gpus: int) -> FittedLine:
    """Return the line that ``dptrace links`` measured.

    Raises:
        DptraceError: all_reduce was not measured, or among another number of ranks.
    """
    fitted = (content["collectives"].get("all_reduce") or {}).get("fit")
    if not isinstance(fitted, Mapping):
        raise DptraceError(f"{path}: has no fit of all_reduce; measure one with: dptrace links --gpus {gpus} -o {path}")
    if content.get("ranks") != gpus:
        raise DptraceError(
            f"{path}: was measured among {content.get('ranks')} ranks, but this sweep has {gpus}; measure again with: "
            f"dptrace links --gpus {gpus} -o {path}"
        )
    line = Line(float(fitted["alpha_s"]), float(fitted["beta_s_per_byte"]))
    return FittedLine(
        line, path, fitted.get("r2"), _ends(fitted, "alpha_range_s"), _ends(fitted, "beta_range_s_per_byte")
    )


def _ends(fitted: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    range_s = fitted.get(name)
    return (float(range_s[0]), float(range_s[1])) if range_s else None


def choose(
    points: Sequence[Point],
    fitted: FittedLine,
    recordings: Mapping[tuple[tuple[str, str], ...], RecordedFigures],
    parameter_bytes: Sequence[int],
) -> tuple[list[Point], list[BucketCapChoice]]:
    """Predict the exposed time of each point, and choose the best cap for each group that differs only in the cap.

    The times at which gradients become ready come from the recorded run with the most buckets, interpolated by bytes.

    Args:
        recordings: figures of the recorded runs, by the options of their points.
        parameter_bytes: bytes of each gradient, in the order of ``model.parameters()``.

    Returns:
        The points with their predictions, and a choice for each group.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in points:
        if BUCKET_CAP in point.options and not _compressed(point.options):
            groups.setdefault(_common(point), []).append(point)
    predicted: dict[int, Point] = {}
    chosen = []
    for common, group in groups.items():
        keys = (tuple(point.options.items()) for point in group)
        found = [recordings[key] for key in keys if key in recordings and recordings[key].ready_s]
        gradients = _gradients(found, parameter_bytes)
        if gradients is None or len(group) < 2:
            continue
        sizes, ready = gradients
        caps = {float(point.options[BUCKET_CAP]): point for point in group}
        for cap, point in caps.items():
            prediction = predict(sizes, ready, cap * _MIB, fitted.line)
            new = replace(
                point, predicted_exposed_s=prediction.exposed_s, predicted_collectives=len(prediction.buckets)
            )
            predicted[id(point)] = new
        tried = best_cap(sizes, ready, fitted.line, among=[cap * _MIB for cap in caps], slack=_SLACK)
        best = best_cap(sizes, ready, fitted.line, slack=_SLACK)
        closed = pipelined_bytes(sum(sizes), fitted.line)
        chosen.append(
            BucketCapChoice(
                options=dict(common),
                tried_mb=tried.cap_bytes / _MIB,
                tried_exposed_s=tried.exposed_s,
                best_mb=best.cap_bytes / _MIB,
                best_exposed_s=best.exposed_s,
                best_buckets=len(best.buckets),
                closed_form_mb=None if closed is None else closed / _MIB,
            )
        )
    return [predicted.get(id(point), point) for point in points], chosen


def _compressed(options: Mapping[str, str]) -> bool:
    return options.get("compress", "none") != "none"


def _common(point: Point) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in point.options.items() if name != BUCKET_CAP)


def _gradients(
    found: Sequence[RecordedFigures], parameter_bytes: Sequence[int]
) -> tuple[list[int], list[float]] | None:
    """Return the gradients' bytes in the order in which they become ready, and the times, relative to the last."""
    finest = max(found, key=lambda one: len(one.bucket_bytes), default=None)
    if finest is None:
        return None
    known = len(finest.order) > 0 and max(finest.order) < len(parameter_bytes)
    sizes = [parameter_bytes[place] for place in finest.order] if known else list(finest.bucket_bytes)
    sums, at = np.cumsum(finest.bucket_bytes).astype(float), np.array(finest.ready_s)
    if len(sums) > 1:
        # Assume that gradients of the first bucket become ready at the rate of the second.
        slope = (at[1] - at[0]) / (sums[1] - sums[0])
        sums, at = np.concatenate(([0.0], sums)), np.concatenate(([at[0] - slope * sums[0]], at))
    return sizes, np.interp(list(accumulate(sizes)), sums, at).tolist()
