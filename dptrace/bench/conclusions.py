"""What the runs of a benchmark or a sweep show, in sentences.

One rule decides whether one run is faster than another, for all charts: where their difference is within the spread of
their times, or where that spread is unknown, there is no verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dptrace.bench.bucket_caps import BucketCapChoice, FittedLine
from dptrace.bench.sweep_points import BUCKET_CAP, MIN_STEPS, Onset, Point, label
from dptrace.bench.table import Row, models_by_size, savings, shares, superlinear_row, usable
from dptrace.core.units import duration, plural, signed


def _beyond(difference: float, *errors: float) -> bool:
    """Whether a difference is more than the errors of both sides explain."""
    return abs(difference) > math.hypot(*errors)


def faster(row: Row, other: Row | None) -> bool | None:
    """Whether a row's epoch is shorter than that of another row; None where nobody can tell.

    That is where their difference is within the spread of the epochs, or one of them was timed for one epoch only.
    Rows from a CSV have no number of epochs and, without a spread, count as exact.
    """
    if other is None or row.epoch_s is None or other.epoch_s is None or 1 in (row.epochs, other.epochs):
        return None
    saved = other.epoch_s - row.epoch_s
    errors = [(one.spread or 0.0) * (one.epoch_s or 0.0) for one in (row, other)]
    return saved > 0 if _beyond(saved, *errors) or not any(errors) else None


# The texts of a benchmark's six charts.


CHARTS = {
    "epoch_time": "Epoch time by model and mode",
    "speedup": "Speedup over one GPU, against the ideal",
    "communication": "Naive runs: compute and communication",
    "saving": "Time saved over naive",
    "loss": "Loss over steps",
    "throughput": "Throughput",
}
"""Titles of the charts by name, in their order."""

_MAX_SAME = 1e-3
"""Relative difference of losses below which runs compute the same: float32 sums in another order differ by less."""
_NO_CHART = "Nothing to chart: "
_SHARED = (
    "The processes share this machine's cores, and one process alone uses all of them: these figures cannot show what "
    "several would save by splitting an epoch."
)
_NAMES = {"ddp": "DDP", "single": "one GPU"}


@dataclass(frozen=True, slots=True)
class ChartText:
    """The text of one chart: its conclusions, or why it is missing."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    missing: str = ""


def conclusions(
    rows: Sequence[Row], here: str = "On this machine", local_loss: bool = False, on_cpu: bool = False
) -> list[ChartText]:
    """Return the text of the six charts.

    Args:
        here: where the rows were measured, as the beginning of a sentence.
        local_loss: whether the loss chart shows rank 0's own losses.
        on_cpu: whether the rows are of processes that share the cores of a CPU.
    """
    good = usable(rows)
    contents: list[Sequence[str] | str] = [
        _epoch_time(good, here) if good else f"{_NO_CHART}no run has the time of an epoch.",
        _speedup(good),
        _communication(good),
        _saving(good),
        _loss(good, local_loss),
        _throughput(good, on_cpu),
    ]
    say = _of_cpu if on_cpu else str
    return [
        ChartText(name, say(title), missing=say(content))
        if isinstance(content, str)
        else ChartText(name, say(title), tuple(map(say, content)))
        for (name, title), content in zip(CHARTS.items(), contents, strict=True)
    ]


def _of_cpu(text: str) -> str:
    """Replace GPUs by processes."""
    return re.sub(r"\bGPU\b", "process", re.sub(r"\bGPUs\b", "processes", text))


def warnings_about(rows: Sequence[Row], on_cpu: bool = False) -> list[str]:
    """Return a warning on a speedup that is implausibly high."""
    row = superlinear_row(rows)
    if row is None:
        return []
    sentence = (
        f"{_reached(row)}, is more than that many can reach: something else, such as other load, slowed the run on "
        "one GPU down. Repeat it with --repeat 3 on a quiet machine."
    )
    return [_of_cpu(sentence) if on_cpu else sentence]


def _mode_name(mode: str) -> str:
    return _NAMES.get(mode, mode)


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]


def _gpus(row: Row) -> str:
    return "on one GPU" if row.gpus == 1 else f"on {row.gpus} GPUs"


def _place(row: Row) -> str:
    return f"{row.model} {_gpus(row)}"


def _run(row: Row) -> str:
    """Name a row: ``small, DDP on 4 GPUs``."""
    return _place(row) if row.mode == "single" else f"{row.model}, {_mode_name(row.mode)} {_gpus(row)}"


def _reached(row: Row) -> str:
    return f"{_run(row)}: {row.speedup:.2f}×"


def _alone(row: Row, good: Sequence[Row]) -> Row | None:
    """Return the run of a row's model on one GPU, with the same options."""
    same = (one for one in good if one.gpus == 1 and (one.model, one.options) == (row.model, row.options))
    return next(same, None)


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.speedup or 0)


def _compared(good: Sequence[Row]) -> list[Row]:
    """Return the rows of several GPUs whose model ran on one as well."""
    return [row for row in good if row.speedup is not None and row.gpus > 1]


def _why_unknown(rows: Sequence[Row]) -> str:
    """Return why :func:`faster` has no answer for some of these rows."""
    if any(row.epochs == 1 for row in rows):
        return "one epoch each has no spread; use --epochs 5"
    return "epochs vary as much as the runs differ; use more --epochs on a quiet machine"


def _epoch_time(good: Sequence[Row], here: str) -> Sequence[str]:
    """Return which modes pay off for which models, or why there is no verdict."""
    compared = _compared(good)
    if not compared:
        return (f"{here}, there is nothing to compare: no model ran both on one GPU and on several.",)
    if doubted := superlinear_row(good):
        why = "is more than that many GPUs can reach: the times of one GPU cannot be trusted"
        return (f"{here}, no verdict: {_reached(doubted)}, {why}.",)
    verdicts = {faster(row, _alone(row, good)) for row in compared}
    if True not in verdicts:
        best = _reached(_best(compared))
        if None in verdicts:
            return (f"{here}, no verdict: {_why_unknown(good)} (at best, {best}).",)
        return (f"{here}, no mode pays off: one GPU is fastest for every model ({best}).",)
    modes = sorted(dict.fromkeys(row.mode for row in compared), key=lambda mode: mode != "ddp")
    sentences = [_pays([row for row in compared if row.mode == mode], good) for mode in modes]
    return (f"{here}, {sentences[0]}", *map(_begun, sentences[1:]))


def _pays(rows: Sequence[Row], good: Sequence[Row]) -> str:
    """Say for which models a mode pays off, for which it does not, and for which the figures cannot tell."""
    groups: dict[bool | None, list[Row]] = {True: [], False: [], None: []}
    for model in models_by_size(rows):
        own = [row for row in rows if row.model == model]
        # The fastest run decides, where possible among those that the figures tell from one GPU.
        paying = [row for row in own if faster(row, _alone(row, good))]
        decides = _best(paying or own)
        groups[faster(decides, _alone(decides, good))].append(decides)

    def listed(verdict: bool | None) -> str:
        return ", ".join(f"{row.model} ({row.speedup:.2f}× {_gpus(row)})" for row in groups[verdict])

    parts = []
    if paid := groups[True]:
        smallest = paid[0].parameters
        larger = [row for row in (*groups[False], *groups[None]) if (row.parameters or 0) > (smallest or 0)]
        size = f" from {smallest / 1e6:.1f} M parameters up:" if smallest and not larger else " for"
        parts.append(f"pays off{size} {listed(True)}")
    if groups[False]:
        parts.append(f"not for {listed(False)}" if paid else f"does not pay off for {listed(False)}")
    if groups[None]:
        parts.append(f"no verdict for {listed(None)}: {_why_unknown(groups[None])}")
    return f"{_mode_name(rows[0].mode)} {'; '.join(parts)}."


def _speedup(good: Sequence[Row]) -> list[str] | str:
    compared = _compared(good)
    if not compared and any(row.gpus == 1 for row in good):
        return f"{_NO_CHART}no model ran on more than one GPU."
    if not compared:
        return f"{_NO_CHART}no model ran on one GPU (mode single), the baseline of speedups."
    ceilings = {(row.model, row.gpus): row for row in good if row.ceiling}
    sentences = []
    for model in reversed(models_by_size(compared)):
        best = _best([row for row in compared if row.model == model])
        speedup, naive = best.speedup or 0.0, ceilings.get((model, best.gpus))
        text = _reached(best)
        if speedup <= 1:
            slower = faster(best, _alone(best, good)) is False
            text += ", the best of the others: one GPU is fastest" if slower else ", the highest of its runs"
        else:
            text += f", {100 * speedup / best.gpus:.0f} % of the ideal {best.gpus}×"
            if naive and naive.ceiling and speedup <= best.gpus:
                share = 100 * speedup / naive.ceiling
                text += f" and {share:.0f} % of Amdahl's ceiling {naive.ceiling:.2f}× (f = "
                text += f"{naive.parallel_fraction:.2f})"
                text += ", which takes communication for a separate phase: overlap can exceed it" * (share > 100)
        sentences.append(f"{text}.")
    return sentences


def _communication(good: Sequence[Row]) -> list[str] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NO_CHART}there is no naive run, the mode whose communication is a separate phase."
    found = shares(good)
    if not found:
        return f"{_NO_CHART}the naive runs' communication was not measured (--no-record, or a CSV without comm_s)."
    most, least = max(found, key=lambda one: one.fraction), min(found, key=lambda one: one.fraction)
    sentences = []
    for one in (most,) if most is least else (most, least):
        reached = f"; the run reaches {100 * one.row.efficiency:.0f} %" if one.row.efficiency is not None else ""
        sentences.append(
            f"Communication takes s = {100 * one.fraction:.0f} % of an epoch of {_place(one.row)}. Gustafson's "
            f"efficiency 1 − s·(N − 1)/N allows {100 * one.efficiency:.0f} % of the ideal{reached}."
        )
    ordered = sorted(found, key=lambda one: (one.row.model, one.row.gpus))
    grown = [(a, b) for a, b in pairwise(ordered) if a.row.model == b.row.model and a.comm_s]
    if grown:
        before, after = max(grown, key=lambda pair: pair[1].comm_s / pair[0].comm_s)
        sentences.append(
            f"From {before.row.gpus} to {after.row.gpus} GPUs, the communication of {after.row.model} changes from "
            f"{duration(1e9 * before.comm_s)} to {duration(1e9 * after.comm_s)} "
            f"({_percent(100 * (after.comm_s / before.comm_s - 1))})."
        )
    return sentences


def _percent(percent: float) -> str:
    return signed(percent, f"{abs(percent):.0f} %")


def _saving(good: Sequence[Row]) -> list[str] | str:
    naive = {(row.model, row.gpus): row for row in good if row.mode == "naive" and row.gpus > 1}
    if not naive:
        return f"{_NO_CHART}there is no naive run to compare with."
    found = savings(good)
    if not found:
        return f"{_NO_CHART}no other mode ran on as many GPUs as naive."
    sentences = []
    for mode in dict.fromkeys(one.row.mode for one in found):
        own = [one for one in found if one.row.mode == mode]
        verdicts = [faster(one.row, naive[one.row.model, one.row.gpus]) for one in own]
        known = [one for one, verdict in zip(own, verdicts, strict=True) if verdict is not None]
        most, least = max(known or own, key=lambda one: one.percent), min(known or own, key=lambda one: one.percent)
        saved = f"{_percent(most.percent)} ({_place(most.row)})"
        if most is not least:
            saved += f" at best, {_percent(least.percent)} ({_place(least.row)}) at worst"
        name = _begun(_mode_name(mode))
        if known:
            says = "saves" if True in verdicts else "does not clearly save" if None in verdicts else "never saves"
            sentences.append(f"{name} {says} time over naive: {saved}.")
        else:
            sentences.append(f"{name}: no verdict: {_why_unknown([one.row for one in own])}. Measured: {saved}.")
    return sentences


def _loss(good: Sequence[Row], local: bool) -> list[str] | str:
    curves: dict[str, list[Sequence[float | None]]] = {}
    for row in sorted(good, key=lambda row: row.parameters or 0):
        if losses := row.local_losses if local else row.losses:
            curves.setdefault(row.model, []).append(losses)
    if not curves:
        return f"{_NO_CHART}these figures have no losses; a CSV has none, a benchmark that dptrace runs does."
    sentences = [_gap(model, own, local) for model, own in curves.items() if len(own) > 1]
    if local:
        sentences.append(
            "Rank 0's own losses cover only its shard of each batch, which differs with the number of GPUs. "
            "Without --local-loss, losses are averaged over the ranks and cover the whole batch."
        )
    return sentences or ["Each model has one run only: there is no other curve to compare it with."]


def _gap(model: str, curves: Sequence[Sequence[float | None]], local: bool) -> str:
    """Return the largest difference between the curves of a model."""
    steps = [[value for value in step if value is not None] for step in zip(*curves, strict=False)]
    gaps = [(max(step) - min(step), number) for number, step in enumerate(steps) if len(step) > 1]
    if not gaps:
        return f"{model}: no step has a loss in two runs."
    gap, at = max(gaps)
    if local:
        return f"{model}: the curves of {len(curves)} runs differ by up to {gap:.3g}."
    if gap < _MAX_SAME * (max(map(abs, steps[at])) or 1.0):
        apart = f"they differ by at most {gap:.1g}" if gap else "they are equal bit for bit"
        return f"{model}: all {len(curves)} curves coincide ({apart}): all modes compute the same."
    return f"{model}: the curves differ by {gap:.3g} at step {at}: these runs do not compute the same."


def _throughput(good: Sequence[Row], on_cpu: bool) -> list[str] | str:
    rated = [row for row in good if row.samples_per_s]
    if not rated:
        return f"{_NO_CHART}no run has its samples per second."
    sentences = []
    for model in reversed(models_by_size(rated)):
        own = [row for row in rated if row.model == model]
        best = max(own, key=lambda row: row.samples_per_s or 0)
        alone = next((row for row in own if row.gpus == 1), best)
        against = f"against {alone.samples_per_s:,.0f} on one GPU" if alone is not best else "the highest of its runs"
        sentences.append(f"{_run(best)}: {best.samples_per_s:,.0f} samples/s, {against}.")
    return sentences + ([_SHARED] if on_cpu and len(good) > 1 else _balance(good))


def _balance(good: Sequence[Row]) -> list[str]:
    """Compare what splitting an epoch can save with what communication adds, for the smallest and largest model."""
    weighed = {one.row.model: one for one in shares(good) if _alone(one.row, good)}  # the last has the most GPUs
    models = models_by_size([one.row for one in weighed.values()])
    sentences = []
    for model in dict.fromkeys([*models[:1], *models[-1:]]):
        row, comm_s = weighed[model].row, weighed[model].comm_s
        alone = _alone(row, good)
        saved_s = ((alone and alone.epoch_s) or 0.0) * (1 - 1 / row.gpus)
        sentences.append(
            f"{model}: {row.gpus} GPUs can save {duration(1e9 * saved_s)} of one GPU's epoch by splitting it; "
            f"communication adds {duration(1e9 * comm_s)}{', more than that saves' if comm_s >= saved_s else ''}."
        )
    return sentences


# The conclusions of a sweep: the best point, by how much, what gets worse on both sides, what the line predicts.


_ERRORS = 2
"""Standard errors of a median that count as its spread."""
_MAX_NAMED = 3
"""Number of points up to which they are named one by one."""
_BETTER = 0.95
"""Factor on exposed time below which another cap counts as better."""
_EXPLAINED = 1.5
"""Factor on communication time up to which buckets can explain a difference of steps."""
_GROWS = 1.1
"""Factor above which exposed communication counts as growing."""


def best_points(points: Sequence[Point], swept: Sequence[str]) -> tuple[Point | None, list[Point]]:
    """Return the best point, and the others that the spread of the steps does not tell from it.

    Where it does not tell any other from the fastest, or all failed, there is no best.
    """
    ran = [point for point in points if point.step_p50_s is not None]
    fastest = min(ran, key=lambda point: point.cost_s(swept) or 0.0, default=None)
    if fastest is None:
        return None, []
    alike = [point for point in ran if point is not fastest and not _slower(point, fastest, swept)]
    return (fastest, alike) if len(ran) == 1 or len(alike) < len(ran) - 1 else (None, [])


def _slower(point: Point, fastest: Point, swept: Sequence[str]) -> bool:
    errors = [one.cost_error_s(swept) for one in (point, fastest)]
    difference = (point.cost_s(swept) or 0.0) - (fastest.cost_s(swept) or 0.0)
    return None not in errors and _beyond(difference, *(_ERRORS * (error or 0.0) for error in errors))


def sweep_conclusions(
    points: Sequence[Point],
    swept: Sequence[str],
    chosen: Sequence[BucketCapChoice] = (),
    fitted: FittedLine | None = None,
) -> list[str]:
    """Return the sentences; empty where nothing ran."""
    ran = [point for point in points if point.step_p50_s is not None]
    if not ran:
        return []
    best, alike = best_points(ran, swept)
    if best is None:
        sentences = [_nothing_best(ran, swept)]
    elif len(ran) == 1:
        sentences = [f"Only {best.label} ran."]
    else:
        sentences = [_best_point(ran, best, alike, swept), *_doubt(ran, best, swept)]
    if fitted is not None and fitted.unreliable_reason:
        why = f"{fitted.unreliable_reason} (alpha + beta·n, from {fitted.source})"
        sentences.append(f"The fit cannot determine the best cap: {why}.")
    elif fitted is not None:
        sentences += [_choice(one, ran, fitted, len(chosen) > 1) for one in chosen]
    return sentences


def _what(swept: Sequence[str]) -> str:
    return "time per sample" if "batch-size" in swept else "time per step"


def _nothing_best(ran: Sequence[Point], swept: Sequence[str]) -> str:
    costs = [cost for cost in (point.cost_s(swept) for point in ran) if cost is not None]
    steps = min(point.steps for point in ran)
    why = "which is within the spread of the steps"
    if steps < MIN_STEPS:
        why = f"and {plural(steps, 'step')} cannot show their spread; use more --epochs"
    apart = 100 * (max(costs) / min(costs) - 1)
    return f"No value is clearly best: the medians of the {_what(swept)} differ by {apart:.0f} %, {why}."


def _best_point(ran: Sequence[Point], fastest: Point, alike: Sequence[Point], swept: Sequence[str]) -> str:
    slowest = max(ran, key=lambda point: point.cost_s(swept) or 0.0)
    less = 100 * (1 - (fastest.cost_s(swept) or 0.0) / (slowest.cost_s(swept) or 1.0))
    text = f"{fastest.label} is best here: {less:.0f} % less {_what(swept)} than {slowest.label}"
    if alike:
        named = " and ".join(point.label for point in alike)
        some = named if len(alike) <= _MAX_NAMED else f"{len(alike)} others"
        text += f"; {some} {'is' if len(alike) == 1 else 'are'} as good within the spread of the steps"
    return f"{text}{_trend(ran, fastest, swept)}."


def _trend(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> str:
    """Return what is worse on both sides of the best, where a single numeric option was swept."""
    if len(swept) != 1 or swept[0] == "compress" or fastest.exposed_s is None:
        return ""
    known = sorted((point for point in ran if point.exposed_s is not None), key=lambda point: point.value(swept[0]))
    first, last, text = known[0], known[-1], ""
    if last is not fastest and (last.exposed_s or 0.0) > _GROWS * fastest.exposed_s:
        ends = f"{_time(fastest.exposed_s)} to {_time(last.exposed_s or 0.0)} per step"
        text = f"; above it, exposed communication grows ({ends})"
    count, fewer = first.collectives or 0, fastest.collectives or 0
    if swept[0] == BUCKET_CAP and count > fewer:
        ends = f"{count:.0f} per step at {first.label}, {fewer:.0f} at the best"
        text += f"; below it, there are more collectives ({ends})"
    return text


def _doubt(ran: Sequence[Point], fastest: Point, swept: Sequence[str]) -> list[str]:
    """Return a warning where steps differ by more than all communication takes, which buckets cannot explain."""
    slowest = max(ran, key=lambda point: point.step_p50_s or 0.0)
    if list(swept) != [BUCKET_CAP] or slowest.comm_s is None or fastest.comm_s is None:
        return []
    apart, most = (slowest.step_p50_s or 0.0) - (fastest.step_p50_s or 0.0), max(slowest.comm_s, fastest.comm_s)
    if apart <= _EXPLAINED * most:
        return []
    doubt = (
        f"Do not trust this: {slowest.label} is slower by {_time(apart)} per step, but all its communication takes "
        f"{_time(most)}; something else, such as other load, slowed this run down. Repeat it on a quiet machine, or "
        "with --repeat 3."
    )
    return [doubt]


def _time(seconds: float) -> str:
    return duration(1e9 * seconds)


def _rate(seconds_per_byte: float) -> str:
    return f"{1e-9 / seconds_per_byte:.3g} GB/s"


def _between(ends: Sequence[float] | None, format_value: Callable[[float], str]) -> str:
    """Return a confidence interval in brackets; empty where it is unknown."""
    return f" [95 %: {' to '.join(map(format_value, ends))}]" if ends else ""


def _choice(one: BucketCapChoice, ran: Sequence[Point], fitted: FittedLine, several: bool) -> str:
    """Return the cap that the line chooses, and what it exposes by the line and as measured."""
    line, options, beta_range = fitted.line, one.options, fitted.beta_range_s_per_byte
    rate = f"{_rate(line.beta_s_per_byte)}{_between(beta_range and beta_range[::-1], _rate)}"
    latency = f"alpha {_time(line.alpha_s)}{_between(fitted.alpha_range_s, _time)}"
    where = " with " + ", ".join(label(name, value) for name, value in options.items()) if several and options else ""
    text = (
        f"By alpha + beta·n ({latency}, {rate}; from {fitted.source}), {one.tried_mb:g} MiB is the best of the tried "
        f"caps{where}: {_time(one.tried_exposed_s)} exposed"
    )
    same = [point for point in ran if {**options, BUCKET_CAP: point.options.get(BUCKET_CAP)} == point.options]
    tried = next((point for point in same if point.value(BUCKET_CAP) == one.tried_mb), None)
    if tried is not None and tried.exposed_s is not None:
        text += f", measured {_time(tried.exposed_s)}"
    if one.best_exposed_s < _BETTER * one.tried_exposed_s:
        best = f"{plural(one.best_buckets, 'bucket')}, {_time(one.best_exposed_s)}"
        text += f"; the best of all caps is {one.best_mb:.3g} MiB ({best})"
    else:
        text += "; no other cap is better"
    closed = one.closed_form_mb
    return text + (f". The closed form sqrt(S·alpha/beta) gives {closed:.2g} MiB." if closed else ".")


def onset_sentences(onset: Onset | None) -> list[str]:
    """Return what the points say of the trade of communication for quality."""
    if onset is None:
        return []
    sentences = []
    if onset.steps:
        factors = [step.factor for step in onset.steps]
        where = "no value is reached from which that is less than a tenth"
        if onset.diminishing is not None:
            where = f"from {onset.diminishing} on, that is less than a tenth"
        ends = " to ".join(dict.fromkeys(f"{factor:.2f}" for factor in (min(factors), max(factors))))
        sentences.append(f"Doubling the value leaves s at {ends} of what it was (0.50 would halve it); {where}.")
    if onset.harmful is not None:
        costs = f"From {onset.harmful} on, less communication costs validation loss: more than 1 % above the least."
    else:
        costs = f"Less communication costs no validation loss: at {onset.order[-1]} it is within 1 % of the least."
    return [*sentences, costs]
