"""A run: all ranks that were recorded together, and its figures as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.build import build_timelines
from dptrace.collectives import communication_names
from dptrace.errors import DptraceError, TraceError
from dptrace.kineto import read_trace
from dptrace.legible import legible
from dptrace.sources import Sources, assign_ranks, find
from dptrace.split import FIGURES, Split, collective_exposure, split
from dptrace.steps import first_steps
from dptrace.timeline import Phase, Timeline
from dptrace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "Run", "open_run", "overlap_percent"]

SCHEMA = 1
"""Version of the JSON that :meth:`Run.to_dict` gives: names in it never change meaning."""


def overlap_percent(overlapped_ns: int, exposed_ns: int) -> float | None:
    """Give the share of communication that hides under compute, in percent; nothing without communication."""
    whole = overlapped_ns + exposed_ns
    return 100 * overlapped_ns / whole if whole else None


@dataclass(frozen=True)
class Run:
    """What was recorded of one job: a timeline per GPU, sorted by rank and device."""

    path: str
    """As the user named it."""
    timelines: tuple[Timeline, ...]
    info: dict[str, Any] = field(default_factory=dict)
    """The contents of ``run.json``; empty for traces that dptrace did not record."""
    notes: tuple[str, ...] = ()
    """What was missing, dropped or repaired, a sentence each; to be shown with every figure."""
    world_size: int = 0
    """How many ranks the job had, as far as the files say; more than here where files are missing."""
    splits: tuple[Split, ...] = field(init=False)
    """The split of each timeline, in the same order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple(split(timeline) for timeline in self.timelines))

    @property
    def on_cpu(self) -> bool:
        """Tell whether the run shows operators on CPUs, not kernels on GPUs."""
        return all(timeline.on_cpu for timeline in self.timelines)

    def steps(self) -> pd.DataFrame:
        """Give the nine figures, in ns, a row for each rank, device and step."""
        import pandas as pd

        rows = [
            {"rank": s.rank, "device": t.device, "step": name, **{f: int(v[k]) for f, v in s.figures.items()}}
            for s, t in zip(self.splits, self.timelines, strict=True)
            for k, name in enumerate(s.names)
        ]
        return pd.DataFrame(rows, columns=["rank", "device", "step", *FIGURES])

    def totals(self) -> pd.DataFrame:
        """Give the nine figures, in ns, over all steps, and the overlap in percent: a row for each GPU."""
        import pandas as pd

        rows = []
        for s in self.splits:
            total = s.total()
            overlap = overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"])
            rows.append({"rank": s.rank, "device": s.device, **total, "overlap_percent": overlap})
        return pd.DataFrame(rows, columns=["rank", "device", *FIGURES, "overlap_percent"])

    def collectives(self) -> pd.DataFrame:
        """Give every collective on every GPU, a row each: kind, bytes, group, times, exposed and overlapped ns."""
        import pandas as pd

        rows = [row for timeline in self.timelines for row in _collective_rows(timeline)]
        return pd.DataFrame(rows, columns=list(_COLLECTIVE_COLUMNS))

    def intervals(self) -> pd.DataFrame:
        """Give every interval of every GPU, a row each: name, kind, phase, step, lane, start and end in ns."""
        import pandas as pd

        return pd.concat([_interval_frame(timeline) for timeline in self.timelines], ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """Give the figures as plain data, the way ``dptrace analyze --json`` prints them."""
        return {
            "schema": SCHEMA,
            "run": self.path,
            "world_size": self.world_size,
            "ranks": [_rank_dict(t, s) for t, s in zip(self.timelines, self.splits, strict=True)],
            "notes": list(self.notes),
        }


_COLLECTIVE_COLUMNS = (
    *("rank", "device", "step", "kind", "bytes", "dtype", "group", "group_size", "seq", "phase"),
    *("start_ns", "end_ns", "exposed_ns", "overlapped_ns", "name"),
)


def _step_name(timeline: Timeline, step: int) -> str | None:
    return timeline.windows.names[step] if step >= 0 else None


def _collective_rows(timeline: Timeline) -> list[dict[str, Any]]:
    exposed, overlapped = collective_exposure(timeline)
    rows = []
    for i in np.flatnonzero(timeline.collective >= 0):
        comm = timeline.collectives[timeline.collective[i]]
        values = (
            *(timeline.rank, timeline.device, _step_name(timeline, int(timeline.step[i])), comm.kind, comm.bytes),
            *(comm.dtype, comm.group, comm.group_size, comm.seq, Phase(timeline.phase[i]).name.lower()),
            *(int(timeline.start_ns[i]), int(timeline.end_ns[i]), int(exposed[i]), int(overlapped[i])),
            timeline.names[timeline.name[i]],
        )
        rows.append(dict(zip(_COLLECTIVE_COLUMNS, values, strict=True)))
    return rows


def _interval_frame(timeline: Timeline) -> pd.DataFrame:
    import pandas as pd

    kinds = np.array(["compute", "communication", "memory"], object)
    phases = np.array([phase.name.lower() for phase in Phase], object)
    names = np.array([*timeline.names, ""], object)
    steps = np.array([*timeline.windows.names, None, None], object)
    return pd.DataFrame(
        {
            "rank": timeline.rank,
            "device": timeline.device,
            "name": names[timeline.name],
            "kind": kinds[timeline.kind],
            "phase": phases[timeline.phase],
            "step": steps[timeline.step],
            "lane": timeline.lane,
            "start_ns": timeline.start_ns,
            "end_ns": timeline.end_ns,
        }
    )


def _rank_dict(timeline: Timeline, figures: Split) -> dict[str, Any]:
    steps = []
    for k, name in enumerate(figures.names):
        comm = {
            kind: {
                "count": int(c.count[k]),
                "bytes": int(c.bytes[k]),
                "exposed_ns": int(c.exposed_ns[k]),
                "overlapped_ns": int(c.overlapped_ns[k]),
            }
            for kind, c in figures.comm.items()
        }
        steps.append({"step": name, **{f: int(v[k]) for f, v in figures.figures.items()}, "comm": comm})
    total = figures.total()
    return {
        "rank": timeline.rank,
        "device": timeline.device_name,
        "device_index": timeline.device,
        "file": timeline.path,
        "steps": steps,
        "total": total,
        "overlap_percent": overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"]),
        "collectives": [
            {key: value for key, value in row.items() if key not in ("rank", "device")}
            for row in _collective_rows(timeline)
        ],
    }


def open_run(
    paths: Sequence[str],
    comm_patterns: Sequence[str] = (),
    partial: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Run:
    """Read a run; see :func:`dptrace.open`.

    Args:
        progress: called before each file with the number done, the number in all, and the file's name.
    """
    communication_names((), comm_patterns)  # a bad pattern is told before a long read
    sources = find(paths)
    files, notes = _read_all(sources, comm_patterns, partial, progress)
    ranks, guesses = assign_ranks(files)
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    timelines = tuple(replace(timeline, rank=rank) for rank, file in pairs for timeline in file.timelines)
    timelines = _whole_steps(timelines, sources.info)
    world_size = max([file.world_size for file in files] + [max(ranks) + 1])
    notes += [*_recorded(sources.info), *guesses, *_missing(ranks, world_size)]
    notes += [note for timeline in timelines for note in timeline.notes]
    if all(timeline.on_cpu for timeline in timelines):
        gloo = ", communication is gloo's" if any(timeline.collectives for timeline in timelines) else ""
        notes.append(f"No GPU work here: compute is the CPU's operators{gloo}.")
    return Run(legible(" ".join(paths)), timelines, sources.info, tuple(_grouped(notes)), world_size)


def _whole_steps(timelines: tuple[Timeline, ...], info: dict[str, Any]) -> tuple[Timeline, ...]:
    """Leave out the step in which the training ended or failed, where run.json counts only those before it."""
    told = info.get("ranks")
    whole = {
        entry["rank"]: entry["recorded_steps"]
        for entry in (told if isinstance(told, list) else [])
        if isinstance(entry, dict) and type(entry.get("rank")) is int and type(entry.get("recorded_steps")) is int
    }
    return tuple(first_steps(timeline, max(whole.get(timeline.rank, 0), 0)) for timeline in timelines)


@dataclass(frozen=True, slots=True)
class _File:
    """One file, read: what its timelines do not say."""

    path: str
    rank: int | None
    world_size: int
    timelines: tuple[Timeline, ...]


def _read_all(
    sources: Sources, patterns: Sequence[str], partial: bool, progress: Callable[[int, int, str], None] | None
) -> tuple[list[_File], list[str]]:
    """Read the files; one that can't be read is an error if the user named it, else a note.

    Each file's columns are dropped once its timelines stand: a run's memory is that of its device intervals.
    """
    files, notes = [], list(sources.notes)
    for done, file in enumerate(sources.files):
        if progress is not None:
            progress(done, len(sources.files), file.name)
        try:
            trace = read_trace(file)
            if trace.cut and not partial:
                raise _cut_off(trace)
            timelines = build_timelines(trace, trace.rank or 0, patterns)
            files.append(_File(str(file), trace.rank, trace.world_size or 0, timelines))
        except DptraceError as error:
            if file in sources.named or len(sources.files) == 1 or error.exit_code != DptraceError.exit_code:
                raise
            notes.append(f"Left out: {error}")
    if not files:
        raise DptraceError("None of the files is a trace that can be read:\n" + "\n".join(notes))
    return files, notes


def _cut_off(trace: Trace) -> TraceError:
    """Refuse what would give wrong figures: Kineto writes thread by thread and buffer by buffer, not by time."""
    return TraceError(
        f"{trace.path}: {trace.notes[0].partition(': ')[2]} A trace is not written in the order of time, so no step "
        "can be trusted. Record again; --partial (in Python partial=True) shows what there is."
    )


def _grouped(notes: Sequence[str]) -> list[str]:
    """Say once what holds for many files: notes that differ only in file and numbers become one."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        file, _, text = note.partition(": ")
        groups.setdefault(re.sub(r"[\d,]+", "#", text) if text else file, []).append(note)
    return [
        group[0] if len(group) == 1 else f"{group[0]} Likewise in {len(group) - 1} more files."
        for group in groups.values()
    ]


def _recorded(info: dict[str, Any]) -> list[str]:
    """Give what the recorder itself noted, and that the run failed, if it did."""
    told = info.get("notes")
    notes = [note for note in told if isinstance(note, str)] if isinstance(told, list) else []
    failure = info.get("failure")
    if info.get("status") == "failed":
        why = failure.get("message") if isinstance(failure, dict) else None
        notes.insert(0, f"The recording failed, so this is what was kept of it: {why or 'the reason is not known'}.")
    return notes


def _missing(ranks: Sequence[int], world_size: int) -> list[str]:
    absent = world_size - len(set(ranks))
    if not absent:
        return []
    here = set(ranks)
    first = list(islice((rank for rank in range(world_size) if rank not in here), 8))
    listed = ", ".join(map(str, first)) + (f" and {absent - len(first):,} more" if absent > len(first) else "")
    word = "rank" if absent == 1 else "ranks"
    return [f"The job had {world_size} ranks; without a trace here: {word} {listed}."]
