"""The self-test: a real recording on CPU, and stand-ins for what goes wrong on GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.doctor import selftest as module
from dptrace.doctor.selftest import (
    RecordedRun,
    Verdict,
    check_recording,
    check_trace_folder,
    hindrances,
    lost_records,
    missing_kernel_causes,
    selftest,
)
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Phase, Timeline, Windows
from tests.support.builders import TimelineBuilder
from tests.support.forking import fork_commands
from tests.support.real_traces import needs_real_traces, real


@pytest.mark.spawn
@pytest.mark.slow
def test_this_machine_records(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    """On CPU, two ranks are recorded, nothing is wrong, and nothing is left."""
    pytest.importorskip("torch", reason="recording needs torch")
    fork_commands(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    smaller = (*module.recording_command(0), "--batch-size", "8")
    monkeypatch.setattr(module, "recording_command", lambda gpus: smaller)

    test = selftest(0)

    assert test.works, test.verdicts
    assert {"steps", "operators", "phases", "collectives", "clocks"} <= {v.what for v in test.verdicts}
    assert "" == test.kept
    assert [] == list(scratch.iterdir())


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that never ends."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.heavy
def test_a_failed_recording_is_kept_and_says_why(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines of what it printed are shown, and the folder stays."""
    monkeypatch.setattr(module, "recording_command", lambda gpus: ("record", "--mode", "nonsense"))

    test = selftest(0)

    assert not test.works
    assert "nonsense" in test.verdicts[0].why
    assert (Path(test.kept) / "log").exists()


@pytest.mark.heavy
@pytest.mark.usefixtures("hanging", "scratch")
def test_a_hanging_recording_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that never ends is stopped and reported."""
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.1)

    test = selftest(2)

    assert "wrong" == test.verdicts[0].level
    assert "NCCL" in test.verdicts[0].why


@pytest.mark.usefixtures("hanging")
def test_an_interrupted_recording_leaves_nothing(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    """Ctrl-C ends the recording, waits until it has ended, and removes its folder."""
    started: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        started.append(process)
        if timeout == module._TIMEOUT_S:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        selftest(0)

    assert started[0].returncode is not None
    assert [] == list(scratch.iterdir())


ALL_REDUCE = Collective("all_reduce", 4096, "Float", "0", 2, ranks=(0, 1), description="default_pg")
STEPS = 3


def gpu_timelines(ranks: int = 2) -> tuple[Timeline, ...]:
    """Return three healthy steps of each rank in µs-sized ns, each kernel launched 10 µs before it starts."""
    timelines = []
    for rank in range(ranks):
        build = TimelineBuilder(rank, bounds=tuple(range(1_000_000, 1_000_000 + 200_000 * STEPS + 1, 200_000)))
        for t in range(1_000_000, 1_000_000 + 200_000 * STEPS, 200_000):
            build.compute(t + 20_000, t + 60_000).compute(t + 60_000, t + 120_000, Phase.BACKWARD, "gemm_backward")
            build.collective(t + 70_000 + 5_000 * rank, t + 140_000, ALL_REDUCE)
            build.compute(t + 145_000, t + 160_000, Phase.OPTIMIZER, "multi_tensor_apply")
        timeline = build.build()
        timelines.append(replace(timeline, launch_ns=timeline.start_ns - 10_000))
    return tuple(timelines)


def recorded(timelines: tuple[Timeline, ...] | None = None, on_gpus: bool = True, **settings: Any) -> RecordedRun:
    """Return a recording of two ranks on GPUs; *settings* are fields of RecordedRun and ``metadata`` of its run."""
    metadata = settings.pop("metadata", {"profiler_overhead": 0.05, "notes": []})
    run = Run("selftest", gpu_timelines() if timelines is None else timelines, metadata, world_size=2)
    return RecordedRun(run, ranks=2, steps=STEPS, on_gpus=on_gpus, **settings)


def bare(timeline: Timeline, **without: Any) -> Timeline:
    """Return a timeline whose collectives lack something: ``bytes=0`` for their sizes."""
    return replace(timeline, collectives=tuple(replace(call, **without) for call in timeline.collectives))


def verdicts(
    timelines: tuple[Timeline, ...] | None = None, on_gpus: bool = True, **settings: Any
) -> dict[str, Verdict]:
    """Check a recording, and return the verdicts by what was checked."""
    return {verdict.what: verdict for verdict in check_recording(recorded(timelines, on_gpus, **settings))}


FIRST, SECOND = gpu_timelines()
ON_CPU = tuple(replace(timeline, device=-1) for timeline in (FIRST, SECOND))
NO_GROUPS = tuple(bare(timeline, group_size=0, ranks=()) for timeline in ON_CPU)
ALONE = replace(SECOND.take(SECOND.collective < 0), collectives=())


def shifted(by_ns: int) -> Timeline:
    """Return the second rank's timeline on a clock that is ahead."""
    return replace(
        SECOND,
        start_ns=SECOND.start_ns + by_ns,
        end_ns=SECOND.end_ns + by_ns,
        launch_ns=SECOND.launch_ns + by_ns,
        windows=Windows(SECOND.windows.names, SECOND.windows.bounds + by_ns),
    )


@pytest.mark.parametrize("healthy", [((FIRST, SECOND), True), (NO_GROUPS, False), ((FIRST, shifted(50_000)), True)])
def test_a_healthy_recording_passes(healthy: tuple[tuple[Timeline, ...], bool]) -> None:
    """Every check is content with two GPUs, with gloo's collectives without a group, and with clocks 50 µs apart."""
    assert {"ok"} == {verdict.level for verdict in verdicts(*healthy).values()}


ONE_STEP = replace(
    SECOND,
    windows=Windows(("whole trace",), SECOND.windows.bounds[[0, -1]]),
    step=np.zeros(len(SECOND), np.int32),
)
CPU_ONLY = replace(SECOND, device=-1)


@pytest.mark.parametrize(
    ("timelines", "on_gpus", "what", "level", "words"),
    [
        ((FIRST,), True, "steps", "wrong", ["rank 1 left no trace"]),
        ((FIRST, ONE_STEP), True, "steps", "wrong", ["0 on rank 1"]),
        ((FIRST, CPU_ONLY), True, "kernels", "wrong", ["rank 1 recorded no kernel"]),
        ((FIRST, SECOND.take(SECOND.kind == Kind.COMMUNICATION)), True, "kernels", "wrong", ["rank 1"]),
        ((ON_CPU[0], ON_CPU[1].take(SECOND.kind == Kind.MEMORY)), False, "operators", "wrong", ["rank 1"]),
        (
            (FIRST, replace(SECOND, phase=np.full(len(SECOND), Phase.FORWARD, np.uint8))),
            *(True, "phases", "wrong", ["rank 1", "no backward and no optimizer"]),
        ),
        ((FIRST, replace(SECOND, launch_ns=np.full(len(SECOND), -1))), True, "phases", "wrong", ["no launch"]),
        ((FIRST, ALONE), True, "collectives", "wrong", ["rank 1", "NCCL"]),
        ((ON_CPU[0], replace(ALONE, device=-1)), False, "collectives", "wrong", ["rank 1", "gloo"]),
        (
            tuple(bare(one, bytes=0, group_size=0) for one in (FIRST, SECOND)),
            *(True, "collectives", "wrong", ["message sizes of 6 of 6", "groups of 6 of 6"]),
        ),
        ((FIRST, bare(SECOND, bytes=0)), True, "collectives", "warning", ["message sizes of 3 of 6"]),
        ((FIRST, shifted(5_000_000)), True, "clocks", "wrong", ["5.00 ms"]),
        ((FIRST, ALONE), True, "clocks", "wrong", ["rank 1"]),
        (
            (FIRST, replace(SECOND, launch_ns=SECOND.start_ns + 3_000_000)),
            *(True, "clocks", "wrong", ["rank 1", "3.00 ms"]),
        ),
    ],
)
def test_what_is_missing_is_named(
    timelines: tuple[Timeline, ...], on_gpus: bool, what: str, level: str, words: list[str]
) -> None:
    """From a healthy recording one thing is taken away: its check names the rank, and what is missing."""
    verdict = verdicts(timelines, on_gpus)[what]

    assert level == verdict.level
    assert all(word in verdict.why for word in words), verdict.why


@pytest.mark.parametrize(
    ("settings", "what", "level", "words"),
    [
        ({"log": "CuptiActivityApi.cpp:238] Dropped 12 activity records"}, "events lost", "wrong", "12 records"),
        ({"damage": "rank0.json: 3 events with a negative duration."}, "events lost", "wrong", "negative duration"),
        ({"metadata": {"notes": ["The steps' times could not be read."]}}, "events lost", "warning", "steps' times"),
        ({"metadata": {"profiler_overhead": -0.1}}, "overhead", "ok", "0 %"),
        ({"metadata": {"profiler_overhead": 0.9}}, "overhead", "warning", "90 %"),
        ({"metadata": {"profiler_overhead": None}}, "overhead", "warning", "could not"),
    ],
)
def test_losses_and_overhead_are_judged(settings: dict[str, Any], what: str, level: str, words: str) -> None:
    """Dropped records and damaged files are wrong; notes and a large or unknown overhead are a warning."""
    verdict = verdicts(**settings)[what]

    assert level == verdict.level
    assert words in verdict.why


def test_missing_kernels_have_a_cause_and_a_remedy() -> None:
    """The log says why there are no kernels, else the machine does, else usual causes."""
    error = "function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"
    told, seen, guessed = (
        verdicts((FIRST, CPU_ONLY), log=log, surroundings=surroundings)["kernels"].why
        for log, surroundings in ((error, ("NSYS",)), ("", ("NSYS_PROFILING_SESSION_ID is set",)), ("", ()))
    )

    assert "--cap-add=SYS_ADMIN" in told
    assert "NSYS" not in told
    assert "NSYS_PROFILING_SESSION_ID is set" in seen
    assert "DCGM" in guessed


@needs_real_traces
@pytest.mark.parametrize(
    ("name", "error", "checks", "words"),
    [
        ("cuda_calls_but_no_kernels", "CUPTI_ERROR_NOT_INITIALIZED", {"kernels"}, "driver"),
        ("distributed_info_not_found", "", {"steps", "kernels", "events lost", "overhead"}, "Usual ones"),
    ],
)
def test_a_gpu_that_left_no_kernel_is_explained(
    name: str, error: str, checks: set[str], words: str, tmp_path: Path
) -> None:
    """Real traces of machines where CUPTI failed: with CUDA's calls, or without, so that it reads as the CPU's."""
    shutil.copy(real(f"odd/{name}.json.gz"), tmp_path / "rank0.pt.trace.json.gz")
    found = {verdict.what: verdict for verdict in check_trace_folder(tmp_path, 1, kineto(error) if error else "")}

    assert checks == found.keys()
    assert ("wrong", True) == (found["kernels"].level, words in found["kernels"].why)


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "ranks", "collectives"), [("sharded_h100_8ranks", 8, "warning"), ("dlrm_v100_4ranks", 4, "wrong")]
)
def test_real_jobs_have_fitting_clocks(name: str, ranks: int, collectives: str) -> None:
    """Clocks of real GPUs fit; a recording that began amid collectives, and a torch of 2023, lack metadata."""
    run = dptrace.open(real(name), cache=False)
    found = {one.what: one.level for one in check_recording(RecordedRun(run, ranks, steps=3, on_gpus=True))}

    assert (collectives, "ok") == (found["collectives"], found["clocks"])


def test_an_unreadable_recording_is_reported(tmp_path: Path) -> None:
    """A folder without a trace is one verdict, without a traceback."""
    (verdict,) = check_trace_folder(tmp_path, 2)

    assert ("reading", "wrong") == (verdict.what, verdict.level)


# What the profiler's library writes, and what it means.


ADVICE = "INFO:2026-05-11 17:23:45 9:9 init.cpp:158] If you see CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, refer to https://x"
"""A line that Kineto prints after each failure, whatever the error was."""


def kineto(error: str) -> str:
    """Return what Kineto prints when CUPTI does not start."""
    return (
        f"WARNING:2026-05-11 17:23:45 9:9 init.cpp:155] function cbapi->getCuptiStatus() failed with error {error} "
        "(15)\n"
        "WARNING:2026-05-11 17:23:45 9:9 init.cpp:156] CUPTI initialization failed - CUDA profiler activities will be "
        f"missing\n{ADVICE}\n"
    )


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (kineto("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), ["--cap-add=SYS_ADMIN", "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"]),
        (kineto("CUPTI_ERROR_HARDWARE_BUSY"), ["DCGM", "CUPTI_ERROR_HARDWARE_BUSY"]),
        (kineto("CUPTI_ERROR_NEW_IN_CUDA_14"), ["CUPTI_ERROR_NEW_IN_CUDA_14"]),
        ("OSError: libcupti.so.12: cannot open shared object file: No such file", ["libcupti.so.12", "pip install"]),
    ],
)
def test_what_stops_cupti_has_a_cause_and_a_remedy(log: str, words: list[str]) -> None:
    """Each known error names what to do, an unknown one itself; the line of advice counts as no error."""
    (cause,) = missing_kernel_causes(log * 2)

    assert all(word in cause for word in words)
    assert [] == missing_kernel_causes(ADVICE)


def test_what_hinders_is_found_on_the_machine() -> None:
    """A tool that injects itself, and a driver for administrators only; nothing on a machine without either."""
    tool, driver = hindrances(
        {"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}, "Mobile: 1\nRmProfilingAdminOnly: 1\n"
    )

    assert "CUDA_INJECTION64_PATH" in tool
    assert "NVreg_RestrictProfilingToAdminUsers" in driver
    assert () == hindrances({"HOME": "/root"}, "RmProfilingAdminOnly: 0\n")


def test_lost_records_are_found() -> None:
    """What Kineto and torch say about records that they lost is found, each once."""
    lines = (
        "WARNING:2026-05-11 CuptiActivityApi.cpp:238] Dropped 4711 activity records\n"
        "WARNING: Exceeded max GPU buffer count (33 >= 33) - terminating tracing\n"
        "UserWarning: Device profiling activity collection was stopped early at step 3\n"
    )
    dropped, full = lost_records(lines * 2)

    assert ("4711" in dropped, "buffers were full" in full) == (True, True)
    assert [] == lost_records("Max GPU buffer size: 128MB")
