"""Baselines: the figures of recordings, kept small in one JSON file, to compare later recordings with.

A file holds for each recording the split of each step and GPU, and kernels and collectives as means over the GPUs, as
far as :func:`dptrace.comparison.compare.compare` needs them; no intervals, so that no picture can be drawn of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.analysis.per_gpu.split import FIGURES, CommFigures, Split
from dptrace.comparison.history import TRACE_TIME, recorded_time
from dptrace.comparison.sides import (
    COLLECTIVE_VALUES,
    RunSample,
    StepTables,
    StoredRun,
    devices_by_id,
    ideal_ns,
    refuse_copies,
    sample_run,
)
from dptrace.comparison.significance import Float
from dptrace.core.files import atomic_write, note_inputs, unreadable
from dptrace.core.intervals import Int64
from dptrace.core.notes import REASONS
from dptrace.core.units import listed
from dptrace.errors import DptraceError, UsageError
from dptrace.readers.formats import BASELINE
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Timeline, Windows
from dptrace.version import __version__

FOLDER = Path(".dptrace") / "baselines"
"""Where a project keeps its baselines, from the folder in which dptrace is started."""
SCHEMA = 2
"""Version of the file: the meaning of a name in it never changes."""
_IN_USE = "in-use"
"""The file that names the baseline to compare with where none is named."""
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KEPT = ("created", "mode", "model", "parameters", "backend", "script", "options", "versions", "profiler_overhead")
"""Keys of run.json that comparisons show."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class _Device(msgspec.Struct):
    rank: int
    gpu: int
    """Index of the GPU in its machine; -1 on a CPU."""
    name: str
    figures: dict[str, list[_Count]]
    """Figures and idle causes in ns, a value per step."""
    collectives: dict[str, list[_Count]]
    """Number of collectives of each kind in each step."""
    lacks: list[str] = []
    """The premises that fail in its recording; figures that are not known are 0."""


class _Kernel(msgspec.Struct):
    kind: str
    name: str
    ns: list[_Amount]
    count: list[_Amount]


class _Messages(msgspec.Struct):
    kind: str
    bytes: _Count
    dtype: str
    group: str
    group_size: _Count
    values: dict[str, list[_Amount]]
    """By the names in COLLECTIVE_VALUES, a value per step."""


class _Recording(msgspec.Struct):
    path: str
    metadata: dict[str, Any]
    notes: list[str]
    world_size: _Count
    steps: list[str]
    devices: list[_Device]
    exposed_wait: list[list[_Count]] | None
    kernels: list[_Kernel]
    collectives: list[_Messages]
    ideal_ns: _Amount | None

    def columns(self) -> Iterable[list[Any]]:
        """Yield every list that has a value per step."""
        for device in self.devices:
            yield from (*device.figures.values(), *device.collectives.values())
        for kernel in self.kernels:
            yield from (kernel.ns, kernel.count)
        for messages in self.collectives:
            yield from messages.values.values()
        yield from self.exposed_wait or ()


class Baseline(msgspec.Struct):
    """A baseline as its file holds it."""

    dptrace_baseline: int
    dptrace: str
    saved: str
    """When, in UTC."""
    recordings: list[_Recording]
    watched: dict[str, Any] | None = None
    """The summary of a watched run, in place of recordings."""

    def runs(self, path: Path) -> list[StoredRun]:
        """Return the recordings, to compare others with.

        Raises:
            DptraceError: it holds a watched run.
        """
        if self.watched is not None:
            raise DptraceError(f"{path}: holds a watched run; compare another watched run with it.")
        return [_run(one, f"From the baseline {path.stem}, saved {self.saved[:10]}.") for one in self.recordings]

    def summary(self, path: Path) -> dict[str, Any]:
        """Return a few figures as plain data."""
        if self.watched is not None:
            steps, ranks, wall_ns = self.watched["steps"], self.watched["ranks"], self.watched["step_ns"]["mean"]
            figures = {"recordings": 1, "steps": steps, "ranks": ranks, "wall_ns": wall_ns}
            return {"name": path.stem, "path": str(path), "saved": self.saved, **figures, "bytes": path.stat().st_size}
        walls = [np.mean([device.figures["wall_ns"] for device in one.devices]) for one in self.recordings]
        return {
            "name": path.stem,
            "path": str(path),
            "saved": self.saved,
            "recordings": len(self.recordings),
            "steps": sum(len(one.steps) for one in self.recordings),
            "ranks": len({device.rank for device in self.recordings[0].devices}),
            "wall_ns": round(float(np.mean(walls))),
            "bytes": path.stat().st_size,
        }


def save(path: Path, runs: Sequence[Run]) -> Baseline:
    """Write the figures of recordings into a file.

    Raises:
        DptraceError: a recording has no steps, its kernels were not read, or the recordings have different GPUs; or the
            file can't be written.
    """
    for run in runs:
        if run.figures_only or isinstance(run, StoredRun):
            raise DptraceError(f"{run.path}: a baseline needs a recording with all its intervals.")
        if not run.devices or not all(len(device.split.names) for device in run.devices):
            raise DptraceError(f"{run.path}: a rank has no steps; record steps, or name the ranks that have (--ranks).")
        if set(devices_by_id(run)) != set(devices_by_id(runs[0])):
            raise DptraceError(f"{runs[0].path} and {run.path} have different ranks; choose some of both with --ranks.")
    refuse_copies(runs)
    return _write(path, [_recording(run) for run in runs])


def save_watched(path: Path, summary: dict[str, Any]) -> Baseline:
    """Write the summary of a watched run into a file."""
    return _write(path, [], summary)


def _write(path: Path, recordings: list[_Recording], watched: dict[str, Any] | None = None) -> Baseline:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    baseline = Baseline(SCHEMA, __version__, now, recordings, watched)
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.encode(baseline) + b"\n")
    return baseline


def read(path: Path) -> Baseline:
    """Read a baseline's file.

    Raises:
        DptraceError: it can't be read, or is no baseline.
    """
    note_inputs([path])
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise DptraceError(unreadable(path, error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DptraceError(f"{path}: not a file of dptrace baseline save: {error}.") from None
    if baseline.dptrace_baseline != SCHEMA:
        raise DptraceError(f"{path}: written by dptrace {baseline.dptrace}, in another form; save the baseline again.")
    for one in baseline.recordings:
        names = all({*FIGURES} <= device.figures.keys() for device in one.devices)
        names &= all({*COLLECTIVE_VALUES} <= messages.values.keys() for messages in one.collectives)
        lengths = {len(column) for column in one.columns()} | {len(one.steps)}
        waits = one.exposed_wait is None or len(one.exposed_wait) == len(one.devices)
        if not (names and waits and one.devices and one.steps and len(lengths) == 1):
            raise DptraceError(f"{path}: {one.path}: figures are missing or of unequal length; save it again.")
    if not (baseline.recordings or baseline.watched):
        raise DptraceError(f"{path}: holds no recording; save the baseline again.")
    return baseline


def is_baseline(path: Path) -> bool:
    """Return whether a file is a baseline, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(BASELINE)) == BASELINE
    except OSError:
        return False


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the file of a baseline, by its name in the folder.

    Raises:
        UsageError: it is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name}: not a name of a baseline; use letters, digits, dots, dashes and underscores.")
    return folder / f"{name}.json"


def find(name: str | None, folder: Path = FOLDER) -> Path:
    """Return the file of a baseline: of a name, of a path that ends in .json, or of the one in use.

    Raises:
        UsageError: none is in use.
        DptraceError: there is no such file. Both messages list the baselines that are there.
    """
    if name is None:
        name = in_use(folder)
        if name is None:
            raise UsageError(
                f"No baseline is in use in {folder}: name two runs, or save a baseline (dptrace baseline save NAME "
                f"RUN...) and choose it (dptrace baseline use NAME).{_there(folder)}"
            )
    path = Path(name) if name.endswith(".json") else path_of(name, folder)
    if not path.is_file():
        raise DptraceError(f"{path}: no such file.{_there(folder)}")
    return path


def _there(folder: Path) -> str:
    names = [path.stem for path in saved(folder)]
    return f" There are the baselines {listed(names, 9)}." if names else ""


def saved(folder: Path = FOLDER) -> list[Path]:
    """Return the files of all baselines, by name."""
    return sorted(path for path in folder.glob("*.json") if path.is_file()) if folder.is_dir() else []


def in_use(folder: Path = FOLDER) -> str | None:
    """Return the name of the baseline in use; None without one."""
    try:
        name = (folder / _IN_USE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return name if _NAME.fullmatch(name) else None


def use(path: Path) -> None:
    """Compare with this baseline of its folder where none is named."""
    with atomic_write(path.parent / _IN_USE) as temporary:
        temporary.write_text(f"{path.stem}\n", encoding="utf-8")


# A run as its file holds it, and back.


def _recording(run: Run) -> _Recording:
    sample = sample_run(run, devices_by_id(run), every_step=True)
    waits = sample.exposed_wait
    return _Recording(
        path=run.path,
        metadata={key: run.metadata[key] for key in _KEPT if key in run.metadata} | _created(run),
        notes=list(run.notes),
        world_size=run.world_size,
        steps=list(sample.steps),
        devices=[_device(sample, row) for row in range(len(sample.devices))],
        exposed_wait=None if waits is None else waits.tolist(),
        kernels=[
            _Kernel(kind, name, *np.round(values, 3).tolist()) for (kind, name), values in sample.kernels().items()
        ],
        collectives=[_messages(key, values) for key, values in sample.collectives().items()],
        ideal_ns=ideal_ns(run),
    )


def _created(run: Run) -> dict[str, str]:
    """Return when a run was recorded, where only its trace says so: a baseline keeps no times."""
    recorded, by = recorded_time(run)
    return {"created": recorded} if by == TRACE_TIME else {}


def _device(sample: RunSample, row: int) -> _Device:
    device, index = sample.devices[row], sample.step_index[row]
    unknown = [0] * len(index)
    figures = {
        name: sample.figures[name][row].tolist() if name in sample.figures else unknown for name in (*FIGURES, *CAUSES)
    }
    counts = {kind: comm.count[index].tolist() for kind, comm in device.split.comm.items()}
    timeline, lacks = device.timeline, list(device.split.lacks)
    return _Device(timeline.rank, timeline.device, timeline.device_name, figures, counts, lacks)


def _messages(key: Collective, values: Float) -> _Messages:
    rows = dict(zip(COLLECTIVE_VALUES, np.round(values, 3).tolist(), strict=True))
    return _Messages(key.kind, key.bytes, key.dtype, key.group, key.group_size, rows)


def _run(one: _Recording, note: str) -> StoredRun:
    collectives = {
        Collective(m.kind, m.bytes, m.dtype, m.group, m.group_size): np.array(
            [m.values[name] for name in COLLECTIVE_VALUES], np.float64
        )
        for m in one.collectives
    }
    devices = tuple(_figures(device, tuple(one.steps), tuple(collectives)) for device in one.devices)
    tables = StepTables(
        None if one.exposed_wait is None else np.array(one.exposed_wait, np.int64),
        {(kernel.kind, kernel.name): np.array([kernel.ns, kernel.count], np.float64) for kernel in one.kernels},
        collectives,
        one.ideal_ns,
    )
    timelines = tuple(device.timeline for device in devices)
    notes = (note, *_missing_causes(one), *one.notes)
    return StoredRun(one.path, timelines, one.metadata, notes, one.world_size, devices, tables=tables)


def _missing_causes(one: _Recording) -> list[str]:
    """Return a note on the causes of idle time that the version that saved a recording did not tell apart."""
    saved = set.intersection(*(set(device.figures) for device in one.devices))
    missing = [cause.label for cause in IDLE_CAUSES if cause.name not in saved]
    if not missing:
        return []
    return [f"The baseline does not tell idle time of {listed(missing, 9)}: it is 0 there, within other causes."]


def _figures(device: _Device, steps: tuple[str, ...], collectives: tuple[Collective, ...]) -> DeviceFigures:
    """Return the figures of a device on a timeline without intervals, whose steps are as long as they were."""
    values: Mapping[str, Int64] = {name: np.array(column, np.int64) for name, column in device.figures.items()}
    nothing, none = np.empty(0, np.int64), np.zeros(len(steps), np.int64)
    timeline = Timeline(
        rank=device.rank,
        device=device.gpu,
        device_name=device.name,
        start_ns=nothing,
        end_ns=nothing,
        name=nothing.astype(np.int32),
        names=(),
        kind=nothing.astype(np.uint8),
        phase=nothing.astype(np.uint8),
        step=nothing.astype(np.int32),
        lane=nothing,
        collective=nothing.astype(np.int32),
        collectives=collectives,
        windows=Windows(steps, np.append(0, np.cumsum(values["wall_ns"]))),
    )
    counts = {kind: np.array(count, np.int64) for kind, count in device.collectives.items()}
    comm = {kind: CommFigures(count, none, none, none) for kind, count in counts.items()}
    lacks = tuple(premise for premise in device.lacks if premise in REASONS)
    split = Split(device.rank, device.gpu, steps, {name: values[name] for name in FIGURES}, comm, lacks)
    return replace(figures_of(timeline), split=split, idle_causes={name: values.get(name, none) for name in CAUSES})
