"""The conclusions of a sweep: the best point, by how much, what gets worse on both sides, what the line predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dptrace.bench.sweep.bucket_cap import BucketCapChoice, FittedLine
from dptrace.bench.sweep.points import BUCKET_CAP, FEWEST, Point, label
from dptrace.core.units import duration, plural

__all__ = ["best", "conclusions", "cost_s", "equally_good"]

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
