"""The headline of a benchmark: whether a mode of training pays off, where the figures allow a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dptrace.bench.scaling import models_by_size, superlinear_row
from dptrace.bench.table import Row

__all__ = ["best_of", "gpus_label", "mode_name", "one_epoch", "row_label", "significantly_faster", "verdict"]

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
