"""One recording of a device from its windows: of a schedule that repeats, each file holds some steps of a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures, StepFlops
from dptrace.analysis.per_gpu.split import CommFigures, Split
from dptrace.core.intervals import Int64, union_all
from dptrace.core.notes import MARKS
from dptrace.core.table import step_number
from dptrace.core.units import listed, plural
from dptrace.errors import DptraceError
from dptrace.timeline.model import (
    COLUMNS,
    INTERVAL_SETS,
    Actions,
    HostActivity,
    HostCause,
    HostLabel,
    Products,
    Timeline,
    Windows,
)
from dptrace.timeline.steps import moved_steps

_HOW = "Choose one window with --window N, or list them as runs with dptrace history."


def joined_windows(
    devices: Sequence[DeviceFigures],
) -> tuple[tuple[DeviceFigures, ...], dict[str, tuple[str, ...]]]:
    """Return a device for each rank and GPU from those of all windows; also the paths of its files, in order of time.

    Raises:
        DptraceError: windows of a rank are not parts of one recording.
    """
    groups = defaultdict[tuple[int, int], list[DeviceFigures]](list)
    for device in devices:
        if len(device.timeline.windows):
            groups[device.timeline.rank, device.timeline.device].append(device)
    found, files = list[DeviceFigures](), dict[str, tuple[str, ...]]()
    for _, own in sorted(groups.items()):
        own.sort(key=lambda one: int(one.timeline.windows.bounds[0]))
        found.append(joined(own))
        files[found[-1].timeline.path] = tuple(one.timeline.path for one in own)
    return tuple(found), files


def window_notes(count: int, devices: Sequence[DeviceFigures]) -> list[str]:
    """Return the notes on windows that are read as one run, and on ranks that lack some."""
    steps = {name for device in devices for name in device.timeline.windows.names}
    text = (
        f"{plural(count, 'window')} of each process are one run of {plural(len(steps), 'step')}; the time between them "
        f"is not recorded and counts nowhere. --window 1 to --window {count} reads one, dptrace history compares them."
    )
    notes = dict.fromkeys([text])
    for device in devices:
        if lacking := sorted(steps - {*device.timeline.windows.names}, key=lambda name: step_number(name) or 0):
            lacks = f"lacks {plural(len(lacking), 'step')} that others have"
            notes[f"Rank {device.timeline.rank} {lacks}: {listed(lacking)}."] = None
    return [*notes]


def joined(windows: Sequence[DeviceFigures]) -> DeviceFigures:
    """Return one recording of a device from its windows, in the order of time, with the figures of their steps.

    What is between two windows is not recorded, and belongs to no step.

    Raises:
        DptraceError: steps of two windows have one name, are not marked, or are at the same time.
    """
    if len(windows) == 1:
        return windows[0]
    _refuse(windows)
    timeline = _timeline([one.timeline for one in windows])
    parts = [one.split for one in windows]
    flops = [one.flops for one in windows]
    return replace(
        windows[0],
        timeline=timeline,
        split=_split(parts, timeline),
        **_concatenated(windows, "exposed_ns", "overlapped_ns", "backward_start_ns", "backward_end_ns"),
        **_concatenated(windows, "recompute_ns", "parameter_search_ns", "parameter_search_idle_ns"),
        exposed=union_all([one.exposed for one in windows]),
        host_gaps=union_all([one.host_gaps for one in windows]),
        idle_causes={
            cause: np.concatenate([one.idle_causes[cause] for one in windows]) for cause in windows[0].idle_causes
        },
        flops=_flops([one for one in flops if one is not None]) if None not in flops else None,
    )


def _refuse(windows: Sequence[DeviceFigures]) -> None:
    """Refuse windows that are not parts of one recording: of a process that was started again, or copies.

    Raises:
        DptraceError: they are not.
    """
    timelines = [one.timeline for one in windows]
    for one in timelines:
        if MARKS in one.lacks:
            raise DptraceError(f"{one.path}: its steps are not marked, so windows can't be one run of steps. {_HOW}")
    for one, following in pairwise(timelines):
        if following.windows.bounds[0] < one.windows.bounds[-1]:
            raise DptraceError(
                f"{one.path} and {following.path} both claim rank {one.rank} at the same time. Name the files of one "
                "run, one per rank and window."
            )
    known = dict[str, Timeline]()
    for one in timelines:
        for name in one.windows.names:
            if name in known:
                raise DptraceError(
                    f"{known[name].path} and {one.path} both have {name} of rank {one.rank}, as where a job was "
                    f"started again: their windows are not one run of steps. {_HOW}"
                )
        known |= dict.fromkeys(one.windows.names, one)


def _concatenated(parts: Sequence[Any], *names: str) -> dict[str, Any]:
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}


def _first(counts: Sequence[int]) -> list[int]:
    """Return where each part begins, by their lengths."""
    return list(accumulate(counts, initial=0))[:-1]


def _timeline(parts: Sequence[Timeline]) -> Timeline:
    steps, calls = _first([len(one.windows) for one in parts]), _first([len(one.collectives) for one in parts])
    names = dict[str, int]()
    own = [np.array([names.setdefault(name, len(names)) for name in one.names], np.int32) for one in parts]
    columns = _concatenated(parts, *COLUMNS)
    columns["name"] = np.concatenate([table[one.name] for table, one in zip(own, parts, strict=True)])
    columns["step"] = _moved([one.step for one in parts], steps)
    columns["collective"] = _moved([one.collective for one in parts], calls)
    order = np.argsort(columns["start_ns"], kind="stable")
    products = [one.products for one in parts]

    joined = replace(
        parts[0],
        **columns,
        names=tuple(names),
        collectives=tuple(call for one in parts for call in one.collectives),
        windows=_windows([one.windows for one in parts]),
        notes=tuple(dict.fromkeys(note for one in parts for note in one.notes)),
        lacks=tuple(dict.fromkeys(premise for one in parts for premise in one.lacks)),
        host=_host([one.host for one in parts]),
        **{name: union_all([getattr(one, name) for one in parts]) for name in INTERVAL_SETS},
        uses_ddp=any(one.uses_ddp for one in parts),
        actions=Actions.concat(
            [
                replace(one.actions, step=moved_steps(one.actions.step, first))
                for one, first in zip(parts, steps, strict=True)
            ]
        ),
        gpu=next((one.gpu for one in parts if one.gpu is not None), None),
        products=_products([one for one in products if one is not None], steps) if None not in products else None,
        incomplete_steps=tuple(name for one in parts for name in one.incomplete_steps),
    )
    return joined.take(order) if (np.diff(order) < 0).any() else joined


def _moved(columns: Sequence[NDArray[np.int32]], by: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([moved_steps(column, first) for column, first in zip(columns, by, strict=True)])


def _windows(parts: Sequence[Windows]) -> Windows:
    ends = list(accumulate(len(one.bounds) for one in parts))
    return Windows(
        tuple(name for one in parts for name in one.names),
        np.concatenate([one.bounds for one in parts]),
        tuple(end - 1 for end in ends[:-1]),
    )


def _host(parts: Sequence[HostActivity]) -> HostActivity:
    """Return what the host did; between the windows, nothing is recorded."""
    parts = [one for one in parts if len(one.start_ns)]
    if not parts:
        return HostActivity(np.empty(0, np.int64), 0, np.empty(0, np.int32), ())
    labels = [label for one in parts for label in one.labels]
    first = _first([len(one.labels) for one in parts])
    start, label = list[Int64](), list[NDArray[np.int32]]()
    for one, offset in zip(parts, first, strict=True):
        start += [one.start_ns, np.array([one.end_ns])]
        label += [one.label + np.int32(offset), np.array([len(labels)], np.int32)]
    return HostActivity(
        np.concatenate(start[:-1]),
        parts[-1].end_ns,
        np.concatenate(label[:-1]).astype(np.int32),
        (*labels, HostLabel(HostCause.NOTHING_RECORDED)),
        **_concatenated(parts, "returned_ns", "step_ns"),
    )


def _products(parts: Sequence[Products], first: Sequence[int]) -> Products:
    return Products(
        tuple(call for one in parts for call in one.calls),
        _moved([one.step for one in parts], first),
        **_concatenated(parts, "recompute", "count"),
    )


def _split(parts: Sequence[Split], timeline: Timeline) -> Split:
    def comm(kind: str) -> CommFigures:
        rows = [one.comm.get(kind) for one in parts]
        nothing = [np.zeros(len(one.names), np.int64) for one in parts]
        columns = CommFigures.__struct_fields__
        return CommFigures(
            *(
                np.concatenate(
                    [none if row is None else getattr(row, column) for row, none in zip(rows, nothing, strict=True)]
                )
                for column in columns
            )
        )

    return Split(
        parts[0].rank,
        parts[0].device,
        timeline.windows.names,
        {name: np.concatenate([one.figures[name] for one in parts]) for name in parts[0].figures},
        {kind: comm(kind) for kind in sorted({kind for one in parts for kind in one.comm})},
        tuple(dict.fromkeys(premise for one in parts for premise in one.lacks)),
    )


def _flops(parts: Sequence[StepFlops]) -> StepFlops:
    most = max(parts, key=lambda one: float(one.hardware.sum()))
    return replace(most, **_concatenated(parts, "hardware", "model"))
