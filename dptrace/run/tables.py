"""The tables of a run as pandas frames, and their rows as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES, ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import CAUSES, FIGURES, Split, overlap_percent
from dptrace.core.units import milliseconds
from dptrace.timeline.model import Phase, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
    from dptrace.analysis.findings.finding import Finding
    from dptrace.analysis.matching.calls import Group


__all__ = [
    "CLOCK_COLUMNS",
    "FINDING_COLUMNS",
    "STRAGGLER_COLUMNS",
    "collective_frame",
    "finding_frame",
    "frame",
    "idle_frame",
    "kernel_frame",
    "matched_frame",
    "mean_split_html",
    "one_line",
    "pipeline_dicts",
    "rank_dict",
    "rank_dicts",
    "step_frame",
    "total_frame",
]

_COLLECTIVE_COLUMNS = (
    *("rank", "device", "step", "kind", "bytes", "dtype", "group", "group_size", "seq", "phase"),
    *("start_ns", "end_ns", "exposed_ns", "overlapped_ns", "name", "label", "exposed_wait_ns", "waits_for"),
)
_MATCHED_COLUMNS = (
    *("kind", "name", "group", "seq", "bytes", "dtype", "step", "phase", "complete"),
    *("transfer_ns", "algbw_gbps", "busbw_gbps", "last_rank"),
)
"""Columns of a matched collective that are the same for all of its ranks."""
_MEMBER_COLUMNS = (
    *("rank", "device", "start_ns", "end_ns", "exposed_ns", "overlapped_ns", "wait_ns", "late_ns"),
    *("exposed_wait_ns", "waits_for"),
)
"""Columns of one rank of a matched collective."""
CLOCK_COLUMNS = (
    *("rank", "device", "reference_rank", "offset_ns", "at_ns", "uncertainty_ns", "drift_ppm", "corrected"),
    "collectives",
)
STRAGGLER_COLUMNS = (
    "rank",
    "device",
    "step",
    "collective",
    "kind",
    "late_ns",
    "cost_ns",
    "cause",
    "delay",
    "what",
    "where",
)
FINDING_COLUMNS = "kind", "text", "advice", "cost_ns", "share", "evidence"
_MAX_HTML_ROWS = 16


def frame(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return a frame with these columns, also without any row."""
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(columns))


def finding_frame(found: Sequence[Finding]) -> pd.DataFrame:
    """Return a row per finding; with the columns of a gain where the findings have one."""
    rows = [finding.to_dict() for finding in found]
    return frame(rows, tuple(rows[0]) if rows else FINDING_COLUMNS)


def step_frame(devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> pd.DataFrame:
    """Return a row per rank, device and step with the figures of the split and of waiting."""
    rows = (
        {"rank": d.split.rank, "device": d.timeline.device, "step": name}
        | {figure: int(values[k]) for figure, values in d.split.figures.items()}
        | wait.step(k)
        for d, wait in zip(devices, waits, strict=True)
        for k, name in enumerate(d.split.names)
    )
    return _nullable(frame(rows, ["rank", "device", "step", *FIGURES, *WAIT_FIGURES]), "exposed_wait_ns")


def _nullable(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Convert columns to pandas' nullable integers, so that one unknown value does not turn the others into floats."""
    return table.astype(dict.fromkeys(columns, "Int64"))


def total_frame(devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> pd.DataFrame:
    """Return a row per GPU with the figures over all steps and the overlap in percent."""
    rows = []
    for device, wait in zip(devices, waits, strict=True):
        total = device.split.total() | wait.total()
        percent = overlap_percent(device.split.total()["overlapped_comm_ns"], device.split.total()["exposed_comm_ns"])
        overlap = float("nan") if percent is None else percent
        rows.append({"rank": device.split.rank, "device": device.split.device, **total, "overlap_percent": overlap})
    return _nullable(frame(rows, ["rank", "device", *FIGURES, *WAIT_FIGURES, "overlap_percent"]), "exposed_wait_ns")


def idle_frame(devices: Sequence[DeviceFigures]) -> pd.DataFrame:
    """Return a row per rank, device and step with idle ns by cause."""
    rows = (
        {"rank": d.split.rank, "device": d.timeline.device, "step": name}
        | {cause: int(values[k]) for cause, values in d.idle_causes.items()}
        | {"idle_ns": int(d.split.figures["idle_ns"][k])}
        for d in devices
        for k, name in enumerate(d.split.names)
    )
    return frame(rows, ["rank", "device", "step", *CAUSES, "idle_ns"])


def collective_frame(devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> pd.DataFrame:
    """Return a row per collective and GPU."""
    rows = (
        {"rank": device.timeline.rank, "device": device.timeline.device} | row
        for device, wait in zip(devices, waits, strict=True)
        for row in _collective_rows(device, wait)
    )
    return _nullable(frame(rows, _COLLECTIVE_COLUMNS), "bytes", "exposed_wait_ns", "waits_for")


def kernel_frame(timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return a row per device interval, built column by column: a run may have millions."""
    import pandas as pd

    return pd.concat([_kernels_of(timeline) for timeline in timelines], ignore_index=True)


def matched_frame(collectives: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each rank of each matched collective."""
    rows = (
        {"collective": number, **{name: row[name] for name in _MATCHED_COLUMNS}, **member}
        for number, row in enumerate(collectives)
        for member in row["members"]
    )
    table = frame(rows, ("collective", *_MATCHED_COLUMNS, *_MEMBER_COLUMNS))
    return _nullable(table, "bytes", "exposed_wait_ns", "waits_for")


def rank_dicts(
    devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait], groups: Sequence[Group], metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the figures of each GPU as plain data, with its rank's place in a mesh and in a pipeline, if it has one.

    Args:
        groups: the process groups of the traces.
        metadata: the contents of run.json.
    """
    from dptrace.analysis.matching.calls import coordinates
    from dptrace.model.training.layout import held_activations

    mesh = coordinates(groups, metadata, max((device.timeline.rank for device in devices), default=-1) + 1)
    held = {activations.rank: activations.to_dict() for activations in held_activations(metadata)}
    added = {rank: {"coordinates": numbers} for rank, numbers in mesh.items()}
    rows = []
    for device, wait in zip(devices, waits, strict=True):
        rank = device.timeline.rank
        in_flight = {"in_flight": held[rank]} if rank in held else {}
        rows.append(rank_dict(device, wait) | added.get(rank, {}) | in_flight)
    return rows


def rank_dict(device: DeviceFigures, wait: ExposedWait) -> dict[str, Any]:
    """Return one GPU's figures as plain data: steps, totals, collectives."""
    timeline, total = device.timeline, device.split.total()
    return {
        "rank": timeline.rank,
        "device": timeline.device_name,
        "device_index": timeline.device,
        "file": timeline.path,
        "steps": [_step_dict(device, wait, k, name) for k, name in enumerate(device.split.names)],
        "total": total | wait.total(),
        "overlap_percent": overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"]),
        "collectives": _collective_rows(device, wait),
    }


def mean_split_html(title: str, devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> str:
    """Return a title and a small HTML table: the mean split of a step for the first GPUs, and their waiting."""
    from html import escape

    names = [name.removesuffix("_ns").replace("_", " ") for name in (*FIGURES, *WAIT_FIGURES)]
    head = "".join(f"<th>{name}</th>" for name in ["rank", *names])
    body = []
    for device, wait in list(zip(devices, waits, strict=True))[:_MAX_HTML_ROWS]:
        steps, total = max(len(device.split.names), 1), [*device.split.total().values(), *wait.total().values()]
        cells = "".join(f"<td>{'?' if ns is None else milliseconds(ns / steps)}</td>" for ns in total)
        body.append(f"<tr><th>{escape(device.timeline.label)}</th>{cells}</tr>")
    more = len(devices) - len(body)
    rest = f"<p>and {more:,} more; run.totals() has all.</p>" if more > 0 else ""
    return f"<p>{escape(title)}</p><table><caption>ms per step</caption><tr>{head}</tr>{''.join(body)}</table>{rest}"


def one_line(path: str, ranks: Sequence[int], world_size: int, splits: Sequence[Split]) -> str:
    """Return a run in one line: its path, ranks, steps and mean step."""
    count, steps = sum(len(split.names) for split in splits), max((len(split.names) for split in splits), default=0)
    shown = f"{len(ranks)} of {world_size}" if world_size > len(ranks) else f"{len(ranks)}"
    wall = sum(int(split.figures["wall_ns"].sum()) for split in splits)
    mean = f", {milliseconds(wall / count)} ms a step" if count else ""
    return f"<dptrace.Run {path!r}: ranks {shown}, steps {steps}{mean}>"


def pipeline_dicts(pipelines: Sequence[Pipeline], timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Return the pipelines as plain data."""
    from dptrace.analysis.cross_rank.pipeline_bubble import to_dict

    return [to_dict(pipeline, timelines) for pipeline in pipelines]


def _step_dict(device: DeviceFigures, wait: ExposedWait, k: int, name: str) -> dict[str, Any]:
    comm = {
        kind: {
            "count": int(figures.count[k]),
            "bytes": None if figures.count[k] and not figures.bytes[k] else int(figures.bytes[k]),
            "exposed_ns": int(figures.exposed_ns[k]),
            "overlapped_ns": int(figures.overlapped_ns[k]),
            **_kind_waits(wait, kind, k),
        }
        for kind, figures in device.split.comm.items()
    }
    return {
        "step": name,
        **{figure: int(values[k]) for figure, values in device.split.figures.items()},
        **wait.step(k),
        "comm": comm,
        "idle": {cause: int(values[k]) for cause, values in device.idle_causes.items()},
        "recompute_ns": int(device.recompute_ns[k]),
    }


def _kind_waits(wait: ExposedWait, kind: str, step: int) -> dict[str, int | None]:
    """Return the waits of a kind in a step; a kind of which nothing is matched has none."""
    figures = wait.by_kind.get(kind)
    return figures.step(step) if figures else {"exposed_wait_ns": None, "exposed_unmatched_ns": None}


def _collective_rows(device: DeviceFigures, wait: ExposedWait) -> list[dict[str, Any]]:
    """Return a row per collective of one GPU: the columns of a collective without those of the GPU."""
    timeline = device.timeline
    calls = np.flatnonzero(timeline.collective >= 0)
    phases, steps = [phase.name.lower() for phase in Phase], [*timeline.windows.names, None, None]
    columns = (
        *(timeline.collective, timeline.step, timeline.phase, timeline.name, timeline.start_ns, timeline.end_ns),
        *(device.exposed_ns, device.overlapped_ns),
    )
    rows = zip(*(column[calls].tolist() for column in columns), wait.calls.rows(), strict=True)
    return [
        {
            "step": steps[step],
            "kind": (comm := timeline.collectives[collective]).kind,
            "bytes": comm.bytes or None,
            "dtype": comm.dtype,
            "group": comm.group,
            "group_size": comm.group_size,
            "seq": comm.seq,
            "phase": phases[phase],
            "start_ns": start,
            "end_ns": end,
            "exposed_ns": exposed,
            "overlapped_ns": overlapped,
            "name": timeline.names[name],
            "label": comm.label,
            **waits,
        }
        for collective, step, phase, name, start, end, exposed, overlapped, waits in rows
    ]


def _kernels_of(timeline: Timeline) -> pd.DataFrame:
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
