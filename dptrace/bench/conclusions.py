"""What a benchmark's figures say: of each chart, the sentences that read it from these rows, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dptrace.bench.scaling import models_by_size, savings, shares, superlinear_row, usable
from dptrace.bench.table import Row
from dptrace.bench.verdict import best_of, gpus_label, mode_name, row_label, significantly_faster, verdict

__all__ = ["CHARTS", "ChartText", "conclusions", "mode_name", "warnings_about"]

CHARTS = {
    "epoch_time": "Epoch time by model and mode",
    "speedup": "Speedup over one GPU, against the ideal",
    "communication": "Naive runs: computing and communicating",
    "saving": "What the others save over naive",
    "loss": "Loss over steps",
    "throughput": "Throughput",
}
"""Names of the charts, in their order, and their titles."""

_SAME = 1e-3
"""Losses that differ by a smaller share of themselves come from the same training: sums of float32 in another order."""
_NOT_THERE = "Nothing to chart: "
_SHARED = (
    "The processes share this machine's cores, of which one process alone has all: what several could save by sharing "
    "an epoch out can't be told here."
)
_NO_BASELINE = f"{_NOT_THERE}no model was run on one GPU (mode single), which speedups are counted from."


@dataclass(frozen=True, slots=True)
class ChartText:
    """One chart: what it says, or why it is not there."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    missing: str = ""


def _ms(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def conclusions(
    rows: Sequence[Row], here: str = "On this machine", local_loss: bool = False, on_cpu: bool = False
) -> list[ChartText]:
    """Read the six charts.

    Args:
        here: where it was measured, to begin a sentence with.
        local_loss: whether the fifth chart is of rank 0's own losses.
        on_cpu: whether processes on CPU were measured, which share its cores.
    """
    good = usable(rows)
    made: list[tuple[str, ...] | str] = [
        verdict(good, here) if good else f"{_NOT_THERE}no run gave the time of an epoch.",
        _speedup(good),
        _communication(good),
        _saving(good),
        _loss(good, local_loss),
        _throughput(good, on_cpu),
    ]
    charts = []
    for (name, title), content in zip(CHARTS.items(), made, strict=True):
        if on_cpu:
            title, content = (
                _of_cpu(title),
                _of_cpu(content) if isinstance(content, str) else tuple(map(_of_cpu, content)),
            )
        chart = ChartText(name, title)
        charts.append(
            replace(chart, missing=content) if isinstance(content, str) else replace(chart, sentences=content)
        )
    return charts


def _of_cpu(text: str) -> str:
    """Call processes what the sentences call GPUs."""
    return re.sub(r"\bGPU\b", "process", re.sub(r"\bGPUs\b", "processes", text))


def warnings_about(rows: Sequence[Row], on_cpu: bool = False) -> list[str]:
    """Say what in the figures cannot be as it looks."""
    row = superlinear_row(rows)
    if row is None:
        return []
    which = f"{row.speedup:.2f}× with {row.gpus} GPUs ({row.model}, {mode_name(row.mode)})"
    slowed = "the run on one GPU was slowed down by something else, such as other load"
    sentence = f"{which} is more than they can bring: {slowed}. --repeat 3 on a quiet machine tells more."
    return [_of_cpu(sentence) if on_cpu else sentence]


def _speedup(good: Sequence[Row]) -> tuple[str, ...] | str:
    compared = [row for row in good if row.speedup is not None and row.gpus > 1]
    if not compared:
        alone = any(row.gpus == 1 for row in good)
        return f"{_NOT_THERE}no model ran on more than one GPU." if alone else _NO_BASELINE
    ceilings = {(row.model, row.gpus): row for row in good if row.ceiling is not None}
    sentences = []
    for model in reversed(models_by_size(compared)):
        best = best_of([row for row in compared if row.model == model])
        if best is not None:
            sentences.append(_reached(best, significantly_faster(best, good), ceilings.get((model, best.gpus))))
    return tuple(sentences)


def _reached(best: Row, faster: bool | None, naive: Row | None) -> str:
    """Say how far the best run of a model comes, of the ideal and of Amdahl's ceiling."""
    speedup = best.speedup or 0
    sentence = f"{row_label(best)}: {speedup:.2f}×"
    if faster is None and speedup <= 1:
        return f"{row_label(best)}: {speedup:.2f}×, the most of all its runs."
    if speedup <= 1:
        other = f"{mode_name(best.mode)} {gpus_label(best)}, {speedup:.2f}×"
        return f"{best.model}: one GPU is the fastest; the best of the others is {other}."
    sentence += f", {100 * speedup / best.gpus:.0f} % of the ideal {best.gpus}×"
    if naive is None or naive.ceiling is None or speedup > best.gpus:
        return sentence + "."
    share = 100 * speedup / naive.ceiling
    beyond = "; overlap goes beyond a ceiling for which communication is a phase of its own" if share > 100 else ""
    ceiling = f"Amdahl's ceiling {naive.ceiling:.2f}× (f = {naive.parallel_fraction:.2f})"
    return f"{sentence} and {share:.0f} % of {ceiling}{beyond}."


def _communication(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NOT_THERE}there is no naive run, the one whose communication is a phase of its own."
    found = shares(good)
    if not found:
        return f"{_NOT_THERE}the naive runs' communication was not measured (--no-split, or a CSV without comm_s)."
    most, least = max(found, key=lambda one: one.fraction), min(found, key=lambda one: one.fraction)
    sentences = [
        f"s = {100 * most.fraction:.0f} % of an epoch of {most.row.model} {gpus_label(most.row)} is communication"
    ]
    if least is not most:
        sentences[0] += f"; of {least.row.model} {gpus_label(least.row)} it is {100 * least.fraction:.0f} %"
    sentences[0] += "."
    extremes = [most] if least is most else [most, least]
    allowed = " and ".join(f"{100 * one.efficiency:.0f} % ({one.row.model} {gpus_label(one.row)})" for one in extremes)
    reached = [f"{100 * one.row.efficiency:.0f} %" for one in extremes if one.row.efficiency is not None]
    sentences.append(f"Gustafson's efficiency 1 − s·(N − 1)/N allows {allowed}")
    sentences[1] += (
        f"; {' and '.join(reached)} of the ideal {'is' if len(reached) == 1 else 'are'} reached." if reached else "."
    )
    grown = [
        (before, after)
        for before, after in pairwise(sorted(found, key=lambda one: (one.row.model, one.row.gpus)))
        if before.row.model == after.row.model and before.comm_s
    ]
    if grown:
        before, after = max(grown, key=lambda pair: pair[1].comm_s / pair[0].comm_s)
        change = 100 * (after.comm_s / before.comm_s - 1)
        sentences.append(
            f"From {before.row.gpus} to {after.row.gpus} GPUs the communication of {after.row.model} goes from "
            f"{_ms(before.comm_s)} to {_ms(after.comm_s)} ({_signed(change)})."
        )
    return tuple(sentences)


def _signed(percent: float) -> str:
    rounded = round(percent)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded)} %"


def _saving(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NOT_THERE}there is no naive run to compare with."
    found = savings(good)
    if not found:
        return f"{_NOT_THERE}beside naive, no other mode ran on as many GPUs."
    sentences = []
    for mode in dict.fromkeys(one.row.mode for one in found):
        own = [one for one in found if one.row.mode == mode]
        most, least = max(own, key=lambda one: one.percent), min(own, key=lambda one: one.percent)
        name = mode_name(mode)[0].upper() + mode_name(mode)[1:]
        row_label = f"({most.row.model} {gpus_label(most.row)})"
        sentences.append(
            f"{name} saves {most.percent:.0f} % at most {row_label}"
            if round(most.percent) > 0
            else f"{name} saves nothing anywhere: {_signed(most.percent)} at best {row_label}"
        )
        if least is not most and round(least.percent) < 0:
            sentences[-1] += f" and loses {-least.percent:.0f} % at worst ({least.row.model} {gpus_label(least.row)})"
        elif least is not most:
            sentences[-1] += f", {least.percent:.0f} % at least ({least.row.model} {gpus_label(least.row)})"
        sentences[-1] += "."
    return tuple(sentences)


def _loss(good: Sequence[Row], local: bool) -> tuple[str, ...] | str:
    def curves(row: Row) -> tuple[float | None, ...]:
        return row.local_losses if local else row.losses

    with_losses = [row for row in good if curves(row)]
    if not with_losses:
        return f"{_NOT_THERE}these figures hold no losses; a benchmark that dptrace runs does, a CSV does not."
    sentences = []
    for model in models_by_size(with_losses):
        own = [row for row in with_losses if row.model == model]
        if len(own) > 1:
            sentences.append(_gap(model, [curves(row) for row in own], local))
    if local:
        sentences.append(
            "Rank 0's own losses are of its shard of each batch alone, another one for each number of GPUs. "
            "Averaged over the ranks (without --local-loss) they are the batch's."
        )
    return tuple(sentences) or ("One run alone: there is no other curve to compare it with.",)


def _gap(model: str, curves: Sequence[Sequence[float | None]], local: bool) -> str:
    """Say how far apart the curves of a model are, where all have a loss."""
    steps = [[value for value in step if value is not None] for step in zip(*curves, strict=False)]
    gaps = [(max(step) - min(step), number) for number, step in enumerate(steps) if len(step) > 1]
    if not gaps:
        return f"{model}: no step has a loss in two runs."
    gap, at = max(gaps)
    size = max(abs(value) for value in steps[at]) or 1.0
    if local:
        return f"{model}: up to {gap:.3g} between the curves of {len(curves)} runs."
    if gap / size < _SAME:
        apart = f"{gap:.1g} apart at most" if gap else "not apart by a bit"
        return f"{model}: all {len(curves)} curves fall on one another ({apart}): all modes compute the same."
    return f"{model}: the curves part, by {gap:.3g} at step {at}: these runs do not compute the same."


def _throughput(good: Sequence[Row], on_cpu: bool) -> tuple[str, ...] | str:
    with_rates = [row for row in good if row.samples_per_s]
    if not with_rates:
        return f"{_NOT_THERE}no run told its samples per second."
    sentences = []
    for model in reversed(models_by_size(with_rates)):
        own = [row for row in with_rates if row.model == model]
        best = max(own, key=lambda row: row.samples_per_s or 0)
        alone = next((row for row in own if row.gpus == 1), None)
        rate = f"{best.samples_per_s:,.0f} samples/s"
        if alone is None or alone is best:
            sentences.append(f"{row_label(best)}: {rate}, the most of all its runs.")
        else:
            sentences.append(f"{row_label(best)}: {rate}, where one GPU does {alone.samples_per_s:,.0f}.")
    return (*sentences, *([_SHARED] if on_cpu and len(good) > 1 else _balance(good)))


def _balance(good: Sequence[Row]) -> list[str]:
    """Weigh what sharing out saves against what communicating adds, for the smallest and the largest model."""
    alone = {row.model: row.epoch_s for row in good if row.gpus == 1}
    weighed = [one for one in shares(good) if alone.get(one.row.model)]
    if not weighed:
        return []
    models = models_by_size([one.row for one in weighed])
    sentences = []
    for model in dict.fromkeys([models[0], models[-1]]):
        one = max((one for one in weighed if one.row.model == model), key=lambda one: one.row.gpus)
        saved = (alone[model] or 0) * (1 - 1 / one.row.gpus)
        verdict = (
            "more than it saves"
            if one.comm_s >= saved
            else f"{saved / one.comm_s:.1f} times less"
            if one.comm_s
            else "nothing"
        )
        sentences.append(
            f"{model}: {one.row.gpus} GPUs can save {_ms(saved)} of one GPU's epoch by sharing it out; "
            f"communicating adds {_ms(one.comm_s)}, {verdict}."
        )
    return sentences
