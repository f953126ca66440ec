"""What HTA's analyses can be told, and which of it each takes."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["ANALYSES", "Description", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The choices; nothing where the user made none, so that HTA's own defaults hold."""

    ranks: tuple[int, ...] = ()
    """The ranks to look at; all that are there without."""
    include_last_step: bool | None = None
    """HTA leaves the last ProfilerStep out."""
    rounding: bool | None = None
    """Whether fractions of µs are rounded, starts up and ends down; without, as HTA is set."""
    num_kernels: int | None = None
    duration_ratio: float | None = None
    memory_kernels: bool | None = None
    cpu: bool | None = None
    """User annotations as the CPU went through them, not as their kernels ran on the GPU."""
    streams: tuple[int, ...] = ()
    kernel_delay: int | None = None
    """µs between two kernels up to which idleness is the launching of kernels."""
    intervals: bool | None = None
    """Also the statistics of idle intervals."""
    runtime_cutoff: int | None = None
    launch_delay_cutoff: int | None = None
    series: bool | None = None
    """Also the time series that a summary is of."""
    max_queue_length: int | None = None
    annotation: str | None = None
    instance: tuple[int, int] | None = None
    """First and last instance of the annotation, counted from 0."""
    data_loading: tuple[str, ...] = ()
    """Regular expressions of the CPU events that load data."""
    operator: str | None = None
    min_length: int | None = None
    top: int | None = None
    against_ranks: tuple[int, ...] = ()
    iterations: tuple[int, ...] = ()
    against_iterations: tuple[int, ...] = ()
    device: str | None = None
    short_names: bool | None = None
    overlay: str | None = None
    """A folder, for the trace with the result in it."""

    def chosen_options(self) -> list[str]:
        """Name what the user chose."""
        return [field.name for field in fields(self) if getattr(self, field.name) not in (None, ())]


@dataclass(frozen=True, slots=True)
class Description:
    """One of HTA's analyses, as far as it can be told without HTA."""

    summary: str
    """A line on what it answers."""
    needs: str
    """What a recording must hold for it, for the message when it fails."""
    option_names: tuple[str, ...] = ()
    """Options of its own, beside those that all take."""
    one_rank: bool = False
    """Whether it looks at a single rank, the first if none is named."""
    has_plots: bool = True
    """Whether HTA draws a picture of it."""


_GPU = "GPU kernels in every rank's file"

ANALYSES = {
    "temporal-breakdown": Description("Each rank's GPU time: idle, compute, and neither.", _GPU),
    "overlap": Description("How much of each rank's communication lies under compute.", _GPU),
    "kernel-breakdown": Description(
        "The time of each kind of kernel, and of the longest kernels of each kind.",
        f"{_GPU}, and to be drawn (--html) all ranks from 0 on",
        ("num_kernels", "duration_ratio", "memory_kernels"),
    ),
    "annotation-breakdown": Description(
        "The time under each user annotation, on the GPU or (--cpu) on the CPU.",
        "user annotations (record_function), and to be drawn (--html) all ranks from 0 on",
        ("num_kernels", "duration_ratio", "cpu"),
    ),
    "idle-breakdown": Description(
        "Each stream's idle time: waiting for the host, for the next kernel, or for something else.",
        "GPU kernels with the calls that launched them",
        ("streams", "kernel_delay", "intervals"),
    ),
    "launch-statistics": Description(
        "For each kernel launch the CPU's time, the GPU's time and the delay between.",
        "CUDA launch calls and the kernels that they launched",
        ("memory_kernels", "runtime_cutoff", "launch_delay_cutoff"),
    ),
    "queue-length": Description(
        "How many operations wait on each stream, and how long a full queue blocked the host.",
        "launch calls that each have one GPU event",
        ("series", "max_queue_length"),
        has_plots=False,
    ),
    "memory-bandwidth": Description(
        "The bandwidth of copies and sets between host and device.",
        "copies that give their bandwidth",
        ("series",),
        has_plots=False,
    ),
    "critical-path": Description(
        "What bounds a step: the longest chain through CPU and GPU, and what each link of it is.",
        "launch calls, kernels and steps, best with CUDA synchronization events (enable_cuda_sync_events)",
        ("annotation", "instance", "data_loading", "overlay"),
        one_rank=True,
        has_plots=False,
    ),
    "frequent-sequences": Description(
        "The sequences of kernels that an operator (--operator) launches most often.",
        "the operator, enough kernels launched from it (--min-length), and times that nest: where the file has "
        "fractions of µs, HTA's rounding makes some events end before they start; --no-rounding keeps them",
        ("operator", "min_length", "top", "overlay"),
        one_rank=True,
    ),
    "trace-diff": Description(
        "Operators and kernels that came, went, or took another time in a second run (--against).",
        "ProfilerStep marks in both runs",
        ("against_ranks", "iterations", "against_iterations", "device", "short_names"),
    ),
}
"""The analyses by the names that the command line gives them."""
