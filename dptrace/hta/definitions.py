"""Holistic Trace Analysis's (HTA's) temporal breakdown and overlap, computed by dptrace from HTA's definitions.

Use them to check dptrace against HTA. They differ from the split of ``dptrace analyze``: all steps but the last are
pooled, everything with a stream counts as GPU work (synchronization too), and times are first rounded to whole µs. The
column names are HTA's. Source: traceinsight 0.6.1, ``hta/common/trace.py``, ``hta/analyzers/breakdown_analysis.py``
and ``communication_analysis.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dptrace.errors import DptraceError, TraceError
from dptrace.hta.event_frame import ArgColumn, EventFrame, read_ranks
from dptrace.readers.discovery import Sources

COMPATIBLE_WITH = "0.6.1"
"""The release of HTA whose figures these are."""

_ARGUMENTS = (ArgColumn("stream", "stream", -1), ArgColumn("correlation", "correlation", -1))
# From hta/common/types.py, in the order in which get_kernel_type of hta/utils/utils.py applies them.
_COMMUNICATION = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
_MEMORY = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")
_NO_COMPUTE = re.compile(
    r"(^nccl)|(.*Memcpy)|(.*Memset)|(.*dma)|(^.*Sync)|(^Stream Wait Event)|(cuda.*LaunchKernel)|(^runFunction)|(^hip)"
    r"|(^job_exe)|(^packet)|(^pe_exe)|(^cpum_exe_subgraph)|(^hccl)|(^collective_subgraph_execution)"
)
_STEP = re.compile(r"^ProfilerStep#(\d+)")
_SYNCHRONISATION = ("Event Sync", "Context Sync")

_Numbers = NDArray[Any]
_Intervals = tuple[_Numbers, _Numbers]
"""Starts and ends in µs, as HTA merges them: sorted by start; an end may lie before its start (see :func:`_merged`)."""


@dataclass(frozen=True, slots=True)
class HtaCompat:
    """HTA's figures of a run."""

    frame: pd.DataFrame
    """A row for each rank, in µs and percent, with HTA's column names."""
    rounded: bool
    """Whether times were rounded to whole µs first."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        records = self.frame.to_dict("records")
        ranks = [{key: None if value != value else value for key, value in row.items()} for row in records]
        return {"schema": 1, "hta": COMPATIBLE_WITH, "rounded": self.rounded, "ranks": ranks, "notes": list(self.notes)}


def hta_compat(found: Sources, strict: bool = False) -> HtaCompat:
    """Compute HTA's temporal breakdown and overlap of the files that ``discovery.find`` found.

    ``HTA_DISABLE_NS_ROUNDING=1`` in the environment keeps fractions of µs, as it does in HTA.

    Args:
        strict: treat damage in a file as an error instead of a note.

    Raises:
        DptraceError: a file cannot be read, two files have the same rank, or no file has GPU work.
    """
    rounded = os.environ.get("HTA_DISABLE_NS_ROUNDING") != "1"
    files, notes = read_ranks(found, _ARGUMENTS, rounded, strict)
    for file in files.values():
        _refuse_mtia(file)
    origin = min(file.frame["ts"].min() for file in files.values())
    # HTA counts the names of steps over all ranks: with at most one step, none is left out.
    steps = len({symbol for file in files.values() for symbol in file.symbols if _STEP.match(symbol)})
    figures = {rank: _figures(file, origin, steps > 1) for rank, file in files.items()}
    rows = [{"rank": rank, **row} for rank, row in figures.items() if row is not None]
    if not rows:
        raise DptraceError("HTA has no figures for this run: no file contains GPU work. Use a trace of a GPU.")
    idle = [files[rank].path for rank, row in figures.items() if row is None]
    notes += [f"{path}: contains no GPU work that HTA counts; HTA itself fails on it." for path in idle]
    return HtaCompat(_with_percents(pd.DataFrame(rows)), rounded, tuple(notes))


def _refuse_mtia(file: EventFrame) -> None:
    info = file.metadata.get("distributedInfo")
    backend = str(info.get("backend")) if isinstance(info, dict) else ""
    if "mtia:hccl" in backend or "runFunction - job_prep_and_submit_for_execution" in file.symbols:
        raise TraceError(f"{file.path}: HTA has other definitions for MTIA devices; use dptrace hta.")


def _with_percents(frame: pd.DataFrame) -> pd.DataFrame:
    overlap = frame.pop("overlap")
    for part in ("idle_time", "compute_time", "non_compute_time"):
        frame[f"{part}_pctg"] = (100 * (frame[f"{part}(us)"] / frame["kernel_time(us)"])).round(2)
    frame["comp_comm_overlap_pctg"] = (100 * overlap).round(2)
    return frame


def _figures(file: EventFrame, origin: Any, leave_last_out: bool) -> dict[str, Any] | None:
    frame, symbols = file.frame, file.symbols
    rows = _kept_rows(frame, symbols) if leave_last_out else np.arange(len(frame))
    rows = rows[frame["stream"].to_numpy()[rows] != -1]
    if not len(rows):
        return None
    start, length = (frame[column].to_numpy()[rows] for column in ("ts", "dur"))
    start = start - origin
    kind = np.array([_kind(symbol) for symbol in symbols])[frame["name"].to_numpy()[rows]]
    whole = _merged(start, length)
    # HTA's first merge sorts its frame: the breakdown's compute kernels are then sorted, but not the overlap's.
    order = np.argsort(start, kind="quicksort")
    compute = _of_kind("compute", kind[order], start[order], length[order])
    kernel_time = whole[1][-1] - whole[0][0]
    idle = kernel_time - (whole[1].sum() - whole[0].sum())
    compute_time = compute[1].sum() - compute[0].sum()
    swept = (_of_kind(name, kind, start, length) for name in ("communication", "compute"))
    return {
        "idle_time(us)": idle,
        "compute_time(us)": compute_time,
        "non_compute_time(us)": kernel_time - compute_time - idle,
        "kernel_time(us)": kernel_time,
        "overlap": _overlap(*swept),
    }


def _kind(name: str) -> str:
    if _COMMUNICATION.match(name):
        return "communication"
    if _MEMORY.match(name):
        return "memory"
    return "other" if _NO_COMPUTE.match(name) else "compute"


def _kept_rows(frame: pd.DataFrame, symbols: Sequence[str]) -> NDArray[np.int64]:
    """Return the rows that HTA keeps when it leaves the last step out, in its order.

    These are the CPU events that start before the last step, and each GPU event once per such CPU event with its
    correlation.
    """
    start, stream, correlation, name = (frame[column].to_numpy() for column in ("ts", "stream", "correlation", "name"))
    waits = [i for i, symbol in enumerate(symbols) if symbol in _SYNCHRONISATION]
    on_gpu = ((stream >= 0) & (correlation >= 0)) | np.isin(name, waits)
    if on_gpu.all():
        return np.arange(len(frame))
    marks = ~on_gpu & np.isin(name, [i for i, symbol in enumerate(symbols) if _STEP.match(symbol)])
    last = start[marks].max() if marks.any() else start[~on_gpu].min()
    cpu = np.flatnonzero(~on_gpu & (start < last))
    gpu = np.flatnonzero(on_gpu)
    launched, times = np.unique(correlation[cpu], return_counts=True)
    place = np.minimum(np.searchsorted(launched, correlation[gpu]), max(len(launched) - 1, 0))
    has_launch = launched[place] == correlation[gpu] if len(launched) else np.zeros(len(gpu), np.bool_)
    gpu, place = gpu[has_launch], place[has_launch]
    return np.concatenate((np.repeat(gpu, times[place]), cpu))


def _merged(start: _Numbers, length: _Numbers) -> _Intervals:
    """Merge intervals exactly as HTA's ``merge_kernel_intervals`` does.

    After rounding to whole µs a short event may end before it starts; HTA counts its duration as negative. The order
    of equal starts then matters, so the sort is the unstable one that pandas uses.
    """
    if not len(start):
        return start, start + length
    order = np.argsort(start, kind="quicksort")
    start, end = start[order], (start + length)[order]
    first = np.flatnonzero(np.concatenate(([True], start[1:] > np.maximum.accumulate(end)[:-1])))
    start, end = start[first], np.maximum.reduceat(end, first)
    order = np.argsort(start, kind="quicksort")
    return start[order], end[order]


def _of_kind(name: str, kind: _Numbers, start: _Numbers, length: _Numbers) -> _Intervals:
    return _merged(start[kind == name], length[kind == name])


def _overlap(communication: _Intervals, compute: _Intervals) -> float:
    """Compute the share of communication under compute, with HTA's sweep; NaN without communication."""
    whole = (communication[1] - communication[0]).sum()
    if not len(communication[0]) or not whole:
        return float("nan")
    times = np.concatenate((*communication, *compute))
    weights = np.repeat((1, -1, 2, -2), [len(edges) for edges in (*communication, *compute)])
    order = np.argsort(times, kind="quicksort")
    times, running = times[order], np.cumsum(weights[order])
    both = np.flatnonzero(running[:-1] == 3)
    return float((times[both + 1] - times[both]).sum() / whole)
