"""What a benchmark's figures say: of each chart, the sentences that read it from these rows, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dptrace.bench.scaling import beyond_ideal, by_size, savings, shares, usable
from dptrace.bench.table import Row
from dptrace.bench.verdict import best_of, mode_name, of, on, surely_faster, verdict

__all__ = ["CHARTS", "Chart", "doubts", "mode_name", "read"]

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
class Chart:
    """One chart: what it says, or why it is not there."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    missing: str = ""


def _ms(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def read(
    rows: Sequence[Row], here: str = "On this machine", local_loss: bool = False, on_cpu: bool = False
) -> list[Chart]:
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
    for (name, title), said in zip(CHARTS.items(), made, strict=True):
        if on_cpu:
            title, said = _of_cpu(title), _of_cpu(said) if isinstance(said, str) else tuple(map(_of_cpu, said))
        chart = Chart(name, title)
        charts.append(replace(chart, missing=said) if isinstance(said, str) else replace(chart, sentences=said))
    return charts


def _of_cpu(text: str) -> str:
    """Call processes what the sentences call GPUs."""
    return re.sub(r"\bGPU\b", "process", re.sub(r"\bGPUs\b", "processes", text))


def doubts(rows: Sequence[Row], on_cpu: bool = False) -> list[str]:
    """Say what in the figures cannot be as it looks."""
    row = beyond_ideal(rows)
    if row is None:
        return []
    which = f"{row.speedup:.2f}× with {row.gpus} GPUs ({row.model}, {mode_name(row.mode)})"
    slowed = "the run on one GPU was slowed down by something else, such as other load"
    said = f"{which} is more than they can bring: {slowed}. --repeat 3 on a quiet machine tells more."
    return [_of_cpu(said) if on_cpu else said]


def _speedup(good: Sequence[Row]) -> tuple[str, ...] | str:
    compared = [row for row in good if row.speedup is not None and row.gpus > 1]
    if not compared:
        alone = any(row.gpus == 1 for row in good)
        return f"{_NOT_THERE}no model ran on more than one GPU." if alone else _NO_BASELINE
    ceilings = {(row.model, row.gpus): row for row in good if row.ceiling is not None}
    said = []
    for model in reversed(by_size(compared)):
        best = best_of([row for row in compared if row.model == model])
        if best is not None:
            said.append(_reached(best, surely_faster(best, good), ceilings.get((model, best.gpus))))
    return tuple(said)


def _reached(best: Row, faster: bool | None, naive: Row | None) -> str:
    """Say how far the best run of a model comes, of the ideal and of Amdahl's ceiling."""
    speedup = best.speedup or 0
    said = f"{of(best)}: {speedup:.2f}×"
    if faster is None and speedup <= 1:
        return f"{of(best)}: {speedup:.2f}×, the most of all its runs."
    if speedup <= 1:
        other = f"{mode_name(best.mode)} {on(best)}, {speedup:.2f}×"
        return f"{best.model}: one GPU is the fastest; the best of the others is {other}."
    said += f", {100 * speedup / best.gpus:.0f} % of the ideal {best.gpus}×"
    if naive is None or naive.ceiling is None or speedup > best.gpus:
        return said + "."
    share = 100 * speedup / naive.ceiling
    beyond = "; overlap goes beyond a ceiling for which communication is a phase of its own" if share > 100 else ""
    ceiling = f"Amdahl's ceiling {naive.ceiling:.2f}× (f = {naive.parallel_fraction:.2f})"
    return f"{said} and {share:.0f} % of {ceiling}{beyond}."


def _communication(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NOT_THERE}there is no naive run, the one whose communication is a phase of its own."
    found = shares(good)
    if not found:
        return f"{_NOT_THERE}the naive runs' communication was not measured (--no-split, or a CSV without comm_s)."
    most, least = max(found, key=lambda one: one.fraction), min(found, key=lambda one: one.fraction)
    said = [f"s = {100 * most.fraction:.0f} % of an epoch of {most.row.model} {on(most.row)} is communication"]
    if least is not most:
        said[0] += f"; of {least.row.model} {on(least.row)} it is {100 * least.fraction:.0f} %"
    said[0] += "."
    extremes = [most] if least is most else [most, least]
    allowed = " and ".join(f"{100 * one.efficiency:.0f} % ({one.row.model} {on(one.row)})" for one in extremes)
    reached = [f"{100 * one.row.efficiency:.0f} %" for one in extremes if one.row.efficiency is not None]
    said.append(f"Gustafson's efficiency 1 − s·(N − 1)/N allows {allowed}")
    said[1] += (
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
        said.append(
            f"From {before.row.gpus} to {after.row.gpus} GPUs the communication of {after.row.model} goes from "
            f"{_ms(before.comm_s)} to {_ms(after.comm_s)} ({_signed(change)})."
        )
    return tuple(said)


def _signed(percent: float) -> str:
    rounded = round(percent)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded)} %"


def _saving(good: Sequence[Row]) -> tuple[str, ...] | str:
    if not any(row.mode == "naive" and row.gpus > 1 for row in good):
        return f"{_NOT_THERE}there is no naive run to compare with."
    found = savings(good)
    if not found:
        return f"{_NOT_THERE}beside naive, no other mode ran on as many GPUs."
    said = []
    for mode in dict.fromkeys(one.row.mode for one in found):
        own = [one for one in found if one.row.mode == mode]
        most, least = max(own, key=lambda one: one.percent), min(own, key=lambda one: one.percent)
        name = mode_name(mode)[0].upper() + mode_name(mode)[1:]
        of = f"({most.row.model} {on(most.row)})"
        said.append(
            f"{name} saves {most.percent:.0f} % at most {of}"
            if round(most.percent) > 0
            else f"{name} saves nothing anywhere: {_signed(most.percent)} at best {of}"
        )
        if least is not most and round(least.percent) < 0:
            said[-1] += f" and loses {-least.percent:.0f} % at worst ({least.row.model} {on(least.row)})"
        elif least is not most:
            said[-1] += f", {least.percent:.0f} % at least ({least.row.model} {on(least.row)})"
        said[-1] += "."
    return tuple(said)


def _loss(good: Sequence[Row], local: bool) -> tuple[str, ...] | str:
    def curves(row: Row) -> tuple[float | None, ...]:
        return row.local_losses if local else row.losses

    told = [row for row in good if curves(row)]
    if not told:
        return f"{_NOT_THERE}these figures hold no losses; a benchmark that dptrace runs does, a CSV does not."
    said = []
    for model in by_size(told):
        own = [row for row in told if row.model == model]
        if len(own) > 1:
            said.append(_gap(model, [curves(row) for row in own], local))
    if local:
        said.append(
            "Rank 0's own losses are of its shard of each batch alone, another one for each number of GPUs. "
            "Averaged over the ranks (without --local-loss) they are the batch's."
        )
    return tuple(said) or ("One run alone: there is no other curve to compare it with.",)


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
    told = [row for row in good if row.samples_per_s]
    if not told:
        return f"{_NOT_THERE}no run told its samples per second."
    said = []
    for model in reversed(by_size(told)):
        own = [row for row in told if row.model == model]
        best = max(own, key=lambda row: row.samples_per_s or 0)
        alone = next((row for row in own if row.gpus == 1), None)
        rate = f"{best.samples_per_s:,.0f} samples/s"
        if alone is None or alone is best:
            said.append(f"{of(best)}: {rate}, the most of all its runs.")
        else:
            said.append(f"{of(best)}: {rate}, where one GPU does {alone.samples_per_s:,.0f}.")
    return (*said, *([_SHARED] if on_cpu and len(good) > 1 else _balance(good)))


def _balance(good: Sequence[Row]) -> list[str]:
    """Weigh what sharing out saves against what communicating adds, for the smallest and the largest model."""
    alone = {row.model: row.epoch_s for row in good if row.gpus == 1}
    weighed = [one for one in shares(good) if alone.get(one.row.model)]
    if not weighed:
        return []
    models = by_size([one.row for one in weighed])
    said = []
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
        said.append(
            f"{model}: {one.row.gpus} GPUs can save {_ms(saved)} of one GPU's epoch by sharing it out; "
            f"communicating adds {_ms(one.comm_s)}, {verdict}."
        )
    return said
