"""Timed all-reduce algorithms as tables: what each sends, and measured times next to predicted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dptrace.core.units import duration, plural, sanitize
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.benchmarks.links_table import size

__all__ = ["LIBRARY", "algorithm_tables", "crossover_sentences"]

LIBRARY = "library"
"""Column of the backend's own all-reduce."""
_ROWS = 8
"""Most sizes in the table; the file and the chart have all."""


def algorithm_tables(content: Mapping[str, Any]) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables of ``--algorithms`` with their titles; none without it."""
    found = content.get("algorithms")
    if found and found["all_reduce"]:
        yield "All-reduce by algorithm, written with send and receive", _volumes(found)
        yield "Measured time, and how much longer (+) or shorter it is than predicted", _times(content)


def _volumes(found: Mapping[str, Any]) -> TextTable:
    rows = [
        (
            sanitize(name),
            f"{one['hops']:g}",
            f"{one['sent_share']:.3g} n",
            f"{one['total_share']:.3g} n",
            f"{one['adds']:.3g} n",
            "–" if one["deviation"] is None else f"{100 * one['deviation']:.0f} %",
            sanitize(one["formula"]),
        )
        for name, one in found["all_reduce"].items()
    ]
    # The formula is last, where a narrow terminal wraps it.
    columns = ("algorithm", "messages", "busiest sends", "all send", "adds", "median error", "predicted time")
    return TextTable(columns, tuple(rows), 1, " ".join([_basis(found), *crossover_sentences(found)]))


def _basis(found: Mapping[str, Any]) -> str:
    """Return what the predictions are made of."""
    gamma = found["gamma_s_per_byte"]
    added = "" if gamma is None else f", and gamma = {1e12 * gamma:.3g} ps/byte of an addition"
    if found["alpha_s"] is None or found["beta_s_per_byte"] is None:
        return "Nothing is predicted: no line could be fitted to point-to-point messages."
    return (
        f"Predicted with alpha = {duration(1e9 * found['alpha_s'])} and beta = "
        f"{1e12 * found['beta_s_per_byte']:.3g} ps/byte of one point-to-point message{added}. Hierarchical: "
        f"{plural(found['ranks_per_node'], 'rank')} to a node."
    )


def crossover_sentences(found: Mapping[str, Any]) -> list[str]:
    """Return where one algorithm is predicted to overtake another, if any does."""
    pairs = [f"{one['above']} overtakes {one['below']} at {size(one['bytes'])}" for one in found["crossovers"]]
    return [sanitize(f"By prediction, {'; '.join(pairs)}.")] if pairs else []


def _times(content: Mapping[str, Any]) -> TextTable:
    found = content["algorithms"]["all_reduce"]
    library = {row["bytes"]: row for row in content["collectives"].get("all_reduce", {}).get("measured", ())}
    by_size = {name: {row["bytes"]: row for row in one["measured"]} for name, one in found.items()}
    sizes = sorted({at for rows in by_size.values() for at in rows})
    step = -(-len(sizes) // _ROWS)
    shown = sizes[::-1][::step][::-1]
    rows = []
    for at in shown:
        timed = {name: of[at] for name, of in by_size.items() if at in of}
        best = min(timed, key=lambda name: float(timed[name]["median_s"]))
        own = duration(1e9 * library[at]["median_s"]) if at in library else "–"
        cells = [_cell(timed[name], name == best) if name in timed else "–" for name in found]
        rows.append((size(at), own, *cells))
    note = "* is the fastest of the algorithms; the library is the backend's own all-reduce."
    return TextTable(("size", LIBRARY, *map(sanitize, found)), tuple(rows), 1, note)


def _cell(row: Mapping[str, Any], best: bool) -> str:
    predicted, star = row["predicted_s"], " *" if best else ""
    off = f" {100 * (row['median_s'] / predicted - 1):+.0f} %" if predicted else ""
    return f"{duration(1e9 * row['median_s'])}{off}{star}"
