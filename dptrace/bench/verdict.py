"""Whether a mode of training pays off, as far as the figures can tell it: the headline of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dptrace.bench.scaling import models_by_size, superlinear_row
from dptrace.bench.table import Row

__all__ = ["best_of", "gpus_label", "mode_name", "one_epoch", "row_label", "significantly_faster", "verdict"]

_NAMES = {"ddp": "DDP", "single": "one GPU"}


def mode_name(mode: str) -> str:
    """Name a mode in a sentence."""
    return _NAMES.get(mode, mode)


def gpus_label(row: Row) -> str:
    """Say on how many GPUs."""
    return "on one GPU" if row.gpus == 1 else f"on {row.gpus} GPUs"


def row_label(row: Row) -> str:
    """Name a row in a sentence."""
    return (
        f"{row.model}, {mode_name(row.mode)} {gpus_label(row)}"
        if row.mode != "single"
        else f"{row.model} {gpus_label(row)}"
    )


def best_of(rows: Sequence[Row]) -> Row | None:
    """Give the row with the most speedup."""
    return max(rows, key=lambda row: row.speedup or 0, default=None)


def one_epoch(rows: Sequence[Row]) -> bool:
    """Say whether a run here was timed for one epoch alone; others' figures are means, of which they tell no count."""
    return any(row.epochs == 1 for row in rows)


def significantly_faster(row: Row, rows: Sequence[Row]) -> bool | None:
    """Say whether a row is faster than one GPU; None where the epochs of both scatter as much as they differ.

    Args:
        rows: all of the benchmark, that of one GPU among them.
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
    """Say what pays off, or why the figures can't tell.

    Args:
        good: rows that have an epoch's time.
        here: where it was measured, to begin a sentence with.
    """
    compared = [row for row in good if row.speedup is not None and row.gpus > 1]
    if not compared:
        return (f"{here} there is nothing to compare: no model ran both on one GPU and on several.",)
    least = best_of(compared)
    assert least is not None
    no_verdict = _no_verdict(good, least, here)
    if no_verdict:
        return (no_verdict,)
    modes = list(dict.fromkeys(row.mode for row in compared))
    best = {
        mode: [row for m in models_by_size(compared) if (row := _deciding_row(compared, mode, m, good)) is not None]
        for mode in modes
    }
    sure = [significantly_faster(row, good) for found in best.values() for row in found]
    if not any(sure):
        scatters = (
            f"{here} no verdict: epochs vary as much as the fastest runs differ from one GPU ({row_label(least)}: "
            f"{least.speedup:.2f}×); more --epochs on a quiet machine tell more."
        )
        nothing = (
            f"{here} nothing pays off: one GPU is fastest for every model ({row_label(least)}: {least.speedup:.2f}×)."
        )
        return (scatters if None in sure else nothing,)
    first = "ddp" if "ddp" in modes else modes[-1]
    return tuple(
        said
        for n, mode in enumerate([first, *(m for m in modes if m != first)])
        for said in _mode(mode, best[mode], good, here if n == 0 else "")
    )


def _no_verdict(good: Sequence[Row], least: Row, here: str) -> str:
    """Say why there can be no verdict on any run; empty where there can."""
    doubted = superlinear_row(good)
    if doubted is not None:
        return (
            f"{here} no verdict: {row_label(doubted)}, {doubted.speedup:.2f}×, is more than so many GPUs can give: "
            "the times of one GPU are not to be trusted."
        )
    if one_epoch(good):
        figures = f"{here}, at best, {row_label(least)}: {least.speedup:.2f}×."
        return f"One epoch each: no verdict; --epochs 5 gives a spread. ({figures})"
    return ""


def _deciding_row(compared: Sequence[Row], mode: str, model: str, good: Sequence[Row]) -> Row | None:
    """Give a mode's best run of a model, of those that are told from one GPU if any of them is faster."""
    own = [row for row in compared if (row.mode, row.model) == (mode, model)]
    return best_of([row for row in own if significantly_faster(row, good)] or own)


def _mode(mode: str, found: Sequence[Row], good: Sequence[Row], here: str) -> list[str]:
    """Say what is told of a mode, and of which models nothing is."""
    significant = [row for row in found if significantly_faster(row, good) is not None]
    unsure = ", ".join(f"{row.model} ({row.speedup:.2f}×)" for row in found if row not in significant)
    name = mode_name(mode)[0].upper() + mode_name(mode)[1:]
    within = f"{name}: no verdict for {unsure}, whose epochs scatter as much as they differ from one GPU's."
    return ([_pays(mode, significant, here, not unsure)] if significant else []) + ([within] if unsure else [])


def _pays(mode: str, rows: Sequence[Row], here: str, whole: bool) -> str:
    """Say from which size on a mode is faster than one GPU; *whole* where these are all models."""
    subject = mode_name(mode) if here else mode_name(mode)[0].upper() + mode_name(mode)[1:]
    begin = f"{here} {subject}" if here else subject
    paid = [(row.speedup or 0) > 1 for row in rows]
    if all(paid):
        if len(rows) == 1:
            return f"{begin} pays off for {rows[0].model}: {rows[0].speedup:.2f}× {gpus_label(rows[0])}."
        if not whole:
            return f"{begin} pays off for {', '.join(row.model for row in rows)}."
        size = f", from {_millions(rows[0])} parameters on" if rows[0].parameters is not None else ""
        return f"{begin} pays off for every model measured{size}."
    if not any(paid):
        best = max(rows, key=lambda row: row.speedup or 0)
        none = "no model" if whole else f"none of {', '.join(row.model for row in rows)}"
        return f"{begin} pays off for {none}: at best {best.speedup:.2f}× ({best.model} {gpus_label(best)})."
    first = next(i for i in range(len(rows)) if all(paid[i:]) or i == len(rows) - 1)
    if not all(paid[first:]) or rows[first].parameters is None:
        names = ", ".join(row.model for row in rows if (row.speedup or 0) > 1)
        others = ", ".join(row.model for row in rows if (row.speedup or 0) <= 1)
        return f"{begin} pays off for {names}, and not for {others}."
    last, row = rows[first - 1], rows[first]
    return (
        f"{begin} pays off from {_millions(row)} parameters on: {row.model} reaches {row.speedup:.2f}× "
        f"{gpus_label(row)}, {last.model} ({_millions(last)}) no more than {last.speedup:.2f}×."
    )


def _millions(row: Row) -> str:
    return "" if row.parameters is None else f"{row.parameters / 1e6:.1f} M"
