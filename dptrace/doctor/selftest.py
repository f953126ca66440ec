"""Record ten seconds of a small training on this machine, and check the recording."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dptrace.core.termination import signals_held
from dptrace.core.units import duration, plural, sanitize, share
from dptrace.errors import DptraceError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

__all__ = [
    "RecordedRun",
    "SelfTest",
    "Verdict",
    "check_clocks",
    "check_collectives",
    "check_kernels",
    "check_launch_clock",
    "check_losses",
    "check_matching",
    "check_metadata",
    "check_overhead",
    "check_phases",
    "check_ranks",
    "check_recording",
    "check_steps",
    "check_trace_folder",
    "hindrances",
    "lost_records",
    "missing_kernel_causes",
    "recording_command",
    "selftest",
]


# Why a profiler recorded no or not all kernels: from its library's messages, and from what else is on the machine.


_ADMIN_ONLY = (
    "the driver lets only administrators profile. In a container, start it with --cap-add=SYS_ADMIN and run as root; "
    "on the machine itself, put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into a file in "
    "/etc/modprobe.d and reboot, or run as root"
)
_ANOTHER_TOOL = (
    "CUPTI serves one tool at a time, and another one is attached to the process: nsys, ncu, compute-sanitizer, "
    "cuda-gdb, or a library that CUDA_INJECTION64_PATH loads. Run without it"
)
_DOES_NOT_FIT = (
    "CUPTI did not start: usually its version does not fit the driver (nvidia-smi shows the newest CUDA that the "
    "driver knows), or this is WSL or a virtual GPU where profiling is off. Update the driver, or install a torch "
    "built for an older CUDA"
)
CUPTI_ERRORS = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": _ADMIN_ONLY,
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": (
        "the hypervisor does not let this virtual GPU be profiled: ask its administrator to enable profiling for the "
        "vGPU"
    ),
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": _ANOTHER_TOOL,
    "CUPTI_ERROR_NOT_COMPATIBLE": _ANOTHER_TOOL,
    "CUPTI_ERROR_HARDWARE_BUSY": (
        "a monitoring service uses the GPU's profiling hardware, as DCGM's profiling metrics do. Pause it with dcgmi "
        "profile --pause, and --resume afterwards"
    ),
    "CUPTI_ERROR_OUT_OF_MEMORY": "CUPTI found no memory for its records. End other jobs on the GPU or free its memory",
    "CUPTI_ERROR_NOT_INITIALIZED": _DOES_NOT_FIT,
    "CUPTI_ERROR_INVALID_DEVICE": _DOES_NOT_FIT,
    "CUPTI_ERROR_NOT_SUPPORTED": _DOES_NOT_FIT,
    "CUPTI_ERROR_UNKNOWN": _DOES_NOT_FIT,
}
"""Why CUPTI fails with an error, and what to do."""

_FAILED = re.compile(r"failed with error (CUPTI_ERROR_\w+)")
"""Kineto's message. A line of advice names an error too, whatever the error was, and must not count."""
_LIBRARY = re.compile(r"(libcupti[\w.-]*): cannot open shared object file")
_TOOLS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
_LOST = (
    (
        re.compile(r"Dropped (\d+) activity records"),
        "the GPU's profiler dropped {} records, since kernels came faster than it could write them",
    ),
    (
        re.compile(r"Exceeded max GPU buffer count|activity collection was stopped early"),
        "the GPU's profiler stopped early, since its buffers were full",
    ),
)


def missing_kernel_causes(log: str) -> list[str]:
    """Return why there are no kernels, and what to do, as clauses, from the messages that Kineto wrote."""
    causes = []
    for error in dict.fromkeys(_FAILED.findall(log)):
        causes.append(f"{CUPTI_ERRORS.get(error, 'CUPTI failed')} ({error})")
    for library in dict.fromkeys(_LIBRARY.findall(log)):
        causes.append(f"{library} is missing: pip install nvidia-cuda-cupti-cu12 (or -cu13), as torch's CUDA needs")
    return causes


def hindrances(environment: Mapping[str, str], driver_parameters: str) -> tuple[str, ...]:
    """Return what here often keeps a profiler from the GPU's records, as clauses.

    Args:
        environment: this process's environment variables.
        driver_parameters: the contents of /proc/driver/nvidia/params; empty where it is missing.
    """
    found = [f"{name} is set, so another tool may be attached: unset it" for name in _TOOLS if environment.get(name)]
    if re.search(r"^RmProfilingAdminOnly: 1$", driver_parameters, re.MULTILINE):
        found.append(_ADMIN_ONLY)
    return tuple(found)


def lost_records(log: str) -> list[str]:
    """Return what the profiler's library lost, as clauses, from its messages."""
    found = []
    for pattern, clause in _LOST:
        for match in pattern.finditer(log):
            found.append(clause.format(*match.groups()))
    return list(dict.fromkeys(found))


# What a check of a recording concludes, and what it looks at.


Level = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found."""

    what: str
    """What was checked, in a word or two."""
    level: Level
    """``warning`` if figures are less exact, ``wrong`` if some are missing or false."""
    why: str
    """What was found, a sentence or more; where something is wrong, also what to do."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recording to check, and what it should contain."""

    run: Run
    ranks: int
    steps: int
    on_gpus: bool = False
    log: str = ""
    """What the ranks wrote to the terminal, which holds the messages of the profiler's library."""
    damage: str = ""
    """What the reader says about truncated, damaged or impossible data."""
    surroundings: tuple[str, ...] = ()
    """What may keep the profiler from the GPU's records here; see :func:`~dptrace.doctor.selftest.hindrances`."""

    def timelines(self) -> Iterator[Timeline]:
        """Return the timelines of the kind of device that was to be recorded."""
        return (timeline for timeline in self.run.timelines if timeline.on_cpu != self.on_gpus)


# Checks of each rank's trace: ranks, steps, kernels, phases, what was lost, and the profiler's overhead.


_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_FEW_LAUNCHES = 0.5
"""If fewer of a GPU's kernels than this share have their launch in the file, no phase can be trusted."""
_HIGH_OVERHEAD = 0.5


def check_ranks(recorded: RecordedRun) -> Verdict:
    """Check that each rank wrote a trace."""
    missing = sorted(set(range(recorded.ranks)) - set(recorded.run.ranks))
    if not missing:
        return Verdict("ranks", "ok", f"{plural(recorded.ranks, 'rank')} recorded")
    return Verdict(
        "ranks",
        "wrong",
        f"{_ranks(missing)} left no trace. See the ranks' messages in the log: a rank that dies or cannot write its "
        "file says why there",
    )


def check_steps(recorded: RecordedRun) -> Verdict:
    """Check that each trace marks the steps that were recorded."""
    counts = {timeline.rank: _marked_steps(timeline) for timeline in recorded.run.timelines}
    if all(count == recorded.steps for count in counts.values()):
        return Verdict("steps", "ok", f"{plural(recorded.steps, 'step')} marked on each rank")
    found = ", ".join(f"{count} on rank {rank}" for rank, count in counts.items() if count != recorded.steps)
    return Verdict(
        "steps",
        "wrong",
        f"{plural(recorded.steps, 'step')} should be marked, but there are {found}. The profiler lost its step marks "
        "or was ended early: check that no other profiler runs in the process (KINETO_USE_DAEMON, dynolog)",
    )


def _marked_steps(timeline: Timeline) -> int:
    return sum(name.startswith("ProfilerStep#") for name in timeline.windows.names)


def check_kernels(recorded: RecordedRun) -> Verdict:
    """Check that each rank has work on its device: on a GPU kernels, not only what the CPU did."""
    counts = dict.fromkeys(range(recorded.ranks), 0)
    for timeline in recorded.timelines():
        counts[timeline.rank] = counts.get(timeline.rank, 0) + int((timeline.kind == Kind.COMPUTE).sum())
    # check_ranks reports ranks without a trace.
    without = [rank for rank in recorded.run.ranks if not counts[rank]]
    if not recorded.on_gpus:
        total = f"{min(counts.values()):,} or more on each rank's CPU"
        return Verdict("kernels", "wrong", _no_operators(without)) if without else Verdict("operators", "ok", total)
    if without:
        return Verdict("kernels", "wrong", no_kernels(_ranks(without), recorded.log, recorded.surroundings))
    return Verdict("kernels", "ok", f"{min(count for count in counts.values() if count):,} or more on each GPU")


def _no_operators(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} recorded no operator. torch's profiler does not work here: reinstall torch"


def no_kernels(who: str, log: str, surroundings: tuple[str, ...]) -> str:
    """Return that there are no kernels, why, and what to do."""
    found = f"{who} recorded no kernel, only what the CPU did"
    causes = missing_kernel_causes(log)
    if causes:
        return f"{found}: {'; '.join(causes)}"
    if surroundings:
        return f"{found}. The profiler gave no reason. Here, {'; '.join(surroundings)}"
    return (
        f"{found}, and the profiler gave no reason. Usual ones: another profiler (nsys, ncu, DCGM's profiling "
        "metrics), a container without --cap-add=SYS_ADMIN, a driver that is older than torch's CUDA"
    )


def check_phases(recorded: RecordedRun) -> Verdict:
    """Check that forward, backward and optimizer took time on each device."""
    for timeline in recorded.timelines():
        compute = timeline.kind == Kind.COMPUTE
        if not compute.any():
            continue  # check_kernels reports that
        unlaunched = float((timeline.launch_ns[compute] == UNKNOWN).mean()) if recorded.on_gpus else 0.0
        if unlaunched > _FEW_LAUNCHES:
            return Verdict(
                "phases",
                "wrong",
                f"on rank {timeline.rank}, {share(unlaunched)} of the kernels have no launch in the trace, so their "
                "phase is unknown. The profiler records kernels but not the calls that launch them: update torch and "
                "the driver",
            )
        empty = [phase for phase in _PHASES if not _time_ns(timeline, phase)]
        if empty:
            return Verdict(
                "phases",
                "wrong",
                f"rank {timeline.rank} shows no {' and no '.join(phase.name.lower() for phase in empty)}, though the "
                "training has all three. This torch names operators or launches in a way that dptrace does not know: "
                "report it with the kept folder",
            )
    return Verdict("phases", "ok", "forward, backward and optimizer on each device")


def _time_ns(timeline: Timeline, phase: Phase) -> int:
    chosen = (timeline.kind == Kind.COMPUTE) & (timeline.phase == phase)
    return int(np.sum((timeline.end_ns - timeline.start_ns)[chosen]))


def check_losses(recorded: RecordedRun) -> Verdict:
    """Check that the profiler dropped nothing and the reader repaired nothing."""
    lost = lost_records(recorded.log)
    if lost:
        return Verdict(
            "events lost",
            "wrong",
            f"{'; '.join(lost)}. Record fewer --steps at once; KINETO_CONFIG can name a file that sets a larger "
            "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB",
        )
    if recorded.damage:
        return Verdict("events lost", "wrong", f"the reader found damage: {recorded.damage.rstrip('. ')}")
    own = recorded.run.metadata.get("notes")
    remarks = [note for note in own if isinstance(note, str)] if isinstance(own, list) else []
    remarks += [str(note) for timeline in recorded.timelines() for note in timeline.notes]
    if remarks:
        return Verdict("events lost", "warning", " ".join(dict.fromkeys(remarks)).rstrip(". "))
    return Verdict("events lost", "ok", "none dropped, damaged or impossible")


def check_overhead(recorded: RecordedRun) -> Verdict:
    """Check that the profiler does not slow down the training much."""
    overhead = recorded.run.metadata.get("profiler_overhead")
    if not isinstance(overhead, int | float):
        return Verdict("overhead", "warning", "the profiler's overhead could not be measured")
    if overhead < _HIGH_OVERHEAD:
        cost = f"{share(overhead)} longer steps with the profiler" if overhead > 0 else "none seen"
        return Verdict("overhead", "ok", cost)
    return Verdict(
        "overhead",
        "warning",
        f"steps take {share(overhead)} longer with the profiler. A small model on a busy machine shows more than a "
        "real training does; run this again on an idle machine",
    )


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


# Checks of what ranks do together: collectives, their metadata, whether they match, and the clocks they imply.


_APART_NS = 1_000_000
"""Clocks of one machine are never this far apart: Kineto puts all times on the system's clock."""
_EARLY_NS, _TOO_EARLY_NS = 5_000, 1_000_000
"""A kernel that starts this much before the call that launched it shows clocks that do not fit."""
_FEW = 0.01
_FEW_MATCH = 0.5


def check_collectives(recorded: RecordedRun) -> Verdict:
    """Check that each rank's trace contains collectives."""
    without = [timeline.rank for timeline in recorded.timelines() if not timeline.collectives]
    if without:
        return Verdict(
            "collectives",
            "wrong",
            f"rank {without[0]} shows no collective, though it trained with others. "
            + (
                "Its NCCL kernels have names that dptrace does not know, or were not recorded: report it with the kept "
                "folder"
                if recorded.on_gpus
                else "This torch does not record gloo's work: update torch"
            ),
        )
    count = min((len(timeline.collectives) for timeline in recorded.timelines()), default=0)
    return Verdict("collectives", "ok", f"{count:,} on each rank" if count else "none recorded")


def check_metadata(recorded: RecordedRun) -> Verdict:
    """Check that collectives carry their message size and, with NCCL, their group and its ranks."""
    calls = [collective for timeline in recorded.timelines() for collective in timeline.collectives]
    if not calls:
        return Verdict("metadata", "ok", "no collective to describe")
    lacking = {"message sizes": sum(not call.bytes for call in calls)}
    if recorded.on_gpus:
        lacking["process groups"] = sum(not call.group_size for call in calls)
        lacking["the groups' ranks"] = sum(not call.ranks for call in calls)
    missing = {what: count for what, count in lacking.items() if count}
    if not missing:
        what = "message sizes, process groups and their ranks" if recorded.on_gpus else "message sizes"
        return Verdict("metadata", "ok", what)
    which = ", ".join(f"{what} of {count:,} of {len(calls):,} collectives" for what, count in missing.items())
    return Verdict(
        "metadata",
        "wrong" if len(calls) in missing.values() else "warning",
        f"the trace lacks {which}, so bandwidth {'and groups are' if recorded.on_gpus else 'is'} unknown for them. "
        "torch 2.4 and later write them (as arguments of record_param_comms): update torch",
    )


def check_matching(recorded: RecordedRun) -> Verdict:
    """Check that the ranks' collectives can be matched with each other."""
    matches = recorded.run.cross_rank.matches
    if not len(matches):
        return Verdict(
            "matching", "wrong", "no collective of a rank matches one of another rank; see collectives above"
        )
    complete = float(np.mean(matches.complete))
    if complete == 1:
        return Verdict("matching", "ok", f"{plural(len(matches), 'collective')}, each found on all of its ranks")
    level: Level = "wrong" if complete < _FEW_MATCH else "warning"
    notes = " ".join(recorded.run.cross_rank.notes)
    return Verdict(
        "matching", level, f"{share(1 - complete)} of the collectives lack a rank. {notes}".strip().rstrip(".")
    )


def check_clocks(recorded: RecordedRun) -> Verdict:
    """Check that the ranks' clocks can be compared, are plausible, and leave no transfer negative."""
    run = recorded.run
    clocks, rows = run.cross_rank.clocks, run.cross_rank.clock_rows()
    if clocks.misfit.any():
        return Verdict("clocks", "wrong", " ".join(clocks.notes).rstrip("."))
    unknown = [row["rank"] for row in rows if row["offset_ns"] is None]
    if unknown:
        return Verdict(
            "clocks", "wrong", f"no collective connects rank {unknown[0]}'s clock with rank {rows[0]['rank']}'s"
        )
    offset_ns = max((abs(row["offset_ns"]) for row in rows), default=0)
    if offset_ns > _APART_NS:
        return Verdict(
            "clocks",
            "wrong",
            f"the ranks' clocks are up to {duration(offset_ns)} apart, on one machine. Something changes the clock "
            "while processes run, or the profiler converts the GPU's time wrongly: update torch and the driver",
        )
    negative = _negative_transfers(recorded)
    if negative > _FEW:
        return Verdict(
            "clocks",
            "wrong",
            f"{share(negative)} of the collectives end on one rank before another has started them, beyond the clocks' "
            "uncertainty: the times of the ranks cannot be compared",
        )
    uncertainty = max((int(ns) for ns in clocks.uncertainty_ns), default=0)
    return Verdict("clocks", "ok", f"the ranks agree within {duration(max(offset_ns, uncertainty))}")


def _negative_transfers(recorded: RecordedRun) -> float:
    """Return the share of matched collectives that end somewhere before they have started everywhere."""
    matches, clocks = recorded.run.cross_rank.matches, recorded.run.cross_rank.clocks
    checked = matches.complete & matches.synchronizing
    if not checked.any():
        return 0.0
    start, end = matches.start_ns.copy(), matches.end_ns.copy()
    for device in range(len(matches.device_ids)):
        own = matches.device == device
        start[own], end[own] = clocks.align(device, start[own]), clocks.align(device, end[own])
    last_start = np.maximum.reduceat(start, matches.first[:-1])
    first_end = np.minimum.reduceat(end, matches.first[:-1])
    allowed_ns = 2 * int(clocks.uncertainty_ns.max(initial=0))
    return float(np.mean((last_start - first_end)[checked] > allowed_ns))


def check_launch_clock(recorded: RecordedRun) -> Verdict:
    """Check that no kernel starts before the call that launched it: the GPU's clock against the CPU's."""
    worst_ns, worst_share, rank = 0, 0.0, 0
    for timeline in recorded.timelines():
        early_ns = _early_ns(timeline)
        early = float(np.mean(early_ns > _EARLY_NS)) if len(early_ns) else 0.0
        if early > worst_share:
            worst_ns, worst_share, rank = int(early_ns.max()), early, timeline.rank
    if worst_share < _FEW and worst_ns < _TOO_EARLY_NS:
        return Verdict("launches", "ok", "no kernel starts before its launch")
    return Verdict(
        "launches",
        "wrong" if worst_ns >= _TOO_EARLY_NS else "warning",
        f"on rank {rank}, {share(worst_share)} of the kernels start before the call that launched them, up to "
        f"{duration(worst_ns)} before: the GPU's clock is not aligned with the CPU's, so launch latency and the "
        "causes of idle time are off by as much. Update torch and the driver",
    )


def _early_ns(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    known = (timeline.launch_ns != UNKNOWN) & (timeline.kind == Kind.COMPUTE)
    early: np.ndarray[tuple[int], np.dtype[np.int64]] = (timeline.launch_ns - timeline.start_ns)[known]
    return early


_STEPS, _WARMUP, _RANKS = 6, 2, 2
_TIMEOUT_S = 180
_LAST_LINES = 8
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What the self-test found."""

    command: tuple[str, ...]
    """The recording that was made, as typed."""
    verdicts: tuple[Verdict, ...]
    seconds: float
    kept: str = ""
    """Folder with the recording and its log; empty if nothing was wrong and it was removed."""

    @property
    def works(self) -> bool:
        """Whether nothing is wrong; warnings count as well."""
        return all(verdict.level != "wrong" for verdict in self.verdicts)


def recording_command(gpus: int) -> tuple[str, ...]:
    """Return the arguments of dptrace that make the recording, without its folder, on a machine with *gpus* GPUs."""
    one = gpus == 1
    ranks = [] if one else ["--gpus", str(_RANKS)]
    schedule = ["--steps", str(_STEPS), "--warmup", str(_WARMUP)]
    return ("record", "--mode", "single" if one else "ddp", *ranks, "--model", "gpt-tiny", *schedule)


def selftest(gpus: int) -> SelfTest:
    """Record with dptrace's own trainer on up to two GPUs, or on two ranks on CPU, check the run and remove it.

    Args:
        gpus: number of this machine's GPUs.
    """
    folder = Path(tempfile.mkdtemp(prefix="dptrace-selftest-"))
    began = time.monotonic()
    try:
        command = recording_command(gpus)
        failure = _record(command, folder)
        verdicts = (failure,) if failure else check_trace_folder(folder / "run", gpus, _read_log(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    result = SelfTest(("dptrace", *command), verdicts, time.monotonic() - began, str(folder))
    if not result.works:
        return result
    shutil.rmtree(folder, ignore_errors=True)
    return SelfTest(result.command, verdicts, result.seconds)


def _record(command: tuple[str, ...], folder: Path) -> Verdict | None:
    """Make the recording as a user would; return what is wrong if that fails."""
    # --verbose: the output of a trainer's rank 0, and with it the messages of the profiler's library.
    arguments = [sys.executable, "-m", "dptrace", *command, "--verbose", "-o", str(folder / "run")]
    process = None
    with (folder / "log").open("wb") as log:
        try:
            with signals_held():  # one could lose a process that has just been started
                process = subprocess.Popen(arguments, stdout=log, stderr=log)
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Verdict(
                "recording",
                "wrong",
                f"not done after {_TIMEOUT_S} s; something blocks the ranks, often NCCL between GPUs: try "
                f"NCCL_P2P_DISABLE=1 or NCCL_DEBUG=INFO. The last lines were: {_last_lines(_read_log(folder))}",
            )
        finally:
            if process is not None:
                process.terminate()  # it ends its ranks; no effect if it has ended
                process.wait()
    if code == 0:
        return None
    return Verdict("recording", "wrong", f"it failed with exit code {code}: {_last_lines(_read_log(folder))}")


def _read_log(folder: Path) -> str:
    logs = [folder / "log", *sorted(folder.glob("run*/*.log"))]  # a failed run's is run.failed
    return "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs if log.exists())


def _last_lines(log: str) -> str:
    """Return dptrace's error and what follows it or, without one, the last lines."""
    lines = [sanitize(line.strip()) for line in log.splitlines() if line.strip() and not line.startswith("USDT:")]
    error = next((i for i, line in enumerate(lines) if line.startswith("Error: ")), None)
    shown = lines[-_LAST_LINES:] if error is None else lines[error:][:_LAST_LINES]
    return " / ".join(shown) or "it printed nothing"


def check_trace_folder(folder: Path, gpus: int, log: str = "") -> tuple[Verdict, ...]:
    """Read a run and check it.

    Args:
        gpus: number of GPUs that it should have used; 0 for a run of two ranks on CPU.
        log: what the ranks wrote to the terminal.
    """
    parameters = ""
    with suppress(OSError):
        parameters = _DRIVER_PARAMETERS.read_text(encoding="utf-8", errors="replace")
    surroundings = hindrances(os.environ, parameters)
    try:
        run, damage = _read(folder)
    except DptraceError as error:
        # A trace with calls to the GPU's runtime but without any kernel cannot be read as a run.
        if gpus and "no kernel" in str(error):
            return (Verdict("kernels", "wrong", no_kernels("the ranks", log, surroundings)),)
        return (Verdict("reading", "wrong", f"the recording cannot be read: {str(error).rstrip('. ')}"),)
    ranks = min(gpus, _RANKS) if gpus else _RANKS
    return check_recording(RecordedRun(run, ranks, _STEPS, gpus > 0, log, damage, surroundings))


def _read(folder: Path) -> tuple[Run, str]:
    """Return the run, and what the reader finds damaged in it."""
    try:
        return open_run([str(folder)], ReadOptions(cache=False, strict=True)), ""
    except DptraceError as error:
        return open_run([str(folder)], ReadOptions(cache=False)), str(error)


def check_recording(recorded: RecordedRun) -> tuple[Verdict, ...]:
    """Return what each check that applies to a recording finds."""
    checks: list[Callable[[RecordedRun], Verdict]] = [check_ranks, check_steps, check_kernels]
    if any(True for _ in recorded.timelines()):
        checks.append(check_phases)
        if recorded.on_gpus:
            checks.append(check_launch_clock)
        if recorded.ranks > 1:
            checks += [check_collectives, check_metadata, check_matching, check_clocks]
    checks += [check_losses, check_overhead]
    return tuple(check(recorded) for check in checks)
