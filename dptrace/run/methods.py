"""Further methods of a run, as base classes: what-ifs, memory, utilization, and names of earlier versions."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from dptrace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self, Unpack

    from dptrace.analysis.findings.finding import Finding
    from dptrace.api import CriticalPath, ExtraOptions, Replay, WhatIf
    from dptrace.run.cross_rank import CrossRankAnalysis
    from dptrace.run.memory import MemorySource
    from dptrace.run.utilization import Utilization, Workload

__all__ = ["MemoryTables", "RenamedMethods", "UtilizationTables", "WhatIfs"]


# The methods of a run that replay it.


class WhatIfs:
    """What a run would take if something were different."""

    @cached_property
    def replay(self) -> Replay:
        """The run prepared for what-ifs: its dependency graph, built once from a second reading of the files."""
        from dptrace.api import replay

        return replay(cast(Any, self))

    def whatif(
        self,
        *,
        compute: float | None = None,
        bandwidth: float | str | None = None,
        kernels: Mapping[str, float] | None = None,
        straggler: Mapping[int, int] | None = None,
        no_straggler: bool = False,
        no_host_delay: bool = False,
        perfect_overlap: bool = False,
        **others: Unpack[ExtraOptions],
    ) -> WhatIf:
        """Predict what a step would take if something were different; see :func:`dptrace.whatif`."""
        from dptrace.api import whatif

        return whatif(
            cast(Any, self),
            compute=compute,
            bandwidth=bandwidth,
            kernels=kernels,
            straggler=straggler,
            no_straggler=no_straggler,
            no_host_delay=no_host_delay,
            perfect_overlap=perfect_overlap,
            **others,
        )

    def with_gains(self) -> Self:
        """Return the run whose findings say what a step would gain without each: a replay for each.

        Additional columns of :meth:`Run.findings` and :meth:`Run.compute_findings`:
            gain_ns (int or None, ns): how much earlier the run would end without the finding, per step.
            gain_low_ns, gain_high_ns (int or None, ns): its range.
            gain_of_median_step_ns (int or None, ns): how much shorter the median step would be.
            gain_next_ns (int or None, ns): what is left of it after the findings above.
            gain_share (float or None): that, as a share of the mean step.
            gain_change (str or None): what is different in the replay; None where no change removes the finding.
            gain_reason (str or None): why there is no number, or why it is far below cost_ns.
            gain_doubts (list): kinds of the doubts, as in :meth:`whatif`.

        A run that can't be replayed has the reason instead of gains. Pages and reports of the run show gains.
        """
        from dptrace.api import with_gains

        return cast("Self", with_gains(cast(Any, self)))

    def gained(self, across: CrossRankAnalysis) -> CrossRankAnalysis:
        """Return the analysis of this run, with gains where the run has them: findings on some steps are new."""
        if not cast(Any, self).gains or all(finding.gain is not None for finding in across.findings):
            return across
        # The findings are about this run, whose own analysis is not there before this returns.
        plain: Any = dataclasses.replace(cast(Any, self), gains=False)
        vars(plain)["cross_rank"] = across
        return replace(across, findings=plain.find_gains(across.findings))

    def find_gains(self, found: Sequence[Finding], *, stragglers: bool = True) -> tuple[Finding, ...]:
        """Return findings of this run with what each would gain; those on stragglers are then made by the replay."""
        from dptrace.api import find_gains

        return find_gains(cast(Any, self), found, stragglers=stragglers)

    def critical_path(self, step: str | int | None = None) -> CriticalPath:
        """Find what sets the length of a step; see :func:`dptrace.critical_path`."""
        from dptrace.api import critical_path

        return critical_path(cast(Any, self), step)


# The methods of a run that return its memory as pandas frames.


class MemoryTables:
    """Frames of the memory that the ranks used, where their files have memory events; else without rows.

    Record them with ``dptrace record --memory``, or with ``profile_memory=True`` of torch.profiler. The files are read
    again for the first of these frames.
    """

    def memory(self: MemorySource) -> pd.DataFrame:
        """Return the most memory that each step and phase used: a row per rank, device, step and phase.

        Columns:
            rank, device (int): rank number, and index of its GPU; device is -1 for the CPU's memory.
            step (str): name of the step.
            phase (str): ``forward``, ``backward``, ``optimizer``, ``other``, or ``all`` for the whole step.
            peak_bytes (int, bytes): the most that was allocated; on a CPU beyond the start of the recording.
            reserved_bytes (int, bytes): the most that torch's allocator held; 0 on a CPU.
        """
        from dptrace.run.memory import device_reports, peak_rows
        from dptrace.run.tables import frame

        return frame(peak_rows(device_reports(self)), _PEAK_COLUMNS)

    def memory_usage(self: MemorySource, by: str = "kind") -> pd.DataFrame:
        """Return what memory was used for: a row per rank, device and kind, operator or module.

        Columns:
            rank, device (int): as in :meth:`memory`.
            name (str): the kind, operator or module; empty for no operator or module.
            peak_bytes (int, bytes): bytes alive at the device's peak.
            blocks (int): number of blocks alive at the peak; those from before the recording are not counted.
            allocated_bytes (int, bytes): bytes of all allocations.
            allocations (int): number of allocations.

        Args:
            by: ``kind`` (gradients, activations …), ``operator`` or ``module``.

        Raises:
            UsageError: *by* is something else.
        """
        from dptrace.run.memory import BY, device_reports, usage_rows
        from dptrace.run.tables import frame

        if by not in BY:
            raise UsageError(f"memory can't be grouped by {by!r}; choose from {', '.join(BY)}.")
        return frame(usage_rows(device_reports(self), by), _USAGE_COLUMNS)

    def memory_blocks(self: MemorySource) -> pd.DataFrame:
        """Return the blocks that were alive at each device's peak, the largest first: a row each.

        Columns:
            rank, device (int): as in :meth:`memory`.
            bytes (int, bytes): size of the block.
            kind (str): ``gradients``, ``activations`` …; docs/definitions.md defines them.
            operator, module (str): what allocated it; empty where nothing shows it.
            step (str or None): name of the step that allocated it; None outside all steps.
            phase (str or None): phase that allocated it.
            born_ns (Int64, ns): when it was allocated, on the rank's own clock; <NA> before the recording.
        """
        from dptrace.run.memory import block_rows, device_reports
        from dptrace.run.tables import frame

        rows = frame(block_rows(device_reports(self)), _BLOCK_COLUMNS)
        return rows.astype({"born_ns": "Int64"})

    def memory_over_time(self: MemorySource) -> pd.DataFrame:
        """Return the memory after each allocation and free: a row per event.

        Columns:
            rank, device (int): as in :meth:`memory`.
            time_ns (int, ns): on the rank's own clock.
            bytes (int, bytes): size of the block; below 0 for a free.
            allocated_bytes (int, bytes): allocated on the device after the event, as the file has it.
            reserved_bytes (int, bytes): held by torch's allocator; 0 on a CPU.
        """
        import pandas as pd

        from dptrace.run.memory import device_reports
        from dptrace.run.tables import frame

        parts = []
        for report in device_reports(self):
            chosen = report.levels[report.levels > 0] - 1
            events = report.device.events
            columns = (events.time_ns, events.bytes, events.allocated, events.reserved)
            values = dict(zip(_TIME_COLUMNS[2:], (column[chosen] for column in columns), strict=True))
            parts.append(pd.DataFrame({"rank": report.rank, "device": report.device.device, **values}))
        return pd.concat(parts, ignore_index=True) if parts else frame([], _TIME_COLUMNS)

    def allocator_calls(self: MemorySource) -> pd.DataFrame:
        """Return the calls of the GPU's runtime that allocate or free memory: a row per rank and name.

        Columns:
            rank (int): rank number.
            name (str): ``cudaMalloc``, ``cudaFree`` …
            count (int): number of calls.
            in_steps (int): number of those within steps; each may wait for the GPU.
            total_ns (int, ns): time in the calls.
        """
        from dptrace.run.memory import call_rows, device_reports
        from dptrace.run.tables import frame

        return frame(call_rows(device_reports(self)), _CALL_COLUMNS)


_PEAK_COLUMNS = ("rank", "device", "step", "phase", "peak_bytes", "reserved_bytes")
_USAGE_COLUMNS = ("rank", "device", "name", "peak_bytes", "blocks", "allocated_bytes", "allocations")
_BLOCK_COLUMNS = ("rank", "device", "bytes", "kind", "operator", "module", "step", "phase", "born_ns")
_TIME_COLUMNS = ("rank", "device", "time_ns", "bytes", "allocated_bytes", "reserved_bytes")
_CALL_COLUMNS = ("rank", "name", "count", "in_steps", "total_ns")


# The methods of a run on what its steps compute.


class UtilizationTables:
    """Adds :meth:`utilization` to a run."""

    workload: Workload | None

    @cached_property
    def efficiency(self) -> Utilization:
        """FLOP/s, MFU, HFU, samples and tokens per second, over all steps and of each; see :meth:`utilization`."""
        from dptrace.run.utilization import NO_WORKLOAD, utilization_of

        return utilization_of(self, self.workload or NO_WORKLOAD)  # type: ignore[arg-type]

    def efficiency_dict(self) -> dict[str, Any]:
        """Return :attr:`efficiency` as an entry of :meth:`Run.to_dict`; nothing where nothing is known."""
        return {"utilization": self.efficiency.to_dict()} if self.efficiency.known else {}

    def utilization(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        samples: float | None = None,
        peak_tflops: float | None = None,
    ) -> pd.DataFrame:
        """Return what each step computes, and the share of its GPU's peak: a row per rank, device and step.

        What is not given comes from run.json, the peak from the table of GPUs.

        Args:
            parameters: of the whole model.
            tokens: of one step, over all ranks.
            samples: of one step, over all ranks.
            peak_tflops: dense peak of one GPU, in TFLOP/s.

        Columns:
            rank, device (int): as in :meth:`steps`.
            step (str): name of the step.
            wall_ns (int, ns): length of the step.
            model_flops, hardware_flops (float): FLOPs of the model, and with recomputation; NaN where unknown.
            tflops (float, TFLOP/s): model_flops over wall_ns.
            mfu, hfu (float): model and hardware FLOPs utilization, from 0 to 1; NaN without a known peak.
            samples_per_s, tokens_per_s (float, 1/s): of all ranks together; NaN where the batch is unknown.
        """
        from dptrace.run.tables import frame
        from dptrace.run.utilization import COLUMNS, Workload, utilization_of

        given = Workload(parameters, tokens, samples, peak_tflops)
        found = utilization_of(self, given)  # type: ignore[arg-type]
        table = frame((step.to_dict() for step in found.steps), COLUMNS)
        return table.astype(dict.fromkeys(COLUMNS[4:], float))


# Names of a run's methods in version 0.1, which warn; the next release drops them.


class RenamedMethods:
    """The methods and attributes under their old names."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what a name of version 0.1 is called now; deprecated."""
            if name not in _RENAMED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _warn(name, _RENAMED[name])
            return getattr(self, _RENAMED[name])


_RENAMED = {
    "actions": "pipeline_actions",
    "beside": "analyze_cross_rank",
    "clocks": "clock_offsets",
    "diff": "compare",
    "idle": "idle_causes",
    "info": "metadata",
    "intervals": "kernels",
    "matches": "matched_collectives",
    "together": "cross_rank",
    "view": "show",
}
"""Names of version 0.1, kept for one release."""


def _warn(old: str, new: str) -> None:
    warnings.warn(f"Run.{old} is now Run.{new}; the next release drops the old name.", DeprecationWarning, stacklevel=3)
