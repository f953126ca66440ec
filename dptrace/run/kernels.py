"""What a run's devices compute: tables by kernel, operator, shape, module, annotation or phase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dptrace.core.patterns import matches
from dptrace.errors import DptraceError, UsageError
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.analysis.findings.finding import Finding
    from dptrace.analysis.kernels.attribution import LaunchFigures
    from dptrace.analysis.kernels.summary import KernelSummary
    from dptrace.timeline.host_calls import OperatorCalls

SORTS = {
    "total": "total_ns",
    "count": "count",
    "mean": "mean_ns",
    "p95": "p95_ns",
    "delay": "launch_delay_ns",
    "tflops": "tflops",
    "self": "self_ns",
}
"""Columns that rows are sorted by, largest first, by the name of the order."""
_NAMES = (
    "call",
    "kernel",
    "name",
    "operator",
    "forward_operator",
    "outermost_operator",
    "module",
    "layer",
    "source",
    "code",
    "fx_nodes",
    "annotation",
    "phase",
)


def kinds_of(name: str) -> tuple[Kind, ...]:
    """Return the kinds of intervals that a name stands for: ``compute``, ``communication``, ``memory`` or ``all``.

    Raises:
        UsageError: it is none of them.
    """
    if name == "all":
        return tuple(Kind)
    names = {kind.name.lower(): (kind,) for kind in Kind}
    if name not in names:
        raise UsageError(f"There is no kind {name!r}. Choose from all, {', '.join(names)}.")
    return names[name]


NEEDS_PROVENANCE = (
    "Rows by source need the files that inductor writes while it compiles. Record with INDUCTOR_PROVENANCE=1 and "
    "TORCH_TRACE=FOLDER in the environment, then name that folder"
)


def kernel_summary(
    run: Run, by: str, kind: str = "all", per_rank: bool = False, provenance: str | Path | None = None
) -> KernelSummary:
    """Summarize a run as :meth:`dptrace.Run.kernel_summary` does, with the totals that the rows add up to."""
    from dptrace.analysis.kernels.grouping import GROUPINGS
    from dptrace.analysis.kernels.summary import summarize

    if by not in GROUPINGS:
        raise UsageError(f"Kernels can't be listed by {by!r}. Choose from {', '.join(GROUPINGS)}.")
    if (by == "source") != (provenance is not None):
        raise UsageError(f"{NEEDS_PROVENANCE}: provenance=FOLDER, with by='source'.")
    _check_intervals(run)
    summary = summarize(
        run.timelines,
        lambda timeline: operator_calls_of(run, timeline),
        by,
        kinds_of(kind),
        per_rank,
        run.has_selected_steps,
        [device.exposed_ns for device in run.devices],
        provenance,
    )
    return _with_roofline(run, summary) if by == "operator-shape" else summary


def _with_roofline(run: Run, summary: KernelSummary) -> KernelSummary:
    """Add to rows by operator and shape the shares of the GPU's peaks, and what all of them compute."""
    from dptrace.analysis.kernels.summary import counted_flops, roof_of, with_roofline

    roof = roof_of(run.timelines, None if run.workload is None else run.workload.peak_tflops)
    rows = [with_roofline(row, roof) for row in summary.rows]
    return replace(summary, rows=rows, flops=counted_flops(rows, summary.wall_ns, roof))


def detected_in_compute(run: Run) -> tuple[Finding, ...]:
    """Return the findings on a run's compute, without gains.

    Raises:
        DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
    """
    from dptrace.analysis.compute_findings.detect import compute_findings

    _check_intervals(run)
    timelines = [timeline for timeline in run.timelines if not timeline.on_cpu]
    return compute_findings(timelines, CallsOf(run, timelines))


class CallsOf(msgspec.Struct, frozen=True):
    """The operators and labels of the ranks of some timelines, which are read as they are asked for."""

    run: Run
    timelines: Sequence[Timeline]

    def __iter__(self) -> Iterator[OperatorCalls]:
        return (operator_calls_of(self.run, timeline) for timeline in self.timelines)


def _check_intervals(run: Run) -> None:
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out.")


def operator_calls_of(run: Run, timeline: Timeline) -> OperatorCalls:
    """Return the operators and labels of a timeline's rank.

    Raises:
        DptraceError: its file can't be read again.
    """
    from dptrace.timeline.host_calls import OPERATOR_CALLS

    calls = run.read_again(timeline, OPERATOR_CALLS)
    if calls is None:
        raise DptraceError(
            f"{timeline.path or run.path}: can't be read again for its operators (a pipe, or the file has changed or "
            "gone). Open the run from files; `--by kernel` and `--by phase` need no second reading."
        )
    return calls


def launch_table(run: Run, per_rank: bool = False) -> tuple[list[dict[str, Any]], list[LaunchFigures]]:
    """Return the host time of each call, and the launch figures of each device."""
    from dptrace.analysis.kernels.attribution import host_rows, launch_figures

    _check_intervals(run)
    if run.rereader is None:
        return [], [launch_figures(timeline) for timeline in run.timelines]
    recorded = [operator_calls_of(run, timeline) for timeline in run.timelines]
    figures = [launch_figures(*pair) for pair in zip(run.timelines, recorded, strict=True)]
    return host_rows(run.timelines, recorded, per_rank), figures


def select_rows(rows: Sequence[dict[str, Any]], match: str | None, sort: str, top: int | None) -> list[dict[str, Any]]:
    """Return the rows with a name that matches a regular expression, sorted, the first *top* of them."""
    column = SORTS[sort]
    names = [row[key] for row in rows for key in _NAMES if row.get(key) is not None]
    fits = {name for name, fit in zip(names, matches(match or "", names, "--match", re.IGNORECASE), strict=True) if fit}
    chosen = [row for row in rows if any(row.get(key) in fits for key in _NAMES)]
    return sorted(chosen, key=lambda row: -(row[column] or 0))[:top]


def flat_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame whose lists are JSON texts, for CSV."""
    import json

    import pandas as pd

    return pd.DataFrame(
        [{name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]
    )
