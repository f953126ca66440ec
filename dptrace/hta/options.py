"""The options of HTA's analyses, and which analysis takes which."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["ANALYSES", "Description", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options; None or empty leaves HTA's defaults."""

    ranks: tuple[int, ...] = ()
    """The ranks to analyze; empty for all."""
    include_last_step: bool | None = None
    """Include the last ProfilerStep, which HTA leaves out by default."""
    rounding: bool | None = None
    """Round fractions of µs, starts up and ends down; None uses HTA's setting."""
    num_kernels: int | None = None
    duration_ratio: float | None = None
    memory_kernels: bool | None = None
    cpu: bool | None = None
    """Time user annotations on the CPU, instead of their kernels on the GPU."""
    streams: tuple[int, ...] = ()
    kernel_delay: int | None = None
    """Longest gap between two kernels, in µs, that counts as kernel launch delay."""
    intervals: bool | None = None
    """Also return statistics of idle intervals."""
    runtime_cutoff: int | None = None
    launch_delay_cutoff: int | None = None
    series: bool | None = None
    """Also return the time series behind a summary."""
    max_queue_length: int | None = None
    annotation: str | None = None
    instance: tuple[int, int] | None = None
    """First and last instance of the annotation, counted from 0."""
    data_loading: tuple[str, ...] = ()
    """Regular expressions for the CPU events that load data."""
    operator: str | None = None
    min_length: int | None = None
    top: int | None = None
    against_ranks: tuple[int, ...] = ()
    iterations: tuple[int, ...] = ()
    against_iterations: tuple[int, ...] = ()
    device: str | None = None
    short_names: bool | None = None
    overlay: str | None = None
    """Folder for a copy of the trace with the result added."""

    def chosen_options(self) -> list[str]:
        """Return the names of the options that the user set."""
        return [field.name for field in fields(self) if getattr(self, field.name) not in (None, ())]


@dataclass(frozen=True, slots=True)
class Description:
    """One of HTA's analyses, described without importing HTA."""

    summary: str
    """One line on what it computes."""
    needs: str
    """What a recording must contain, for the message when the analysis fails."""
    option_names: tuple[str, ...] = ()
    """Its own options, in addition to those that all analyses take."""
    one_rank: bool = False
    """Whether it analyzes a single rank: by default, the first."""
    has_plots: bool = True
    """Whether HTA draws a figure for it."""


_GPU = "GPU kernels in every rank's file"

ANALYSES = {
    "temporal-breakdown": Description("GPU time of each rank: idle, compute, and other.", _GPU),
    "overlap": Description("Share of each rank's communication that compute overlaps.", _GPU),
    "kernel-breakdown": Description(
        "Time of each kind of kernel, and of the longest kernels of each kind.",
        f"{_GPU}; for a drawing (--html), all ranks from 0 on",
        ("num_kernels", "duration_ratio", "memory_kernels"),
    ),
    "annotation-breakdown": Description(
        "Time in each user annotation, on the GPU or (--cpu) on the CPU.",
        "user annotations (record_function); for a drawing (--html), all ranks from 0 on",
        ("num_kernels", "duration_ratio", "cpu"),
    ),
    "idle-breakdown": Description(
        "Idle time of each stream: waiting for the host, for the next kernel, or other.",
        "GPU kernels and the calls that launched them",
        ("streams", "kernel_delay", "intervals"),
    ),
    "launch-statistics": Description(
        "CPU time, GPU time and launch delay of each kernel launch.",
        "CUDA launch calls and the kernels that they launched",
        ("memory_kernels", "runtime_cutoff", "launch_delay_cutoff"),
    ),
    "queue-length": Description(
        "Number of operations queued on each stream, and the time that a full queue blocked the host.",
        "launch calls with one GPU event each",
        ("series", "max_queue_length"),
        has_plots=False,
    ),
    "memory-bandwidth": Description(
        "Bandwidth of copies and sets between host and device.",
        "copies with a recorded bandwidth",
        ("series",),
        has_plots=False,
    ),
    "critical-path": Description(
        "Critical path of a step: the longest chain of dependent work on CPU and GPU, by kind.",
        "launch calls, kernels and steps, best with CUDA synchronization events (enable_cuda_sync_events)",
        ("annotation", "instance", "data_loading", "overlay"),
        one_rank=True,
        has_plots=False,
    ),
    "frequent-sequences": Description(
        "Kernel sequences that an operator (--operator) launches most often.",
        "the operator, enough kernels launched from it (--min-length), and times that nest: where the file has "
        "fractions of µs, HTA's rounding makes some events end before they start; --no-rounding avoids that",
        ("operator", "min_length", "top", "overlay"),
        one_rank=True,
    ),
    "trace-diff": Description(
        "Operators and kernels that were added, removed, or changed in time in a second run (--against).",
        "ProfilerStep marks in both runs",
        ("against_ranks", "iterations", "against_iterations", "device", "short_names"),
    ),
}
"""The analyses by their names on the command line."""
