"""The outcome of a sweep: from the results and recordings in its folder to all that is shown and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dptrace.bench.matrix import Cell
from dptrace.bench.schedule import Job, results
from dptrace.bench.store import Store
from dptrace.bench.sweep.bucket_cap import Chosen, Fitted, choose, fit_recorded
from dptrace.bench.sweep.conclusions import as_good, best, cost_s, reading
from dptrace.bench.sweep.points import Point, as_dict, buckets, epochs, label, points, swept
from dptrace.bench.sweep.recorded import Recorded, recorded
from dptrace.errors import DptraceError

__all__ = ["SCHEMA", "Asked", "Outcome", "outcome"]

SCHEMA = 1
"""Version of sweep.json; docs/sweep.md describes it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was swept."""

    cells: Sequence[Cell]
    chosen: Mapping[str, Sequence[str]]
    """Values by option."""
    epochs: int
    repeat: int
    links: Fitted | None = None
    """A line that was measured apart; by default it is fitted to what was recorded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a sweep tells."""

    content: dict[str, Any]
    """Of sweep.json."""
    epochs: list[dict[str, Any]]
    buckets: list[dict[str, Any]]


def outcome(asked: Asked, store: Store, notes: Sequence[str] = ()) -> Outcome:
    """Read the folder of a sweep, as far as it got."""
    found = results(asked.cells, asked.repeat, store)
    read, trouble = _recordings(asked.cells, store)
    made = points(asked.cells, asked.chosen, found, read)
    good = next((one for ones in found.values() for one in ones if "failed" not in one), {})
    made, chosen, fitted = _chosen(asked, made, read, good.get("parameter_bytes", ()))
    if isinstance(fitted, str):
        trouble.append(f"No line alpha + beta·n could be fitted: {fitted}.")
    line = fitted if isinstance(fitted, Fitted) else None
    content = {
        "schema": SCHEMA,
        "kind": "sweep",
        **_about(asked, good),
        "reading": reading(made, swept(asked.chosen), chosen, line),
        "points": _points(made, swept(asked.chosen)),
        "fit": None if line is None else _fit(line),
        "chosen": [asdict(one) for one in chosen],
        "notes": [*notes, *trouble, *(f"{point.label} failed: {point.failed}" for point in made if point.failed)],
    }
    return Outcome(content, epochs(asked.cells, found, read), buckets(asked.cells, read))


def _fit(fitted: Fitted) -> dict[str, Any]:
    ranges = {name: getattr(fitted, name) for name in ("alpha_range_s", "beta_range_s_per_byte")}
    about = {"r2": fitted.r2, "source": fitted.source, "unsure": fitted.unsure or None}
    return {**asdict(fitted.line), **ranges, **about}


def _about(asked: Asked, good: Mapping[str, Any]) -> dict[str, Any]:
    cell = asked.cells[0]
    about = {"model": cell.model, "mode": cell.mode, "gpus": cell.gpus, "epochs": asked.epochs, "repeat": asked.repeat}
    about |= {name: good.get(name) for name in ("parameters", "device", "versions")}
    return about | {"swept": swept(asked.chosen), "values": {name: list(given) for name, given in asked.chosen.items()}}


def _recordings(made: Sequence[Cell], store: Store) -> tuple[dict[Cell, Recorded], list[str]]:
    """Read the recorded runs, and say which could not be."""
    from dptrace.load.open import open_run

    read, trouble = {}, []
    for cell in made:
        result = store.result(Job(cell, -1).name)
        if result is None:
            continue
        if "failed" in result:
            trouble.append(f"{cell}: {result['failed']}")
            continue
        try:
            read[cell] = recorded(open_run([str(store.folder / "traces" / cell.name)]))
        except DptraceError as error:
            trouble.append(f"{cell}: its recording can't be read: {error}")
            continue
        trouble += [f"{cell}: {note}" for note in read[cell].notes]
    return read, trouble


def _chosen(
    asked: Asked, made: list[Point], read: Mapping[Cell, Recorded], parameter_bytes: Sequence[int]
) -> tuple[list[Point], list[Chosen], Fitted | str | None]:
    """Let the line choose where caps were swept among several ranks."""
    if "bucket-cap-mb" not in swept(asked.chosen) or asked.cells[0].gpus < 2 or not read:
        return made, [], None
    fitted = asked.links or fit_recorded(read)
    if isinstance(fitted, str) or fitted.unsure:
        return made, [], fitted
    made, chosen = choose(made, fitted, {cell.options: one for cell, one in read.items()}, parameter_bytes)
    return made, chosen, fitted


def _points(made: Sequence[Point], names: Sequence[str]) -> list[dict[str, Any]]:
    """Give the points, each with its place in the chart and how it compares."""
    per_sample = "batch-size" in names
    fastest, alike = best(made, per_sample), as_good(made, per_sample)
    return [
        as_dict(point)
        | {
            "x": point.options[names[0]],
            "series": ", ".join(label(name, point.options[name]) for name in names[1:]),
            "cost_s": cost_s(point, per_sample),
            "best": point is fastest,
            "as_good": any(point is one for one in alike),
        }
        for point in made
    ]
