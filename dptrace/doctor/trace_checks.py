"""Checks of each rank's trace: ranks, steps, kernels, phases, what was lost, and the profiler's overhead."""

from __future__ import annotations

import numpy as np

from dptrace.core.units import plural, share
from dptrace.doctor.profiler_log import lost_records, missing_kernel_causes
from dptrace.doctor.verdict import RecordedRun, Verdict
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline

__all__ = ["check_kernels", "check_losses", "check_overhead", "check_phases", "check_ranks", "check_steps"]

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
    remarks += [note for timeline in recorded.timelines() for note in timeline.notes]
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
