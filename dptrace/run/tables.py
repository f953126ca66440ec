"""The tables of a run as pandas frames, and their rows as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES, ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import FIGURES, Split
from dptrace.core.table import frame, html_table, rows_of
from dptrace.core.units import milliseconds
from dptrace.run.columns import CALLS, FINDINGS, IDLE, MATCHED, STEPS, TOTALS, OneDevice
from dptrace.timeline.model import Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
    from dptrace.analysis.findings.finding import Finding
    from dptrace.analysis.matching.calls import Group


_MAX_HTML_ROWS = 16
"""GPUs in a notebook's table."""


def finding_frame(found: Sequence[Finding]) -> pd.DataFrame:
    """Return a row per finding."""
    return frame((finding.to_dict() for finding in found), FINDINGS)


def rank_rows(collectives: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row of COLLECTIVE_RANKS for each rank of each collective."""
    for number, row in enumerate(collectives):
        whole = {"collective": number} | {column.name: row[column.name] for column in MATCHED}
        yield from (whole | member for member in row["members"])


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
    one = OneDevice(device, wait)
    (total,) = rows_of(TOTALS[2:], one)
    percent = total.pop("overlap_percent")
    return {
        "rank": one.timeline.rank,
        "device": one.timeline.device_name,
        "device_index": one.timeline.device,
        "file": one.timeline.path,
        "steps": _step_dicts(one),
        "total": total,
        "unknown": device.split.unknown,
        "bounds": device.split.bounds,
        "overlap_percent": percent,
        "collectives": rows_of(CALLS[2:], one),
    }


def mean_split_html(title: str, devices: Sequence[DeviceFigures], waits: Sequence[ExposedWait]) -> str:
    """Return a title and a small HTML table: the mean split of a step for the first GPUs, and their waiting."""
    names = [name.removesuffix("_ns").replace("_", " ") for name in (*FIGURES, *WAIT_FIGURES)]
    rows = []
    for device, wait in list(zip(devices, waits, strict=True))[:_MAX_HTML_ROWS]:
        steps, figures = max(len(device.split.names), 1), {**device.split.total(), **wait.total()}
        total = [figures[name] for name in (*FIGURES, *WAIT_FIGURES)]
        cells = ("?" if ns is None else milliseconds(ns / steps) for ns in total)
        rows.append((device.timeline.label, *cells))
    more = len(devices) - len(rows)
    rest = [f"and {more:,} more; run.totals() has all."] if more > 0 else []
    return html_table(title, ("ms per step", *names), rows, rest)


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


def pipeline_rows(pipelines: Sequence[Pipeline], timelines: Sequence[Timeline]) -> Iterator[dict[str, Any]]:
    """Yield a row of PIPELINES for each rank and step of each pipeline."""
    for number, whole in enumerate(pipeline_dicts(pipelines, timelines)):
        about = {"pipeline": number} | {name: whole[name] for name in ("schedule", "micro_batches", "formula_percent")}
        for step in whole["steps"]:
            of_step = {name: step[name] for name in ("step", "span_ns")}
            for rank, own in zip(whole["ranks"], step["ranks"], strict=True):
                stages = {"stages": tuple(rank["stages"]), "pipeline_bubble_percent": step["bubble_percent"]}
                yield about | of_step | stages | own


def action_sources(pipelines: Sequence[Pipeline], timelines: Sequence[Timeline]) -> Iterator[tuple[int, Timeline, int]]:
    """Yield the sources of PIPELINE_ACTIONS: number of the pipeline, and a rank's timeline and first stage."""
    for number, pipeline in enumerate(pipelines):
        for device, stages, actions in zip(pipeline.devices, pipeline.stages, pipeline.actions, strict=True):
            yield number, replace(timelines[device], actions=actions), stages[0]


def _step_dicts(one: OneDevice) -> list[dict[str, Any]]:
    """Return a GPU's steps: their figures, communication by kind, idle time by cause, and recomputation."""
    figures, idle = rows_of(STEPS[2:], one), rows_of(IDLE[3:-1], one)
    return [
        {**own, "comm": _comm(one, k), "idle": causes, "recompute_ns": _recompute(one, k)}
        for k, (own, causes) in enumerate(zip(figures, idle, strict=True))
    ]


def _recompute(one: OneDevice, k: int) -> int | None:
    """Return what a step recomputes; None where phases are not known."""
    return None if "backward_ns" in one.device.split.unknown else int(one.device.recompute_ns[k])


def _comm(one: OneDevice, k: int) -> dict[str, Any]:
    """Return the communication of a step by kind."""
    known = "exposed_comm_ns" not in one.device.split.unknown
    return {
        kind: {
            "count": int(figures.count[k]),
            "bytes": None if figures.count[k] and not figures.bytes[k] else int(figures.bytes[k]),
            "exposed_ns": int(figures.exposed_ns[k]) if known else None,
            "overlapped_ns": int(figures.overlapped_ns[k]) if known else None,
            **_kind_waits(one.wait, kind, k),
        }
        for kind, figures in one.device.split.comm.items()
    }


def _kind_waits(wait: ExposedWait, kind: str, step: int) -> dict[str, int | None]:
    """Return the waits of a kind in a step; a kind of which nothing is matched has none."""
    figures = wait.by_kind.get(kind)
    return figures.step(step) if figures else dict.fromkeys(WAIT_FIGURES)
