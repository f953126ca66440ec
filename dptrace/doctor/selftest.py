"""Record ten seconds of a small training on this machine, and check the recording."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dptrace.core.termination import signals_held
from dptrace.core.units import duration, plural, ranks_text, sanitize, share
from dptrace.errors import DptraceError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

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
    advice = "pip install nvidia-cuda-cupti-cu12 (or -cu13), as torch's CUDA needs"
    causes = [f"{CUPTI_ERRORS.get(error, 'CUPTI failed')} ({error})" for error in dict.fromkeys(_FAILED.findall(log))]
    return causes + [f"{library} is missing: {advice}" for library in dict.fromkeys(_LIBRARY.findall(log))]


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
    found = (clause.format(*match.groups()) for pattern, clause in _LOST for match in pattern.finditer(log))
    return list(dict.fromkeys(found))


# What the checks of a recording look at, and what each of them concludes.


Level = Literal["ok", "warning", "wrong"]

_APART_NS = 1_000_000
"""Clocks of one machine are never this far apart: Kineto puts all times on the system's clock. Nor does a kernel start
this long before the call that launched it."""
_MIN_LAUNCHED = 0.5
"""Share of a GPU's kernels below which, if no more have their launch in the file, no phase can be trusted."""
_MAX_OVERHEAD = 0.5
"""Share by which the profiler may lengthen the self-test's steps, which are short, before it is said."""


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
    """What may keep the profiler from the GPU's records here, see :func:`hindrances`."""

    def timelines(self) -> list[Timeline]:
        """Return the timelines of the kind of device that was to be recorded."""
        return [timeline for timeline in self.run.timelines if timeline.on_cpu != self.on_gpus]


def check_recording(recorded: RecordedRun) -> tuple[Verdict, ...]:
    """Return what each check that applies to a recording finds."""
    checks = [_ranks_and_steps, _kernels]
    if recorded.timelines():
        checks += [_phases, *([_collectives] if recorded.ranks > 1 else []), _clocks]
    return tuple(check(recorded) for check in [*checks, _losses, _overhead])


def _ranks_and_steps(recorded: RecordedRun) -> Verdict:
    """Check that each rank left a trace, in which the recorded steps are marked."""
    if missing := sorted(set(range(recorded.ranks)) - set(recorded.run.ranks)):
        why = "See the log: a rank that dies or cannot write its file says why there"
        return Verdict("steps", "wrong", f"{ranks_text(missing)} left no trace. {why}")
    marked = {
        timeline.rank: sum(name.startswith("ProfilerStep#") for name in timeline.windows.names)
        for timeline in recorded.run.timelines
    }
    steps = plural(recorded.steps, "step")
    if other := {rank: count for rank, count in marked.items() if count != recorded.steps}:
        found = ", ".join(f"{count} on rank {rank}" for rank, count in other.items())
        why = "The profiler was ended early, or another one runs in the process (KINETO_USE_DAEMON, dynolog)"
        return Verdict("steps", "wrong", f"{steps} should be marked, but there are {found}. {why}")
    return Verdict("steps", "ok", f"{steps} marked on each of {plural(recorded.ranks, 'rank')}")


def _kernels(recorded: RecordedRun) -> Verdict:
    """Check that each rank has work on its device: on a GPU kernels, not only what the CPU did."""
    counts = dict.fromkeys(recorded.run.ranks, 0)  # a rank without a trace is reported above
    for timeline in recorded.timelines():
        counts[timeline.rank] += int((timeline.kind == Kind.COMPUTE).sum())
    without = [rank for rank, count in counts.items() if not count]
    if without and recorded.on_gpus:
        return _no_kernels(ranks_text(without), recorded.log, recorded.surroundings)
    if without:
        why = "torch's profiler does not work here: reinstall torch"
        return Verdict("operators", "wrong", f"{ranks_text(without)} recorded no operator. {why}")
    what, where = ("kernels", "GPU") if recorded.on_gpus else ("operators", "rank's CPU")
    return Verdict(what, "ok", f"{min(counts.values()):,} or more on each {where}")


def _no_kernels(who: str, log: str, surroundings: tuple[str, ...]) -> Verdict:
    """Return that there are no kernels, why, and what to do."""
    found = f"{who} recorded no kernel, only what the CPU did"
    causes = missing_kernel_causes(log)
    usual = (
        "another profiler (nsys, ncu, DCGM's profiling metrics), a container without --cap-add=SYS_ADMIN, a driver "
        "that is older than torch's CUDA"
    )
    if causes:
        return Verdict("kernels", "wrong", f"{found}: {'; '.join(causes)}")
    if surroundings:
        return Verdict("kernels", "wrong", f"{found}. The profiler gave no reason. Here, {'; '.join(surroundings)}")
    return Verdict("kernels", "wrong", f"{found}, and the profiler gave no reason. Usual ones: {usual}")


def _phases(recorded: RecordedRun) -> Verdict:
    """Check that forward, backward and optimizer took time on each device."""
    for timeline in recorded.timelines():
        compute = timeline.kind == Kind.COMPUTE
        if not compute.any():
            continue  # reported above
        launched = float((timeline.launch_ns[compute] != UNKNOWN).mean()) if recorded.on_gpus else 1.0
        if launched < _MIN_LAUNCHED:
            why = f"on rank {timeline.rank}, {share(1 - launched)} of the kernels have no launch in the trace, so "
            return Verdict("phases", "wrong", f"{why}their phase is unknown. Update torch and the driver")
        duration_ns = timeline.end_ns - timeline.start_ns
        empty = [
            phase.name.lower()
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
            if not duration_ns[compute & (timeline.phase == phase)].sum()
        ]
        if empty:
            why = f"rank {timeline.rank} shows no {' and no '.join(empty)}, though the training has all three. This "
            rest = "torch names operators in a way that dptrace does not know: report it with the kept folder"
            return Verdict("phases", "wrong", why + rest)
    return Verdict("phases", "ok", "forward, backward and optimizer on each device")


def _collectives(recorded: RecordedRun) -> Verdict:
    """Check that each rank's collectives are there, have their sizes and groups, and match those of the others."""
    timelines, cross_rank = recorded.timelines(), recorded.run.cross_rank
    if without := [timeline.rank for timeline in timelines if not timeline.collectives]:
        why = "its NCCL kernels have names that dptrace does not know, or were not recorded: report it with the folder"
        why = why if recorded.on_gpus else "this torch does not record gloo's work: update torch"
        return Verdict("collectives", "wrong", f"no collective on {ranks_text(without)}: {why}")
    calls = [collective for timeline in timelines for collective in timeline.collectives]
    lacking = {"message sizes": sum(not call.bytes for call in calls)}
    if recorded.on_gpus:  # gloo's have no group in the trace
        lacking["groups"] = sum(not (call.group_size and call.ranks) for call in calls)
    if missing := {what: count for what, count in lacking.items() if count}:
        which = ", ".join(f"{what} of {count:,} of {len(calls):,} collectives" for what, count in missing.items())
        level: Level = "wrong" if len(calls) in missing.values() else "warning"
        why = "so their bandwidth is unknown. torch 2.4 and later write them (record_param_comms): update torch"
        return Verdict("collectives", level, f"the trace lacks {which}, {why}")
    complete = float(np.mean(cross_rank.matches.complete)) if len(cross_rank.matches) else 0.0
    if complete < 1:
        notes = " ".join(cross_rank.notes)
        why = f"{share(1 - complete)} of the collectives lack a rank. {notes}".strip().rstrip(".")
        return Verdict("collectives", "warning" if complete > 0.5 else "wrong", why)
    count = plural(len(cross_rank.matches), "collective")
    return Verdict("collectives", "ok", f"{count}, each with its size and found on all of its ranks")


def _clocks(recorded: RecordedRun) -> Verdict:
    """Check that the ranks' clocks agree, as those of one machine do, and the GPU's with the CPU's."""
    clocks, rows = recorded.run.cross_rank.clocks, recorded.run.cross_rank.clock_rows()
    if clocks.misfit.any():
        return Verdict("clocks", "wrong", " ".join(clocks.notes).rstrip("."))
    if unknown := [row["rank"] for row in rows if row["offset_ns"] is None]:
        return Verdict("clocks", "wrong", f"no collective connects rank {unknown[0]}'s clock with the others'")
    advice = "Something changes the clock, or the profiler converts the GPU's time wrongly: update torch and the driver"
    offset_ns = max((abs(row["offset_ns"]) for row in rows), default=0)
    if offset_ns > _APART_NS:
        why = f"the ranks' clocks are up to {duration(offset_ns)} apart, on one machine. {advice}"
        return Verdict("clocks", "wrong", why)
    for timeline in recorded.timelines() if recorded.on_gpus else ():
        known = (timeline.launch_ns != UNKNOWN) & (timeline.kind == Kind.COMPUTE)
        early_ns = int((timeline.launch_ns - timeline.start_ns)[known].max(initial=0))
        if early_ns > _APART_NS:
            why = (
                f"on rank {timeline.rank}, kernels start up to {duration(early_ns)} before the call that launched them"
            )
            return Verdict("clocks", "wrong", f"{why}. {advice}")
    uncertainty_ns = int(clocks.uncertainty_ns.max(initial=0))
    return Verdict("clocks", "ok", f"the ranks agree within {duration(max(offset_ns, uncertainty_ns))}")


def _losses(recorded: RecordedRun) -> Verdict:
    """Check that the profiler dropped nothing and the reader repaired nothing."""
    if lost := lost_records(recorded.log):
        advice = "Record fewer --steps, or set a larger ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB in the file of KINETO_CONFIG"
        return Verdict("events lost", "wrong", f"{'; '.join(lost)}. {advice}")
    if recorded.damage:
        return Verdict("events lost", "wrong", f"the reader found damage: {recorded.damage.rstrip('. ')}")
    own = recorded.run.metadata.get("notes")
    remarks = [note for note in own if isinstance(note, str)] if isinstance(own, list) else []
    remarks += [str(note) for timeline in recorded.timelines() for note in timeline.notes]
    if remarks:
        return Verdict("events lost", "warning", " ".join(dict.fromkeys(remarks)).rstrip(". "))
    return Verdict("events lost", "ok", "none dropped, damaged or impossible")


def _overhead(recorded: RecordedRun) -> Verdict:
    """Check that the profiler does not slow down the training much."""
    overhead = recorded.run.metadata.get("profiler_overhead")
    if not isinstance(overhead, int | float):
        return Verdict("overhead", "warning", "the profiler's overhead could not be measured")
    longer = f"steps take {share(max(overhead, 0))} longer with the profiler"
    if overhead < _MAX_OVERHEAD:
        return Verdict("overhead", "ok", longer)
    return Verdict("overhead", "warning", f"{longer}, more than in a real training: repeat this on an idle machine")


# The recording itself.


_STEPS, _WARMUP, _RANKS = 6, 2, 2
"""Of the run that is recorded: its steps, those before them, and its ranks, where there are as many GPUs or none."""
_TIMEOUT_S = 180
"""Within which that run ends."""
_LAST_LINES = 8
"""Of its output, which are shown where it failed."""
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
    mode = ("single",) if gpus == 1 else ("ddp", "--gpus", str(_RANKS))
    return ("record", "--mode", *mode, "--model", "gpt-tiny", "--steps", str(_STEPS), "--warmup", str(_WARMUP))


def selftest(gpus: int) -> SelfTest:
    """Record with dptrace's own trainer on up to two GPUs, or on two ranks on CPU, check the run and remove it.

    Args:
        gpus: number of this machine's GPUs.
    """
    folder = Path(tempfile.mkdtemp(prefix="dptrace-selftest-"))
    began, command, kept = time.monotonic(), recording_command(gpus), ""
    try:
        failure = _record(command, folder)
        verdicts = (failure,) if failure else check_trace_folder(folder / "run", gpus, _read_log(folder))
        if any(verdict.level == "wrong" for verdict in verdicts):
            kept = str(folder)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return SelfTest(("dptrace", *command), verdicts, time.monotonic() - began, kept)


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
    failed = f"it failed with exit code {code}: {_last_lines(_read_log(folder))}"
    return Verdict("recording", "wrong", failed) if code else None


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
            return (_no_kernels("the ranks", log, surroundings),)
        return (Verdict("reading", "wrong", f"the recording cannot be read: {str(error).rstrip('. ')}"),)
    ranks = min(gpus, _RANKS) if gpus else _RANKS
    return check_recording(RecordedRun(run, ranks, _STEPS, gpus > 0, log, damage, surroundings))


def _read(folder: Path) -> tuple[Run, str]:
    """Return the run, and what the reader finds damaged in it."""
    try:
        return open_run([str(folder)], ReadOptions(cache=False, strict=True)), ""
    except DptraceError as error:
        return open_run([str(folder)], ReadOptions(cache=False)), str(error)
