"""The methods of a run that return its memory as pandas frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptrace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.run.memory import MemorySource

__all__ = ["MemoryTables"]


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
