"""Checks of each rank's trace, on recordings from which something is missing."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.doctor.trace_checks import (
    check_kernels,
    check_losses,
    check_overhead,
    check_phases,
    check_ranks,
    check_steps,
    no_kernels,
)
from dptrace.timeline.model import Kind, Phase, Windows
from tests.support.selftests import gpu_timelines, recorded


def test_a_healthy_recording_passes() -> None:
    """Every check of two GPUs' whole traces is content."""
    checks = (check_ranks, check_steps, check_kernels, check_phases, check_losses, check_overhead)

    assert ["ok"] * len(checks) == [check(recorded()).level for check in checks]


def test_a_missing_rank_is_named() -> None:
    """A rank without a trace is wrong, and named."""
    verdict = check_ranks(recorded(gpu_timelines()[:1]))

    assert "wrong" == verdict.level
    assert "rank 1 left no trace" in verdict.why


def test_missing_step_marks_are_counted() -> None:
    """A trace without step marks is one step without a ProfilerStep's name."""
    first, second = gpu_timelines()
    one_step = Windows(("whole trace",), second.windows.bounds[[0, -1]])
    whole = replace(second, windows=one_step, step=np.zeros(len(second), np.int32))

    verdict = check_steps(recorded((first, whole)))

    assert "wrong" == verdict.level
    assert "0 on rank 1" in verdict.why


def test_missing_kernels_name_rank_cause_and_remedy() -> None:
    """A trace that shows the CPU alone has no kernels; the log says why, else the machine does, else usual causes."""
    first, second = gpu_timelines()
    on_cpu = (first, replace(second, device=-1))
    error = "function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"

    told, seen, guessed = (
        check_kernels(recorded(on_cpu, log=log, surroundings=surroundings))
        for log, surroundings in ((error, ("NSYS",)), ("", ("NSYS_PROFILING_SESSION_ID is set",)), ("", ()))
    )

    assert {"wrong"} == {verdict.level for verdict in (told, seen, guessed)}
    assert "rank 1 recorded no kernel" in told.why
    assert "--cap-add=SYS_ADMIN" in told.why
    assert "NSYS" not in told.why
    assert "NSYS_PROFILING_SESSION_ID is set" in seen.why
    assert "DCGM" in guessed.why
    assert "the ranks recorded no kernel" in no_kernels("the ranks", "", ())


def test_only_communication_is_no_compute() -> None:
    """Kernels of NCCL alone do not show a training."""
    first, second = gpu_timelines()

    verdict = check_kernels(recorded((first, second.filter(second.kind == Kind.COMMUNICATION))))

    assert "wrong" == verdict.level


def test_operators_are_enough_on_cpu() -> None:
    """On CPU, operators count; without any, the profiler does not work."""
    timelines = tuple(replace(timeline, device=-1) for timeline in gpu_timelines())
    empty = timelines[1].filter(timelines[1].kind == Kind.MEMORY)

    assert "ok" == check_kernels(recorded(timelines, on_gpus=False)).level
    assert "wrong" == check_kernels(recorded((timelines[0], empty), on_gpus=False)).level


def test_a_missing_phase_is_named() -> None:
    """Without backward and optimizer, both are named with the rank."""
    first, second = gpu_timelines()
    forward_only = replace(second, phase=np.full(len(second), Phase.FORWARD, np.uint8))

    verdict = check_phases(recorded((first, forward_only)))

    assert "wrong" == verdict.level
    assert "rank 1 shows no backward and no optimizer" in verdict.why


def test_kernels_without_launches_have_no_phase() -> None:
    """Where most kernels' launches are missing, that is said, not which phase is empty."""
    first, second = gpu_timelines()
    verdict = check_phases(recorded((first, replace(second, launch_ns=np.full(len(second), -1, np.int64)))))

    assert "wrong" == verdict.level
    assert "no launch" in verdict.why


def test_losses_are_wrong_and_remarks_a_warning() -> None:
    """Dropped records and damaged files are wrong; the recorder's and the reader's notes are a warning."""
    dropped = check_losses(recorded(log="CuptiActivityApi.cpp:238] Dropped 12 activity records"))
    damaged = check_losses(recorded(damage="rank0.json: 3 events left out with a negative duration."))
    note = "The steps' times could not be read: RuntimeError: Both events must be recorded."
    noted = check_losses(recorded(metadata={"notes": [note]}))

    assert ["wrong", "wrong", "warning"] == [verdict.level for verdict in (dropped, damaged, noted)]
    assert "12 records" in dropped.why
    assert "negative duration" in damaged.why
    assert note.rstrip(".") in noted.why


def test_overhead_is_judged() -> None:
    """A little is fine, a lot or an unknown amount is a warning."""
    levels = [
        check_overhead(recorded(metadata={"profiler_overhead": overhead})).level for overhead in (-0.1, 0.2, 0.9, None)
    ]

    assert ["ok", "ok", "warning", "warning"] == levels
