"""The text of a benchmark's six charts: conclusions from its rows, or why a chart is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dptrace.bench.table import Row, models_by_size, savings, shares, superlinear_row, usable
from dptrace.core.units import duration, signed

__all__ = ["CHARTS", "ChartText", "conclusions", "significantly_faster", "verdict", "warnings_about"]


# The headline of a benchmark: whether a mode of training pays off, where the figures allow a verdict.


_NAMES = {"ddp": "DDP", "single": "one GPU"}


def mode_name(mode: str) -> str:
    """Return the name of a mode for a sentence."""
    return _NAMES.get(mode, mode)


def gpus_label(row: Row) -> str:
    """Return the number of GPUs as words: ``on 4 GPUs``."""
    return "on one GPU" if row.gpus == 1 else f"on {row.gpus} GPUs"


def row_label(row: Row) -> str:
    """Return the name of a row for a sentence: ``small, DDP on 4 GPUs``."""
    return (
        f"{row.model}, {mode_name(row.mode)} {gpus_label(row)}"
        if row.mode != "single"
        else f"{row.model} {gpus_label(row)}"
    )


def best_of(rows: Sequence[Row]) -> Row | None:
    """Return the row with the highest speedup."""
    return max(rows, key=lambda row: row.speedup or 0, default=None)


def one_epoch(rows: Sequence[Row]) -> bool:
    """Whether a run was timed for one epoch only; rows from a CSV have no count, as their figures are means."""
    return any(row.epochs == 1 for row in rows)


def significantly_faster(row: Row, rows: Sequence[Row]) -> bool | None:
    """Whether a row is faster than one GPU; None where the difference is within the spread of the epochs.

    Args:
        rows: all rows of the benchmark, including the one of one GPU.
    """
    if row.speedup is None or row.epoch_s is None:
        return None
    alone = row.speedup * row.epoch_s
    same = next((one for one in rows if one.model == row.model and one.gpus == 1 and one.options == row.options), None)
    scatter = math.hypot((row.spread or 0.0) * row.epoch_s, ((same.spread if same else None) or 0.0) * alone)
    if one_epoch([row, *([same] if same else [])]) or (scatter and abs(alone - row.epoch_s) <= scatter):
        return None
    return row.speedup > 1


def verdict(good: Sequence[Row], here: str) -> tuple[str, ...]:
    """Return sentences on which modes pay off, or one on why there is no verdict.

    Args:
        good: rows that have an epoch time.
        here: where the rows were measured, as the beginning of a sentence.
    """
    compared = [row for row in good if row.speedup is not None and row.gpus > 1]
    if not compared:
        return (f"{here}, there is nothing to compare: no model ran both on one GPU and on several.",)
    best_row = best_of(compared)
    assert best_row is not None
    no_verdict = _no_verdict(good, best_row, here)
    if no_verdict:
        return (no_verdict,)
    modes = list(dict.fromkeys(row.mode for row in compared))
    best = {
        mode: [row for m in models_by_size(compared) if (row := _deciding_row(compared, mode, m, good)) is not None]
        for mode in modes
    }
    sure = [significantly_faster(row, good) for mode_rows in best.values() for row in mode_rows]
    if not any(sure):
        scatters = (
            f"{here}, no verdict: epochs vary as much as the fastest runs differ from one GPU ({row_label(best_row)}: "
            f"{best_row.speedup:.2f}×). Use more --epochs on a quiet machine."
        )
        nothing = (
            f"{here}, no mode pays off: one GPU is fastest for every model "
            f"({row_label(best_row)}: {best_row.speedup:.2f}×)."
        )
        return (scatters if None in sure else nothing,)
    first = "ddp" if "ddp" in modes else modes[-1]
    return tuple(
        sentence
        for n, mode in enumerate([first, *(m for m in modes if m != first)])
        for sentence in _mode(mode, best[mode], good, here if n == 0 else "")
    )


def _no_verdict(good: Sequence[Row], best_row: Row, here: str) -> str:
    """Return why no run allows a verdict; empty where one does."""
    doubted = superlinear_row(good)
    if doubted is not None:
        return (
            f"{here}, no verdict: {row_label(doubted)}, {doubted.speedup:.2f}×, is more than that many GPUs can reach: "
            "the times of one GPU cannot be trusted."
        )
    if one_epoch(good):
        figures = f"{here}, at best, {row_label(best_row)}: {best_row.speedup:.2f}×."
        return f"No verdict: each run was timed for one epoch; use --epochs 5 to get a spread. ({figures})"
    return ""


def _deciding_row(compared: Sequence[Row], mode: str, model: str, good: Sequence[Row]) -> Row | None:
    """Return a mode's fastest run of a model, where possible among those that are significantly faster than one GPU."""
    own = [row for row in compared if (row.mode, row.model) == (mode, model)]
    return best_of([row for row in own if significantly_faster(row, good)] or own)


def _mode(mode: str, rows: Sequence[Row], good: Sequence[Row], here: str) -> list[str]:
    """Return the verdict on a mode, and the models without a verdict."""
    significant = [row for row in rows if significantly_faster(row, good) is not None]
    unsure = ", ".join(f"{row.model} ({row.speedup:.2f}×)" for row in rows if row not in significant)
    name = mode_name(mode)[0].upper() + mode_name(mode)[1:]
    within = f"{name}: no verdict for {unsure}: the difference from one GPU is within the spread of the epochs."
    return ([_pays(mode, significant, here, not unsure)] if significant else []) + ([within] if unsure else [])


def _pays(mode: str, rows: Sequence[Row], here: str, whole: bool) -> str:
    """Return from which size on a mode is faster than one GPU; *whole*: whether these are all models."""
    subject = mode_name(mode) if here else mode_name(mode)[0].upper() + mode_name(mode)[1:]
    begin = f"{here}, {subject}" if here else subject
    paid = [(row.speedup or 0) > 1 for row in rows]
    if all(paid):
        if len(rows) == 1:
            return f"{begin} pays off for {rows[0].model}: {rows[0].speedup:.2f}× {gpus_label(rows[0])}."
        if not whole:
            return f"{begin} pays off for {', '.join(row.model for row in rows)}."
        size = f", from {_millions(rows[0])} parameters up" if rows[0].parameters is not None else ""
        return f"{begin} pays off for every model measured{size}."
    if not any(paid):
        best = max(rows, key=lambda row: row.speedup or 0)
        models = "any model" if whole else ", ".join(row.model for row in rows)
        return f"{begin} does not pay off for {models}: at best {best.speedup:.2f}× ({best.model} {gpus_label(best)})."
    first = next(i for i in range(len(rows)) if all(paid[i:]) or i == len(rows) - 1)
    if not all(paid[first:]) or rows[first].parameters is None:
        names = ", ".join(row.model for row in rows if (row.speedup or 0) > 1)
        others = ", ".join(row.model for row in rows if (row.speedup or 0) <= 1)
        return f"{begin} pays off for {names}, but not for {others}."
    last, row = rows[first - 1], rows[first]
    return (
        f"{begin} pays off from {_millions(row)} parameters up: {row.model} reaches {row.speedup:.2f}× "
        f"{gpus_label(row)}, {last.model} ({_millions(last)}) only {last.speedup:.2f}×."
    )


def _millions(row: Row) -> str:
    return "" if row.parameters is None else f"{row.parameters / 1e6:.1f} M"


CHARTS = {
    "epoch_time": "Epoch time by model and mode",
    "speedup": "Speedup over one GPU, against the ideal",
    "communication": "Naive runs: compute and communication",
    "saving": "Time saved over naive",
    "loss": "Loss over steps",
    "throughput": "Throughput",
}
"""Titles of the charts by name, in their order."""

_SAME = 1e-3
"""Relative difference of losses below which runs compute the same: float32 sums in another order differ by less."""
_NO_CHART = "Nothing to chart: "
_SHARED = (
    "The processes share this machine's cores, and one process alone uses all of them: these figures cannot show what "
    "several would save by splitting an epoch."
)
_NO_BASELINE = f"{_NO_CHART}no model ran on one GPU (mode single), the baseline of speedups."


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
    contents: list[tuple[str, ...] | str] = [
        verdict(good, here) if good else f"{_NO_CHART}no run has the time of an epoch.",
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
    which = f"{row.speedup:.2f}× with {row.gpus} GPUs ({row.model}, {mode_name(row.mode)})"
    slowed = "something else, such as other load, slowed the run on one GPU down"
    sentence = f"{which} is more than that many can reach: {slowed}. Repeat it with --repeat 3 on a quiet machine."
    return [_of_cpu(sentence) if on_cpu else sentence]


def _speedup(good: Sequence[Row]) -> tuple[str, ...] | str:
    compared = [row for row in good if row.speedup is not None and row.gpus > 1]
    if not compared:
        has_baseline = any(row.gpus == 1 for row in good)
        return f"{_NO_CHART}no model ran on more than one GPU." if has_baseline else _NO_BASELINE
    ceilings = {(row.model, row.gpus): row for row in good if row.ceiling is not None}
    sentences = []
    for model in reversed(models_by_size(compared)):
        best = best_of([row for row in compared if row.model == model])
        if best is not None:
            sentences.append(_reached(best, significantly_faster(best, good), ceilings.get((model, best.gpus))))
    return tuple(sentences)


def _reached(best: Row, faster: bool | None, naive: Row | None) -> str:
    """Compare the best run of a model with the ideal and with Amdahl's ceiling."""
    speedup = best.speedup or 0
    sentence = f"{row_label(best)}: {speedup:.2f}×"
    if faster is None and speedup <= 1:
        return f"{row_label(best)}: {speedup:.2f}×, the highest of its runs."
    if speedup <= 1:
        other = f"{mode_name(best.mode)} {gpus_label(best)}, {speedup:.2f}×"
        return f"{best.model}: one GPU is fastest; the best of the others is {other}."
    sentence += f", {100 * speedup / best.gpus:.0f} % of the ideal {best.gpus}×"
    if naive is None or naive.ceiling is None or speedup > best.gpus:
        return sentence + "."
    share = 100 * speedup / naive.ceiling
    beyond = (
        "; overlap can exceed this ceiling, which assumes that communication is a separate phase" if share > 100 else ""
    )
    ceiling = f"Amdahl's ceiling {naive.ceiling:.2f}× (f = {naive.parallel_fraction:.2f})"
    return f"{sentence} and {share:.0f} % of {ceiling}{beyond}."


def _communication(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NO_CHART}there is no naive run, the mode whose communication is a separate phase."
    communication = shares(good)
    if not communication:
        return f"{_NO_CHART}the naive runs' communication was not measured (--no-record, or a CSV without comm_s)."
    most, least = max(communication, key=lambda one: one.fraction), min(communication, key=lambda one: one.fraction)
    sentences = [
        f"Communication takes s = {100 * most.fraction:.0f} % of an epoch of {most.row.model} {gpus_label(most.row)}"
    ]
    if least is not most:
        sentences[0] += f", and {100 * least.fraction:.0f} % of {least.row.model} {gpus_label(least.row)}"
    sentences[0] += "."
    extremes = [most] if least is most else [most, least]
    allowed = " and ".join(f"{100 * one.efficiency:.0f} % ({one.row.model} {gpus_label(one.row)})" for one in extremes)
    reached = [f"{100 * one.row.efficiency:.0f} %" for one in extremes if one.row.efficiency is not None]
    sentences.append(f"Gustafson's efficiency 1 − s·(N − 1)/N allows {allowed}")
    sentences[1] += f"; the runs reach {' and '.join(reached)} of the ideal." if reached else "."
    grown = [
        (before, after)
        for before, after in pairwise(sorted(communication, key=lambda one: (one.row.model, one.row.gpus)))
        if before.row.model == after.row.model and before.comm_s
    ]
    if grown:
        before, after = max(grown, key=lambda pair: pair[1].comm_s / pair[0].comm_s)
        change = 100 * (after.comm_s / before.comm_s - 1)
        sentences.append(
            f"From {before.row.gpus} to {after.row.gpus} GPUs, the communication of {after.row.model} changes from "
            f"{duration(1e9 * before.comm_s)} to {duration(1e9 * after.comm_s)} ({_signed_percent(change)})."
        )
    return tuple(sentences)


def _signed_percent(percent: float) -> str:
    return signed(percent, f"{abs(percent):.0f} %")


def _saving(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NO_CHART}there is no naive run to compare with."
    found = savings(good)
    if not found:
        return f"{_NO_CHART}no other mode ran on as many GPUs as naive."
    sentences = []
    for mode in dict.fromkeys(one.row.mode for one in found):
        own = [one for one in found if one.row.mode == mode]
        most, least = max(own, key=lambda one: one.percent), min(own, key=lambda one: one.percent)
        name = mode_name(mode)[0].upper() + mode_name(mode)[1:]
        place = f"({most.row.model} {gpus_label(most.row)})"
        sentences.append(
            f"{name} saves at most {most.percent:.0f} % {place}"
            if round(most.percent) > 0
            else f"{name} never saves time: {_signed_percent(most.percent)} at best {place}"
        )
        if least is not most and round(least.percent) < 0:
            sentences[-1] += f" and loses up to {-least.percent:.0f} % ({least.row.model} {gpus_label(least.row)})"
        elif least is not most:
            sentences[-1] += f", and at least {least.percent:.0f} % ({least.row.model} {gpus_label(least.row)})"
        sentences[-1] += "."
    return tuple(sentences)


def _loss(good: Sequence[Row], local: bool) -> tuple[str, ...] | str:
    def curves(row: Row) -> tuple[float | None, ...]:
        return row.local_losses if local else row.losses

    with_losses = [row for row in good if curves(row)]
    if not with_losses:
        return f"{_NO_CHART}these figures have no losses; a CSV has none, a benchmark that dptrace runs does."
    sentences = []
    for model in models_by_size(with_losses):
        own = [row for row in with_losses if row.model == model]
        if len(own) > 1:
            sentences.append(_gap(model, [curves(row) for row in own], local))
    if local:
        sentences.append(
            "Rank 0's own losses cover only its shard of each batch, which differs with the number of GPUs. "
            "Without --local-loss, losses are averaged over the ranks and cover the whole batch."
        )
    return tuple(sentences) or ("Each model has one run only: there is no other curve to compare it with.",)


def _gap(model: str, curves: Sequence[Sequence[float | None]], local: bool) -> str:
    """Return the largest difference between the curves of a model."""
    steps = [[value for value in step if value is not None] for step in zip(*curves, strict=False)]
    gaps = [(max(step) - min(step), number) for number, step in enumerate(steps) if len(step) > 1]
    if not gaps:
        return f"{model}: no step has a loss in two runs."
    gap, at = max(gaps)
    size = max(abs(value) for value in steps[at]) or 1.0
    if local:
        return f"{model}: the curves of {len(curves)} runs differ by up to {gap:.3g}."
    if gap / size < _SAME:
        apart = f"they differ by at most {gap:.1g}" if gap else "they are equal bit for bit"
        return f"{model}: all {len(curves)} curves coincide ({apart}): all modes compute the same."
    return f"{model}: the curves differ by {gap:.3g} at step {at}: these runs do not compute the same."


def _throughput(good: Sequence[Row], on_cpu: bool) -> tuple[str, ...] | str:
    with_rates = [row for row in good if row.samples_per_s]
    if not with_rates:
        return f"{_NO_CHART}no run has its samples per second."
    sentences = []
    for model in reversed(models_by_size(with_rates)):
        own = [row for row in with_rates if row.model == model]
        best = max(own, key=lambda row: row.samples_per_s or 0)
        alone = next((row for row in own if row.gpus == 1), None)
        rate = f"{best.samples_per_s:,.0f} samples/s"
        if alone is None or alone is best:
            sentences.append(f"{row_label(best)}: {rate}, the highest of its runs.")
        else:
            sentences.append(f"{row_label(best)}: {rate}, against {alone.samples_per_s:,.0f} on one GPU.")
    return (*sentences, *([_SHARED] if on_cpu and len(good) > 1 else _balance(good)))


def _balance(good: Sequence[Row]) -> list[str]:
    """Compare what splitting an epoch can save with what communication adds, for the smallest and largest model."""
    alone = {row.model: row.epoch_s for row in good if row.gpus == 1}
    weighed = [one for one in shares(good) if alone.get(one.row.model)]
    if not weighed:
        return []
    models = models_by_size([one.row for one in weighed])
    sentences = []
    for model in dict.fromkeys([models[0], models[-1]]):
        one = max((one for one in weighed if one.row.model == model), key=lambda one: one.row.gpus)
        saved = (alone[model] or 0) * (1 - 1 / one.row.gpus)
        compared = (
            "more than that saves"
            if one.comm_s >= saved
            else f"{saved / one.comm_s:.1f} times less"
            if one.comm_s
            else "nothing"
        )
        sentences.append(
            f"{model}: {one.row.gpus} GPUs can save {duration(1e9 * saved)} of one GPU's epoch by splitting it; "
            f"communication adds {duration(1e9 * one.comm_s)}, {compared}."
        )
    return sentences
