"""What a sweep says, in a sentence or three: the best point, by how much, what grows beyond it, what the line chose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dptrace.bench.sweep.bucket_cap import BucketCapChoice, FittedLine
from dptrace.bench.sweep.points import BUCKET_CAP, FEWEST, Point, label

__all__ = ["best", "conclusions", "cost_s", "equally_good"]

_ERRORS = 2
"""Standard errors of a difference below which two medians are not told apart."""
_FEW = 3
"""Points that are named one by one."""
_SHORT_S = 1e-3
_BETTER = 0.95
"""Factor below which another cap is said to expose less."""
_EXPLAINED = 1.5
"""Communication times this is the most by which buckets can be thought to change a step."""
_GROWS = 1.1
"""Factor from which on exposed communication is said to grow."""


def cost_s(point: Point, per_sample: bool) -> float | None:
    """Give what a point is judged by: seconds of a step, or of a sample where batches differ."""
    if point.step_p50_s is None:
        return None
    return point.step_p50_s / point.batch_size if per_sample else point.step_p50_s


def best(points: Sequence[Point], per_sample: bool) -> Point | None:
    """Give the fastest point; None where all failed."""
    costs = {id(point): cost for point in points if (cost := cost_s(point, per_sample)) is not None}
    return min((point for point in points if id(point) in costs), key=lambda point: costs[id(point)], default=None)


def equally_good(points: Sequence[Point], per_sample: bool) -> list[Point]:
    """Give the points that are not told apart from the best by how the steps scatter, the best left out."""
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
    """Give the sentences; none where nothing ran."""
    per_sample = "batch-size" in swept
    fastest = best(points, per_sample)
    if fastest is None:
        return []
    ran = [point for point in points if point.step_p50_s is not None]
    surely = len(equally_good(ran, per_sample)) < len(ran) - 1
    sentences = [_headline(ran, fastest, per_sample) + (_trend(ran, fastest, swept) if surely else "") + "."]
    sentences += _doubt(ran, fastest, swept) if surely else []
    if fitted is not None and fitted.unreliable_reason:
        sentences.append(
            f"The fit can't tell which cap is best: {fitted.unreliable_reason} (alpha + beta·n, from {fitted.source})."
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
        few = f"the last {least} steps" if least > 1 else "one step"
        why = "scatter as much" if least >= FEWEST else f"{few} can't tell how much they scatter; give more --epochs"
        return f"None is surely best: the medians of the {what} differ by {apart:.0f} %, and {why}"
    slowest = max(ran, key=lambda point: cost_s(point, per_sample) or 0.0)
    less = 100 * (1 - (cost_s(fastest, per_sample) or 0.0) / (cost_s(slowest, per_sample) or 1.0))
    text = f"{fastest.label} is best here: {less:.0f} % less {what} than {slowest.label}"
    if not alike:
        return text
    some = " and ".join(point.label for point in alike) if len(alike) <= _FEW else f"{len(alike)} others"
    return f"{text}, though {some} can't be told from it as the steps scatter"


def _doubt(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> list[str]:
    """Say where steps differ by more than buckets can do: by more than all communication takes."""
    slowest = max(ran, key=lambda point: point.step_p50_s or 0.0)
    if list(swept) != [BUCKET_CAP] or slowest.comm_s is None or fastest.comm_s is None:
        return []
    apart, most = (slowest.step_p50_s or 0.0) - (fastest.step_p50_s or 0.0), max(slowest.comm_s, fastest.comm_s)
    if apart <= _EXPLAINED * most:
        return []
    sentences = (
        f"Do not trust this: {slowest.label} is slower by {_ms(apart)} a step, and all its communication takes "
        f"{_ms(most)}; something else, such as other load, slowed this run down. Repeat it on a quiet machine, or with "
        "--repeat 3."
    )
    return [sentences]


def _trend(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> str:
    """Say what is worse on both sides of the best, where one number alone was swept."""
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
        text = f"; beyond it exposed communication grows ({_ms(_exposed(fastest))} to {_ms(_exposed(above))} a step)"
    if name == BUCKET_CAP and below is not None and (below.collectives or 0) > (fastest.collectives or 0):
        count, fewer = below.collectives or 0, fastest.collectives or 0
        text += f"; below it there are more collectives ({count:.0f} a step at {below.label}, {fewer:.0f} here)"
    return text


def _exposed(point: Point) -> float:
    return point.exposed_s or 0.0


def _ms(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= _SHORT_S else f"{1e6 * seconds:.0f} µs"


def _rate(seconds_per_byte: float) -> str:
    return f"{1e-9 / seconds_per_byte:.3g} GB/s"


def _between(ends: tuple[float, float] | None, format_value: Callable[[float], str]) -> str:
    """Give a confidence interval in brackets, the lower end first; nothing where none is known."""
    if ends is None:
        return ""
    low, high = ends if format_value is not _rate else ends[::-1]
    return f" [95 %: {format_value(low)} to {format_value(high)}]"


def _choice(one: BucketCapChoice, ran: Sequence[Point], fitted: FittedLine, several: bool) -> str:
    line, options = fitted.line, one.options
    rate = f"{1e-9 / line.beta_s_per_byte:.3g} GB/s{_between(fitted.beta_range_s_per_byte, _rate)}"
    latency = f"alpha {_ms(line.alpha_s)}{_between(fitted.alpha_range_s, _ms)}"
    where = " with " + ", ".join(label(name, value) for name, value in options.items()) if several and options else ""
    text = (
        f"By alpha + beta·n ({latency}, {rate}; from {fitted.source}) "
        f"{one.tried_mb:g} MiB would have been chosen{where}: {_ms(one.tried_exposed_s)} exposed"
    )
    same = [p for p in ran if {**options, BUCKET_CAP: p.options.get(BUCKET_CAP)} == p.options]
    there = next((p for p in same if float(p.options[BUCKET_CAP]) == one.tried_mb and p.exposed_s is not None), None)
    text += f", measured {_ms(_exposed(there))}" if there is not None else ""
    many = "1 bucket" if one.best_buckets == 1 else f"{one.best_buckets} buckets"
    better = one.best_exposed_s < _BETTER * one.tried_exposed_s
    better_cap = f"; of all caps {one.best_mb:.3g} MiB ({many}, {_ms(one.best_exposed_s)})"
    text += better_cap if better else "; no cap would do better"
    closed = one.closed_form_mb
    return text + (f". The closed form sqrt(S·alpha/beta) gives {closed:.2g} MiB." if closed else ".")
