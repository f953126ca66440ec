"""The table of a benchmark: a row per configuration, from results on disk or from a CSV file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig
from dptrace.bench.sweep_points import of_epochs
from dptrace.core.files import note_inputs, unreadable
from dptrace.core.numbers import Number
from dptrace.core.units import from_cell
from dptrace.errors import DptraceError
from dptrace.model import scaling

if TYPE_CHECKING:
    import pandas as pd


_FIGURE = Number(-1e30, 1e30)
_NEEDED = ("model", "mode", "gpus", "avg_epoch_s")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; None where a figure was not measured."""

    model: str
    mode: str
    gpus: int
    parameters: int | None = None
    epoch_s: float | None = None
    """Median over all timed epochs of all repetitions."""
    spread: float | None = None
    """Half the distance between the quartiles of the epochs, as a share of the median."""
    epochs: int = 0
    comm_s: float | None = None
    """Communication of an epoch, overlapped or not, from the split of the recorded steps."""
    samples_per_s: float | None = None
    tflops: float | None = None
    """FLOPs of the model on one rank over the time of a step, in TFLOP/s."""
    mfu: float | None = None
    """The same as a share of the GPU's peak."""
    speedup: float | None = None
    efficiency: float | None = None
    overlap_percent: float | None = None
    exposed_share: float | None = None
    """Exposed communication as a share of a step's wall time."""
    parallel_fraction: float | None = None
    """Amdahl's f, from this row's communication and the epoch on one GPU; of naive rows only."""
    ceiling: float | None = None
    """Amdahl's limit of the speedup for f and this number of GPUs."""
    gustafson: float | None = None
    """Gustafson's efficiency for the exposed share."""
    failed: str | None = None
    """Why the run failed."""
    options: dict[str, str] = field(default_factory=dict)
    accuracy: float | None = None
    losses: tuple[float | None, ...] = ()
    """One per timed step, averaged over ranks."""
    local_losses: tuple[float | None, ...] = ()
    """One per timed step, of rank 0."""


COLUMNS = tuple(name for name in Row.__dataclass_fields__ if name not in ("losses", "local_losses", "options"))
"""Columns of CSV files and data frames."""


def rows(
    configs: Sequence[BenchConfig],
    results: Mapping[BenchConfig, Sequence[dict[str, Any]]],
    recordings: Mapping[BenchConfig, RecordedFigures],
) -> list[Row]:
    """Return a row for each configuration that has results.

    Args:
        results: the repetitions of each configuration: the results of ``execute.run_timed``, or the reason under
            ``failed``.
        recordings: the figures of the recorded runs.
    """
    found = [_row(config, results[config], recordings.get(config)) for config in configs if results.get(config)]
    return with_speedup(found)


def _row(config: BenchConfig, repetitions: Sequence[dict[str, Any]], recorded: RecordedFigures | None) -> Row:
    good = [one for one in repetitions if "failed" not in one]
    named = Row(config.model, config.mode, config.gpus, options=dict(config.options))
    if not good:
        return replace(named, failed=str(repetitions[0]["failed"]))
    first = good[0]
    if config.mode == "script" and isinstance(first.get("mode"), str):
        named = replace(named, mode=first["mode"])
    timing = _timing([seconds for one in good for seconds in one["epoch_s"]])
    samples = first.get("samples_per_s")
    return replace(
        named,
        parameters=first.get("parameters"),
        **timing,
        # The results hold the throughput of their mean epoch; this is that of the median epoch.
        samples_per_s=samples * float(np.mean(first["epoch_s"])) / timing["epoch_s"] if samples else None,
        **_of_recorded(recorded, first, timing["epoch_s"]),
        accuracy=of_epochs(first, "accuracy")[-1],
        losses=tuple(first.get("losses", ())),
        local_losses=tuple(first.get("local_losses", ())),
    )


def _of_recorded(recorded: RecordedFigures | None, result: Mapping[str, Any], epoch_s: float) -> dict[str, Any]:
    """Return what follows from the recorded steps for an epoch of as many as the timed run had."""
    steps = result.get("steps_per_epoch")
    if recorded is None:
        return {"comm_s": result.get("comm_s")}

    def of_epoch(of_step: float | None) -> float | None:
        return of_step * steps / epoch_s if of_step is not None and steps else None

    comm_s = recorded.comm_s
    return {
        "comm_s": comm_s * steps if steps else result.get("comm_s"),
        "tflops": of_epoch(recorded.tflop),
        "mfu": of_epoch(recorded.mfu_s),
        "overlap_percent": 100 * recorded.overlapped_s / comm_s if comm_s else None,
        "exposed_share": recorded.exposed_s / recorded.wall_s if recorded.wall_s else None,
    }


def _timing(epochs: Sequence[float]) -> dict[str, Any]:
    """Return the median of the epochs, their spread and their number."""
    low, middle, high = np.percentile(epochs, [25, 50, 75]).tolist()
    return {"epoch_s": middle, "spread": (high - low) / 2 / middle, "epochs": len(epochs)}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished benchmark."""

    rows: list[Row]
    title: str
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    here: str = "On this machine"
    plan: dict[str, Any] = field(default_factory=dict)
    """What bench.json holds besides the figures: the plan, or the file that they come from."""

    @property
    def on_cpu(self) -> bool:
        """Whether all runs are of processes that share the cores of a CPU."""
        return set(self.machine.get("devices", [])) == {"CPU"}


def machine_info(results: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the devices and the versions that the runs report; every kind of device is listed."""
    runs = [run for runs in results.values() for run in runs if "failed" not in run]
    devices = list(dict.fromkeys(str(run["device"]) for run in runs if run.get("device")))
    versions: dict[str, Any] = next((run["versions"] for run in runs if isinstance(run.get("versions"), dict)), {})
    return {"devices": devices, "versions": versions}


def with_speedup(bench_rows: Iterable[Row]) -> list[Row]:
    """Add the figures that compare a row with one GPU, for the same model and options."""
    bench_rows = list(bench_rows)
    alone = {
        (row.model, tuple(row.options.items())): row.epoch_s
        for row in bench_rows
        if row.gpus == 1 and row.epoch_s is not None
    }
    return [_compared(row, alone.get((row.model, tuple(row.options.items())))) for row in bench_rows]


def _compared(row: Row, single: float | None) -> Row:
    if row.epoch_s is None:
        return row
    more: dict[str, Any] = {}
    if single is not None:
        more["speedup"] = scaling.speedup(single, row.epoch_s)
        more["efficiency"] = scaling.efficiency(single, row.epoch_s, row.gpus)
        # Communication is the time that more GPUs add only where it is a separate phase.
        if row.comm_s and row.mode == "naive":
            more["parallel_fraction"] = scaling.parallel_fraction(single, row.comm_s)
            more["ceiling"] = scaling.amdahl_ceiling(more["parallel_fraction"], row.gpus)
    if row.exposed_share is not None and row.gpus > 1:
        more["gustafson"] = scaling.gustafson_efficiency(row.exposed_share, row.gpus)
    return replace(row, **more)


def frame(bench_rows: Sequence[Row]) -> pd.DataFrame:
    """Return the table as a data frame, with a column for each option."""
    import pandas as pd

    names = list(dict.fromkeys(name for row in bench_rows for name in row.options))
    lines = [
        {column: getattr(row, column) for column in COLUMNS} | {name: row.options.get(name) for name in names}
        for row in bench_rows
    ]
    return pd.DataFrame(lines, columns=[*COLUMNS, *names])


def rows_from_csv(path: Path) -> list[Row]:
    """Read figures from a CSV file.

    It needs the columns model, mode, gpus, and avg_epoch_s or epoch_s (seconds). It can have parameters or
    params_millions, comm_s (seconds of an epoch), samples_per_s and further columns of :data:`COLUMNS`.

    Raises:
        DptraceError: the file can't be read, or a column or figure is missing or invalid.
        UsageError: it is also the command's output.
    """
    import pandas as pd

    note_inputs([path])
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise DptraceError(f"{path}: no such file.") from None
    except OSError as error:
        raise DptraceError(unreadable(path, error)) from None
    except (ValueError, pd.errors.ParserError) as error:
        raise DptraceError(f"{path}: can't be read as CSV: {error}.") from None
    if "avg_epoch_s" not in table.columns:
        table = table.rename(columns={"epoch_s": "avg_epoch_s"})
    missing = [column for column in _NEEDED if column not in table.columns]
    if missing:
        raise DptraceError(f"{path}: missing column {', '.join(missing)}. Its columns: {', '.join(table.columns)}.")
    try:
        for name, column in table.select_dtypes(exclude="number").items():
            # A mark keeps spreadsheets from computing a text.
            table[name] = column.map(lambda cell: from_cell(cell) if isinstance(cell, str) else cell)
        bench_rows = _merge_repetitions([_row_from_csv(line) for line in table.to_dict("records")])
    except (TypeError, ValueError) as error:
        raise DptraceError(f"{path}: {error}.") from None
    if not bench_rows:
        raise DptraceError(f"{path}: has no rows.")
    return with_speedup(bench_rows)


def _merge_repetitions(bench_rows: Sequence[Row]) -> list[Row]:
    """Merge rows of the same model, mode and number of GPUs into one, with their median and spread."""
    configs: dict[tuple[str, str, int], list[Row]] = {}
    for row in bench_rows:
        configs.setdefault((row.model, row.mode, row.gpus), []).append(row)
    return [_median_row(repetitions) for repetitions in configs.values()]


def _median_row(repetitions: Sequence[Row]) -> Row:
    good = sorted((row for row in repetitions if row.epoch_s is not None), key=lambda row: row.epoch_s or 0.0)
    if len(good) < 2:
        return (good or repetitions)[0]
    timing = _timing([row.epoch_s for row in good if row.epoch_s is not None])
    nearest = good[(len(good) - 1) // 2]
    samples = nearest.samples_per_s
    return replace(
        nearest,
        **timing,
        samples_per_s=samples * (nearest.epoch_s or 0.0) / timing["epoch_s"] if samples else None,
    )


def _row_from_csv(line: dict[Any, Any]) -> Row:
    def number(name: str) -> float | None:
        value = line.get(name)
        if value is None or value != value:
            return None
        found = float(value)
        if refusal := _FIGURE.refusal(found):
            raise ValueError(f"{name} {value} {refusal}")
        return found

    gpus, epoch = number("gpus"), number("avg_epoch_s")
    failed = line.get("failed")
    if gpus is not None and (gpus < 1 or gpus != int(gpus)):
        raise ValueError(
            f"a row for {line.get('model')}, {line.get('mode')} has {gpus:g} GPUs; give a whole number, 1 or more"
        )
    if gpus is None or ((epoch is None or epoch <= 0) and not isinstance(failed, str)):
        raise ValueError(f"a row for {line.get('model')}, {line.get('mode')} lacks gpus or the seconds of an epoch")
    millions, exact = number("params_millions"), number("parameters")
    parameters = exact if exact is not None else millions * 1e6 if millions is not None else None
    names = ("comm_s", "samples_per_s", "tflops", "mfu", "overlap_percent", "exposed_share", "spread")
    figures: dict[str, Any] = {name: number(name) for name in names}
    return Row(
        *(str(line["model"]), str(line["mode"]), int(gpus)),
        parameters=None if parameters is None else round(parameters),
        epoch_s=epoch,
        epochs=int(number("epochs") or 0),
        failed=failed if isinstance(failed, str) else None,
        **figures,
    )


# Compare a benchmark's rows: the communication share of naive runs, and what other modes save over them.


_BEYOND = 1.05
"""Factor over the ideal speedup above which the excess is more than noise."""


@dataclass(frozen=True, slots=True)
class CommunicationShare:
    """An epoch of a naive run, in seconds: compute and communication take turns in it."""

    row: Row
    compute_s: float
    comm_s: float
    fraction: float
    """s: communication as a share of the epoch."""
    efficiency: float
    """Gustafson's efficiency at this s."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How much shorter a mode's epoch is than that of naive, for the same model and number of GPUs."""

    row: Row
    percent: float
    """Above 0 where the epoch is shorter."""


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have an epoch time, one per model, mode and number of GPUs."""
    found: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        if row.epoch_s is not None:
            found.setdefault((row.model, row.mode, row.gpus), row)
    return list(found.values())


def models_by_size(rows: Sequence[Row]) -> list[str]:
    """Return the models, smallest first where their sizes are known."""
    sizes = {row.model: row.parameters or 0 for row in rows}
    return sorted(sizes, key=sizes.__getitem__)


def shares(rows: Sequence[Row]) -> list[CommunicationShare]:
    """Return the compute and communication time of the naive rows.

    Communication comes from recorded steps and the epoch from steps without the profiler. Where noise makes
    communication longer than the epoch, the whole epoch counts as communication.
    """
    found = []
    for row in usable(rows):
        if row.mode == "naive" and row.gpus > 1 and row.comm_s is not None and row.epoch_s is not None:
            comm = min(row.comm_s, row.epoch_s)
            fraction = scaling.communication_fraction(comm, row.epoch_s)
            efficiency = scaling.gustafson_efficiency(fraction, row.gpus)
            found.append(CommunicationShare(row, row.epoch_s - comm, comm, fraction, efficiency))
    return found


def savings(rows: Sequence[Row]) -> list[Saving]:
    """Compare each parallel row with naive on as many GPUs, in percent of naive's epoch."""
    good = usable(rows)
    naive = {(row.model, row.gpus): row.epoch_s for row in good if row.mode == "naive"}
    found = []
    for row in good:
        base = naive.get((row.model, row.gpus))
        if base is not None and row.epoch_s is not None and row.mode != "naive" and row.gpus > 1:
            found.append(Saving(row, 100 * (base - row.epoch_s) / base))
    return found


def superlinear_row(rows: Sequence[Row]) -> Row | None:
    """Return the row whose speedup exceeds its number of GPUs most; None where none does by more than noise."""
    found = [row for row in usable(rows) if row.speedup is not None and row.speedup > _BEYOND * row.gpus]
    return max(found, key=lambda row: (row.speedup or 0) / row.gpus, default=None)
