"""The result of a sweep, computed from the results and recorded runs in its folder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from dptrace.bench.execute import Job, results
from dptrace.bench.store import BenchConfig, Store
from dptrace.bench.sweep_points import (
    BUCKET_CAP,
    FEWEST,
    Point,
    RecordedFigures,
    buckets,
    epochs,
    label,
    points,
    recorded_figures,
    swept_options,
)
from dptrace.core.units import duration, plural, share
from dptrace.errors import DptraceError
from dptrace.model.alpha_beta import Line, best_cap, fit, pipelined_bytes, predict

__all__ = [
    "FittedLine",
    "SweepRequest",
    "SweepResult",
    "find_onset",
    "fit_from_links",
    "fit_recorded",
    "onset_sentences",
    "sweep_result",
]


# The bucket cap that the alpha-beta line predicts to be best for a sweep, among the tried ones and overall.


_MIB = 1 << 20
_SLACK = 0.02
"""Share of exposed time too small to justify another bucket."""
_FEWEST_SIZES = 3
"""Fewest sizes of a fit: two always lie on a line."""
_LEAST_R2 = 0.5
"""Least R² of a line for a choice."""
_WIDEST = 10.0
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
        if self.sizes is not None and self.sizes < _FEWEST_SIZES:
            return f"all-reduces of {plural(self.sizes, 'different size')} do not determine a line"
        if self.line.beta_s_per_byte <= 0:
            return "larger all-reduces did not take longer than smaller ones"
        if self.r2 is not None and self.r2 < _LEAST_R2:
            return f"the line explains only {share(max(self.r2, 0.0))} of the variance of the all-reduce times"
        ends = self.beta_range_s_per_byte
        if ends is not None and (ends[0] <= 0 or ends[1] > _WIDEST * ends[0]):
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
    """sqrt(S·alpha/beta), see ``bucket_size.pipelined_bytes``."""


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
        found = [recordings[key] for point in group if (key := tuple(point.options.items())) in recordings]
        gradients = _gradients([one for one in found if one.ready_s], parameter_bytes)
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


# The conclusions of a sweep: the best point, by how much, what gets worse on both sides, what the line predicts.


_ERRORS = 2
"""Standard errors of a difference below which two medians count as equal."""
_FEW = 3
"""Most points that are named one by one."""
_BETTER = 0.95
"""Factor on exposed time below which another cap counts as better."""
_EXPLAINED = 1.5
"""Factor on communication time up to which buckets can explain a difference of steps."""
_GROWS = 1.1
"""Factor above which exposed communication counts as growing."""


def cost_s(point: Point, per_sample: bool) -> float | None:
    """Return the time that points are compared by: seconds of a step, or of a sample where batch sizes differ."""
    if point.step_p50_s is None:
        return None
    return point.step_p50_s / point.batch_size if per_sample else point.step_p50_s


def best(points: Sequence[Point], per_sample: bool) -> Point | None:
    """Return the fastest point; None where all failed."""
    ran = [point for point in points if point.step_p50_s is not None]
    return min(ran, key=lambda point: cost_s(point, per_sample) or 0.0, default=None)


def equally_good(points: Sequence[Point], per_sample: bool) -> list[Point]:
    """Return the other points that are within the spread of the steps of the best."""
    fastest = best(points, per_sample)
    if fastest is None:
        return []
    return [point for point in points if point is not fastest and _indistinguishable(point, fastest, per_sample)]


def _indistinguishable(point: Point, other: Point, per_sample: bool) -> bool:
    cost, least = cost_s(point, per_sample), cost_s(other, per_sample)
    if cost is None or least is None:
        return False
    if point.error_s is None or other.error_s is None:
        return True
    samples = (point.batch_size, other.batch_size) if per_sample else (1, 1)
    return cost - least <= _ERRORS * math.hypot(point.error_s / samples[0], other.error_s / samples[1])


def conclusions(
    points: Sequence[Point],
    swept: Sequence[str],
    chosen: Sequence[BucketCapChoice] = (),
    fitted: FittedLine | None = None,
) -> list[str]:
    """Return the sentences; empty where nothing ran."""
    per_sample = "batch-size" in swept
    fastest = best(points, per_sample)
    if fastest is None:
        return []
    ran = [point for point in points if point.step_p50_s is not None]
    has_best = len(equally_good(ran, per_sample)) < len(ran) - 1
    sentences = [_headline(ran, fastest, per_sample) + (_trend(ran, fastest, swept) if has_best else "") + "."]
    sentences += _doubt(ran, fastest, swept) if has_best else []
    if fitted is not None and fitted.unreliable_reason:
        sentences.append(
            f"The fit cannot determine the best cap: {fitted.unreliable_reason} (alpha + beta·n, from {fitted.source})."
        )
    elif fitted is not None:
        sentences += [_choice(one, ran, fitted, len(chosen) > 1) for one in chosen]
    return sentences


def _headline(ran: Sequence[Point], fastest: Point, per_sample: bool) -> str:
    what = "time per sample" if per_sample else "time per step"
    if len(ran) == 1:
        return f"Only {fastest.label} ran"
    alike = equally_good(ran, per_sample)
    if len(alike) == len(ran) - 1:
        times = sorted(cost for point in ran if (cost := cost_s(point, per_sample)) is not None)
        apart = 100 * (times[-1] / times[0] - 1)
        least = min(point.steps for point in ran)
        why = (
            "which is within the spread of the steps"
            if least >= FEWEST
            else f"and {plural(least, 'step')} cannot show their spread; use more --epochs"
        )
        return f"No value is clearly best: the medians of the {what} differ by {apart:.0f} %, {why}"
    slowest = max(ran, key=lambda point: cost_s(point, per_sample) or 0.0)
    less = 100 * (1 - (cost_s(fastest, per_sample) or 0.0) / (cost_s(slowest, per_sample) or 1.0))
    text = f"{fastest.label} is best here: {less:.0f} % less {what} than {slowest.label}"
    if not alike:
        return text
    some = " and ".join(point.label for point in alike) if len(alike) <= _FEW else f"{len(alike)} others"
    return f"{text}; {some} {'is' if len(alike) == 1 else 'are'} as good within the spread of the steps"


def _doubt(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> list[str]:
    """Return a warning where steps differ by more than all communication takes, which buckets cannot explain."""
    slowest = max(ran, key=lambda point: point.step_p50_s or 0.0)
    if list(swept) != [BUCKET_CAP] or slowest.comm_s is None or fastest.comm_s is None:
        return []
    apart, most = (slowest.step_p50_s or 0.0) - (fastest.step_p50_s or 0.0), max(slowest.comm_s, fastest.comm_s)
    if apart <= _EXPLAINED * most:
        return []
    warning = (
        f"Do not trust this: {slowest.label} is slower by {_time(apart)} per step, but all its communication takes "
        f"{_time(most)}; something else, such as other load, slowed this run down. Repeat it on a quiet machine, or "
        "with --repeat 3."
    )
    return [warning]


def _trend(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> str:
    """Return what is worse on both sides of the best, where a single numeric option was swept."""
    if list(swept) == ["compress"] or len(swept) != 1:
        return ""
    name = swept[0]
    known = [point for point in ran if point.exposed_s is not None and point.collectives is not None]
    if not any(point is fastest for point in known):
        return ""
    here = float(fastest.options[name])
    above = max((p for p in known if float(p.options[name]) > here), key=lambda p: float(p.options[name]), default=None)
    below = min((p for p in known if float(p.options[name]) < here), key=lambda p: float(p.options[name]), default=None)
    text = ""
    if above is not None and _exposed(above) > _GROWS * _exposed(fastest):
        text = (
            f"; above it, exposed communication grows ({_time(_exposed(fastest))} to {_time(_exposed(above))} per step)"
        )
    if name == BUCKET_CAP and below is not None and (below.collectives or 0) > (fastest.collectives or 0):
        count, fewer = below.collectives or 0, fastest.collectives or 0
        text += (
            f"; below it, there are more collectives ({count:.0f} per step at {below.label}, {fewer:.0f} at the best)"
        )
    return text


def _exposed(point: Point) -> float:
    return point.exposed_s or 0.0


def _time(seconds: float) -> str:
    return duration(1e9 * seconds)


def _rate(seconds_per_byte: float) -> str:
    return f"{1e-9 / seconds_per_byte:.3g} GB/s"


def _between(ends: tuple[float, float] | None, format_value: Callable[[float], str]) -> str:
    """Return a confidence interval in brackets, lower end first; empty where it is unknown."""
    if ends is None:
        return ""
    low, high = ends if format_value is not _rate else ends[::-1]
    return f" [95 %: {format_value(low)} to {format_value(high)}]"


def _choice(one: BucketCapChoice, ran: Sequence[Point], fitted: FittedLine, several: bool) -> str:
    line, options = fitted.line, one.options
    rate = f"{1e-9 / line.beta_s_per_byte:.3g} GB/s{_between(fitted.beta_range_s_per_byte, _rate)}"
    latency = f"alpha {_time(line.alpha_s)}{_between(fitted.alpha_range_s, _time)}"
    where = " with " + ", ".join(label(name, value) for name, value in options.items()) if several and options else ""
    text = (
        f"By alpha + beta·n ({latency}, {rate}; from {fitted.source}), {one.tried_mb:g} MiB is the best of the tried "
        f"caps{where}: {_time(one.tried_exposed_s)} exposed"
    )
    same = [p for p in ran if {**options, BUCKET_CAP: p.options.get(BUCKET_CAP)} == p.options]
    tried = next((p for p in same if float(p.options[BUCKET_CAP]) == one.tried_mb and p.exposed_s is not None), None)
    text += f", measured {_time(_exposed(tried))}" if tried is not None else ""
    better = one.best_exposed_s < _BETTER * one.tried_exposed_s
    better_cap = (
        f"; the best of all caps is {one.best_mb:.3g} MiB "
        f"({plural(one.best_buckets, 'bucket')}, {_time(one.best_exposed_s)})"
    )
    text += better_cap if better else "; no other cap is better"
    closed = one.closed_form_mb
    return text + (f". The closed form sqrt(S·alpha/beta) gives {closed:.2g} MiB." if closed else ".")


# Where less communication stops paying off: s against the validation loss, from point to point of a sweep.


_LEAST_FALL = 0.1
"""Fall of s with a doubling of the value, as a share of s, below which returns count as diminished."""
_HURTS = 0.01
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
    known.sort(key=lambda point: float(point.options[swept[0]]) if numbers else -_s(point))
    if len(known) < 2:
        return None
    steps = [_step(a, b, swept[0]) for a, b in itertools.pairwise(known)] if numbers else []
    diminishing = _first_of_rest([step.factor > 1 - _LEAST_FALL for step in steps])
    least = min(_loss(point) for point in known)
    harmful = _first_of_rest([_loss(point) > (1 + _HURTS) * least for point in known])
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
    doublings = math.log2(float(end.options[option]) / float(start.options[option]))
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


def onset_sentences(onset: Onset | None) -> list[str]:
    """Return what the points say of the trade of communication for quality."""
    if onset is None:
        return []
    sentences = []
    if onset.steps:
        factors = [step.factor for step in onset.steps]
        where = (
            f"from {onset.diminishing} on, that is less than a tenth"
            if onset.diminishing is not None
            else "no value is reached from which that is less than a tenth"
        )
        ends = " to ".join(dict.fromkeys(f"{factor:.2f}" for factor in (min(factors), max(factors))))
        sentences.append(f"Doubling the value leaves s at {ends} of what it was (0.50 would halve it); {where}.")
    if onset.harmful is None:
        sentences.append(
            f"Less communication costs no validation loss: at {onset.order[-1]} it is within 1 % of the least."
        )
    else:
        sentences.append(
            f"From {onset.harmful} on, less communication costs validation loss: more than 1 % above the least."
        )
    return sentences


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
