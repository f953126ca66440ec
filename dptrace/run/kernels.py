"""What a run's devices compute: tables by kernel, operator, shape, module, annotation or phase."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from dptrace.core.patterns import matches
from dptrace.errors import DptraceError, UsageError
from dptrace.timeline.model import Kind, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.analysis.findings.finding import Finding
    from dptrace.analysis.kernels.attribution import LaunchFigures
    from dptrace.analysis.kernels.summary import KernelSummary
    from dptrace.analysis.per_gpu.device import DeviceFigures
    from dptrace.run.utilization import Workload
    from dptrace.timeline.host_calls import OperatorCalls, Rereader, Result, SecondPass

__all__ = [
    "SORTS",
    "KernelTables",
    "compute_findings_of",
    "flat_frame",
    "kernel_summary",
    "kinds_of",
    "launch_table",
    "operator_calls_of",
    "select_rows",
]

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
_LAUNCH_COLUMNS = ("call", "kind", "count", "self_ns", "total_ns", "mean_ns", "share_of_step", "launches")
_NAMES = (
    "call",
    "kernel",
    "name",
    "operator",
    "forward_operator",
    "outermost_operator",
    "module",
    "layer",
    "annotation",
    "phase",
)


class _Run(Protocol):
    """What the tables need of a run."""

    @property
    def path(self) -> str: ...

    @property
    def timelines(self) -> tuple[Timeline, ...]: ...

    @property
    def devices(self) -> tuple[DeviceFigures, ...]: ...

    @property
    def figures_only(self) -> bool: ...

    @property
    def rereader(self) -> Rereader | None: ...

    @property
    def has_selected_steps(self) -> bool: ...

    @property
    def workload(self) -> Workload | None: ...

    @property
    def gains(self) -> bool: ...

    def find_gains(self, found: Sequence[Finding], *, stragglers: bool = True) -> tuple[Finding, ...]: ...

    def read_again(self, timeline: Timeline, reading: SecondPass[Result]) -> Result | None: ...


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


class KernelTables:
    """The methods of a run that list what its devices compute."""

    def kernel_summary(self: _Run, by: str = "kernel", kind: str = "all", per_rank: bool = False) -> pd.DataFrame:
        """Return where the devices' time goes, by kernel or by what launched it: a row per group, most time first.

        Args:
            by: ``kernel``, ``operator``, ``operator-shape``, ``module``, ``layer``, ``annotation`` or ``phase``.
                All but ``kernel`` and ``phase`` read the files of the run again.
            kind: ``all``, ``compute``, ``communication`` or ``memory``.
            per_rank: give each rank rows of its own.

        Columns:
            kernel, kind (str): short name, and ``compute``, ``communication`` or ``memory``.
            count, kernels, recompute_count (int): calls, intervals, and calls that repeat forward work in backward.
            total_ns, kernel_ns (int, ns): sum of durations, and the same without overlaps within a call.
            compute_ns, communication_ns, memory_ns (int, ns): total_ns by kind.
            exposed_comm_ns, recompute_ns (int, ns): communication without compute, and forward work repeated.
            forward_ns, backward_ns, optimizer_ns, other_ns (int, ns): compute_ns by phase.
            mean_ns, p50_ns, p95_ns (float, ns): of a call's part of kernel_ns.
            step_ns (int, ns): the part of total_ns launched within steps.
            share_of_step, share_of_compute (float or None): from 0 to 1.
            main_phase (str or None): the phase of most of its compute.
            share_of_phase (float or None): its share of all compute in that phase.
            launch_delay_ns (float or None, ns): median from launch to start; None where unknown.
            max_over_median (float or None): the largest total_ns of a rank over the median one.
            slowest_rank (int or None): the rank with the largest; None for one rank.
            name (str): the kernel's whole name.

        With another *by*, the columns that name a row are others; docs/reference/json.md lists them.

        Raises:
            DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
            UsageError: there is no such *by* or *kind*.
        """
        import pandas as pd

        return pd.DataFrame(kernel_summary(self, by, kind, per_rank).rows)

    def compute_findings(self: _Run) -> pd.DataFrame:
        """Return what makes compute slower than it could be, most expensive first: a row each; none on a CPU.

        The files of the run are read again, for operators and their shapes. Two findings may count the same time.

        Columns:
            kind (str): ``small_products``, ``elementwise_chains``, ``short_kernels``, ``slow_gpu`` …
            text … evidence: as in :meth:`findings`.

        Raises:
            DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
        """
        from dptrace.run.tables import finding_frame

        return finding_frame(compute_findings_of(self))

    def launches(self: _Run, per_rank: bool = False) -> pd.DataFrame:
        """Return where the time of the launching threads goes: a row per operator and runtime call.

        A run that was built in memory has none.

        Columns:
            call, kind (str): its name, and ``operator``, ``runtime``, ``allocator`` or ``synchronizing``.
            count (int): calls within the steps.
            self_ns, total_ns (int, ns): host time without and with the calls inside it.
            mean_ns (float, ns): mean of total_ns.
            share_of_step (float or None): self_ns as a share of the steps' length.
            launches (int): intervals on a device that it launched.

        Raises:
            DptraceError: as for :meth:`kernel_summary`.
        """
        import pandas as pd

        columns = [*(["rank"] if per_rank else []), *_LAUNCH_COLUMNS]
        return pd.DataFrame(launch_table(self, per_rank)[0], columns=columns)


def kernel_summary(run: _Run, by: str, kind: str = "all", per_rank: bool = False) -> KernelSummary:
    """Summarize a run as :meth:`KernelTables.kernel_summary` does, with the totals that the rows add up to."""
    from dptrace.analysis.kernels.grouping import GROUPINGS
    from dptrace.analysis.kernels.summary import summarize

    if by not in GROUPINGS:
        raise UsageError(f"Kernels can't be listed by {by!r}. Choose from {', '.join(GROUPINGS)}.")
    _check_intervals(run)
    summary = summarize(
        run.timelines,
        lambda timeline: operator_calls_of(run, timeline),
        by,
        kinds_of(kind),
        per_rank,
        run.has_selected_steps,
        [device.exposed_ns for device in run.devices],
    )
    return _with_roofline(run, summary) if by == "operator-shape" else summary


def _with_roofline(run: _Run, summary: KernelSummary) -> KernelSummary:
    """Add to rows by operator and shape the shares of the GPU's peaks, and what all of them compute."""
    from dptrace.analysis.kernels.summary import counted_flops, roof_of, with_roofline

    roof = roof_of(run.timelines, None if run.workload is None else run.workload.peak_tflops)
    rows = [with_roofline(row, roof) for row in summary.rows]
    return replace(summary, rows=rows, flops=counted_flops(rows, summary.wall_ns, roof))


def compute_findings_of(run: _Run) -> tuple[Finding, ...]:
    """Return the findings on a run's compute, as :meth:`KernelTables.compute_findings` does."""
    from dptrace.analysis.compute_findings.detect import compute_findings

    _check_intervals(run)
    timelines = [timeline for timeline in run.timelines if not timeline.on_cpu]
    found = compute_findings(timelines, [operator_calls_of(run, timeline) for timeline in timelines])
    return run.find_gains(found, stragglers=False) if run.gains and found else found


def _check_intervals(run: _Run) -> None:
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out.")


def operator_calls_of(run: _Run, timeline: Timeline) -> OperatorCalls:
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


def launch_table(run: _Run, per_rank: bool = False) -> tuple[list[dict[str, Any]], list[LaunchFigures]]:
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
    names = [name for row in rows for key in _NAMES if (name := row.get(key)) is not None]
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
