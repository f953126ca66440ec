"""The table of a sweep, for the terminal, as Markdown, and for its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from dptrace.core.units import byte_size, number, plural
from dptrace.viewers.base.format import plain
from dptrace.viewers.base.table import TextTable, escape_markdown, markdown_lines, rich_table

__all__ = ["best_label", "cells", "headline", "latency_cells", "markdown", "print_table"]

_COLUMNS = (
    *("", "step p50 ms", "p95 ms", "samples/s", "TFLOP/s", "MFU %", "s %", "exposed ms", "by the fit ms"),
    *("collectives", "bytes", "val. loss", "accuracy", "ms/sample"),
)
_NAMES = {"bucket-cap-mb": "bucket cap", "compress": "compression"}
_LEFT_OUT = ("TFLOP/s", "MFU %", "by the fit ms", "val. loss", "accuracy", "ms/sample")
"""Columns that are left out where no point has them."""


def headline(content: Mapping[str, Any]) -> str:
    """Return what was swept."""
    gpus = plural(content["gpus"], "rank" if content["device"] == "CPU" else "GPU")
    names = " and ".join(_NAMES.get(name, name.replace("-", " ")) for name in content["swept"])
    return f"Sweep of {names}: {content['model']}, {content['mode']}, {gpus}"


def _rows(content: Mapping[str, Any]) -> Iterator[list[str]]:
    first = best_label(content)
    for point in content["points"]:
        if point["failed"]:
            yield [point["label"], "failed", *["–"] * (len(_COLUMNS) - 2)]
            continue
        mark = f" ◀ {first}" if point["best"] else " ≈" if point["as_good"] else ""
        yield [
            point["label"] + mark,
            _ms(point["step_p50_s"]),
            _ms(point["step_p95_s"]),
            f"{point['samples_per_s']:,.0f}",
            "–" if point.get("tflops") is None else number(point["tflops"]),
            _percent(point.get("mfu")),
            _percent(point["communication_fraction"]),
            _ms(point["exposed_s"]),
            _ms(point["predicted_exposed_s"]),
            "–" if point["collectives"] is None else f"{point['collectives']:.4g}",
            "–" if point["bytes"] is None else byte_size(point["bytes"]),
            "–" if point.get("validation_loss") is None else f"{point['validation_loss']:.3f}",
            _percent(point["accuracy"]),
            _ms(next((one["sample_p50_s"] for one in point.get("inference", ())), None)),
        ]


def best_label(content: Mapping[str, Any]) -> str:
    """Return "best" only where the spread of the steps separates the first from the others."""
    return "fastest" if any(point["as_good"] for point in content["points"]) else "best"


def latency_cells(content: Mapping[str, Any]) -> TextTable:
    """Return the latencies of the trained models: a row for each point and batch size."""
    rows = [
        (
            point["label"],
            str(one["batch_size"]),
            *(f"{1e3 * one[name]:.3g}" for name in ("p50_s", "p95_s", "sample_p50_s", "sample_p95_s")),
            f"{one['samples_per_s']:,.0f}",
        )
        for point in content["points"]
        for one in point.get("inference", ())
    ]
    what = "sample" if content["model"].startswith("gpt") else "image"
    columns = ("", "batch", "ms", "p95 ms", f"ms/{what}", f"p95 ms/{what}", f"{what}s/s")
    return TextTable(columns, tuple(rows), 1, "Forward alone on one rank, after the last epoch: medians.")


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.2f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def cells(content: Mapping[str, Any]) -> TextTable:
    """Return the table, without columns that no point has."""
    rows = list(_rows(content))
    empty = {at for at in map(_COLUMNS.index, _LEFT_OUT) if all(row[at] == "–" for row in rows)}
    kept = [at for at in range(len(_COLUMNS)) if at not in empty]
    note = "Steps: the last 20 of each timed run. s = communication / (computation + communication), of recorded steps."
    if any(point["as_good"] for point in content["points"]):
        note += " ≈: within the spread of the fastest."
    return TextTable(tuple(_COLUMNS[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows), 1, note)


def print_table(content: Mapping[str, Any], console: Console) -> None:
    """Print the table; the best run is bold, those that failed are dim."""
    styles = ["bold" if point["best"] else "dim" if point["failed"] else "" for point in content["points"]]
    console.print(plain(headline(content)), style="bold")
    console.print(rich_table(cells(content), styles))
    latencies = latency_cells(content)
    if latencies.rows:
        console.print(rich_table(latencies))


def markdown(content: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with its conclusions above and its notes below."""
    cells_table = cells(content)
    sentences = (escape_markdown(sentence) + "\n" for sentence in content["reading"])
    lines = [f"# {escape_markdown(headline(content))}", "", *sentences]
    lines += [*markdown_lines(cells_table), "", escape_markdown(cells_table.note)]
    latencies = latency_cells(content)
    if latencies.rows:
        lines += ["", *markdown_lines(latencies), "", escape_markdown(latencies.note)]
    notes = [f"- {escape_markdown(note)}" for note in content["notes"]]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"
