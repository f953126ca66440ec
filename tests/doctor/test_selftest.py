"""The self-test: a real recording on CPU, and stand-ins for what goes wrong on GPUs."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.doctor import selftest as module
from dptrace.doctor.selftest import (
    RecordedRun,
    check_clocks,
    check_collectives,
    check_kernels,
    check_launch_clock,
    check_losses,
    check_matching,
    check_metadata,
    check_overhead,
    check_phases,
    check_ranks,
    check_recording,
    check_steps,
    check_trace_folder,
    hindrances,
    lost_records,
    missing_kernel_causes,
    no_kernels,
    recording_command,
    selftest,
)
from dptrace.timeline.model import Kind, Phase, Timeline, Windows
from tests.support.real_traces import needs_real_traces, real
from tests.support.selftests import bare, gpu_timelines, recorded


@pytest.mark.spawn
@pytest.mark.slow
def test_this_machine_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On CPU, two ranks are recorded, nothing is wrong, and nothing is left."""
    pytest.importorskip("torch", reason="recording needs torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    test = selftest(0)

    assert test.works, test.verdicts
    assert {"ranks", "steps", "operators", "phases", "metadata", "clocks"} <= {v.what for v in test.verdicts}
    assert "" == test.kept
    assert [] == list(tmp_path.glob("dptrace*"))


def test_a_failed_recording_is_kept_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last lines of what it printed are shown, and the folder stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(module, "recording_command", lambda gpus: ("record", "--mode", "nonsense"))

    test = selftest(0)

    assert not test.works
    assert "nonsense" in test.verdicts[0].why
    assert (Path(test.kept) / "log").exists()


def test_a_hanging_recording_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A recording that never ends is stopped and reported."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.1)

    test = selftest(2)

    assert "wrong" == test.verdicts[0].level
    assert "NCCL" in test.verdicts[0].why


def test_an_interrupted_recording_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C ends the recording, waits until it has ended, and removes its folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
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
    assert [] == list((tmp_path / "scratch").iterdir())


def test_the_command_fits_the_machine() -> None:
    """One GPU records a single process; more record two ranks, as the CPU does."""
    assert "single" in recording_command(1)
    assert "--gpus" not in recording_command(1)
    assert recording_command(8) == recording_command(0)
    assert "ddp" in recording_command(0)


def test_a_single_gpu_is_not_asked_for_collectives() -> None:
    """With one rank, checks of collectives do not apply; with two they do."""
    single = RecordedRun(recorded(gpu_timelines(1)).run, ranks=1, steps=3, on_gpus=True)

    assert "launches" in {verdict.what for verdict in check_recording(single)}
    assert "metadata" not in {verdict.what for verdict in check_recording(single)}
    assert "metadata" in {verdict.what for verdict in check_recording(recorded())}


@needs_real_traces
def test_calls_to_cuda_without_kernels_are_explained(tmp_path: Path) -> None:
    """A real trace of a machine where CUPTI did not work: the error in the log decides what to do."""
    shutil.copy(real("odd/cuda_calls_but_no_kernels.json.gz"), tmp_path / "rank0.pt.trace.json.gz")
    log = "init.cpp:155] function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)"

    (verdict,) = check_trace_folder(tmp_path, 1, log)

    assert ("kernels", "wrong") == (verdict.what, verdict.level)
    assert "driver" in verdict.why


@needs_real_traces
def test_a_gpu_that_left_no_event_is_explained(tmp_path: Path) -> None:
    """A real trace of an A100 whose kernels and CUDA calls are both missing: it can be read, as the CPU's."""
    shutil.copy(real("odd/distributed_info_not_found.json.gz"), tmp_path / "rank0.pt.trace.json.gz")

    verdicts = {verdict.what: verdict for verdict in check_trace_folder(tmp_path, 1)}

    assert "wrong" == verdicts["kernels"].level
    assert "phases" not in verdicts


@pytest.mark.heavy
@needs_real_traces
def test_removed_metadata_are_noticed(tmp_path: Path) -> None:
    """An A100's trace passes the check of metadata until its collectives lose their arguments."""
    with gzip.open(next(Path(real("ddp_a100_rank0of2")).glob("*.gz")), "rt") as file:
        document = json.load(file)

    def metadata() -> str:
        (tmp_path / "rank0.pt.trace.json").write_text(json.dumps(document))
        return {verdict.what: verdict.level for verdict in check_trace_folder(tmp_path, 2)}["metadata"]

    assert "ok" == metadata()
    for event in document["traceEvents"]:
        for key in [key for key in event.get("args", {}) if key in KEYS]:
            del event["args"][key]
    assert "wrong" == metadata()


KEYS = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Ranks")


def test_an_unreadable_recording_is_reported(tmp_path: Path) -> None:
    """A folder without a trace is one verdict, without a traceback."""
    (verdict,) = check_trace_folder(tmp_path, 2)

    assert ("reading", "wrong") == (verdict.what, verdict.level)


# Checks of what ranks do together, on recordings from which something is missing or whose clocks are off.


def shifted(timeline: Timeline, by_ns: int) -> Timeline:
    """Return a timeline on a clock that is ahead."""
    bounds = Windows(timeline.windows.names, timeline.windows.bounds + by_ns)
    return replace(
        timeline,
        start_ns=timeline.start_ns + by_ns,
        end_ns=timeline.end_ns + by_ns,
        launch_ns=timeline.launch_ns + by_ns,
        windows=bounds,
    )


def test_a_healthy_recording_passes() -> None:
    """Every check of two GPUs' whole traces is content."""
    checks = (check_collectives, check_metadata, check_matching, check_clocks, check_launch_clock)

    assert ["ok"] * len(checks) == [check(recorded()).level for check in checks]


def test_missing_collectives_name_the_rank() -> None:
    """A rank that shows no communication is wrong; on CPU the advice is about gloo."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())
    on_cpu = tuple(replace(timeline, device=-1) for timeline in (first, alone))

    gpu, cpu = check_collectives(recorded((first, alone))), check_collectives(recorded(on_cpu, on_gpus=False))

    assert ["wrong", "wrong"] == [gpu.level, cpu.level]
    assert "rank 1 shows no collective" in gpu.why
    assert "NCCL" in gpu.why
    assert "gloo" in cpu.why


def test_missing_metadata_is_wrong_everywhere_and_a_warning_in_part() -> None:
    """Without any message size the torch is too old; some collectives without one are a warning."""
    first, second = gpu_timelines()
    none = check_metadata(
        recorded(tuple(bare(timeline, bytes=0, group_size=0, ranks=()) for timeline in (first, second)))
    )
    some = check_metadata(recorded((first, bare(second, bytes=0))))

    assert ["wrong", "warning"] == [none.level, some.level]
    assert "message sizes of 6 of 6" in none.why
    assert "process groups" in none.why
    assert "record_param_comms" in none.why
    assert "message sizes of 3 of 6" in some.why
    assert "process groups" not in some.why


def test_gloo_needs_no_group() -> None:
    """On CPU the trace never tells groups, so that only sizes count."""
    timelines = tuple(replace(bare(timeline, group_size=0, ranks=()), device=-1) for timeline in gpu_timelines())

    assert "ok" == check_metadata(recorded(timelines, on_gpus=False)).level


def test_collectives_without_a_partner_are_found() -> None:
    """If the ranks show different collectives, nothing matches."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())

    assert "wrong" == check_matching(recorded((first, alone))).level


def test_clocks_far_apart_are_wrong() -> None:
    """Two processes of one machine whose clocks differ by 5 ms cannot be right; 50 µs can."""
    first, second = gpu_timelines()
    far, near = (check_clocks(recorded((first, shifted(second, by_ns)))) for by_ns in (5_000_000, 50_000))

    assert ["wrong", "ok"] == [far.level, near.level]
    assert "5.00 ms" in far.why


def test_clocks_that_nothing_connects_are_wrong() -> None:
    """Without a common collective the offset is unknown."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())

    verdict = check_clocks(recorded((first, alone)))

    assert "wrong" == verdict.level
    assert "rank 1" in verdict.why


def test_kernels_before_their_launch_are_found() -> None:
    """Kernels 40 µs before their launch are a warning, 3 ms before it wrong: the GPU's clock is not the CPU's."""
    first, second = gpu_timelines()
    little, much = (
        check_launch_clock(recorded((first, replace(second, launch_ns=second.start_ns + by_ns))))
        for by_ns in (40_000, 3_000_000)
    )

    assert ["warning", "wrong"] == [little.level, much.level]
    assert "rank 1" in little.why
    assert "40.0 µs" in little.why
    assert "ok" == check_launch_clock(recorded((first, replace(second, launch_ns=np.full(len(second), -1))))).level


@pytest.mark.heavy
@needs_real_traces
def test_eight_h100_pass_but_for_their_first_collectives() -> None:
    """A real job's clocks fit; its recording began amid collectives whose metadata are not in the files."""
    run = dptrace.open(real("sharded_h100_8ranks"), cache=False)
    whole = RecordedRun(run, ranks=8, steps=3, on_gpus=True)
    checks = (check_collectives, check_metadata, check_clocks, check_launch_clock)

    assert ["ok", "warning", "ok", "ok"] == [check(whole).level for check in checks]


@pytest.mark.heavy
@needs_real_traces
def test_an_old_torch_lacks_metadata_and_exact_clocks() -> None:
    """Four V100 with a torch of 2023: no metadata at all, and kernels that start before their launch."""
    run = dptrace.open(real("dlrm_v100_4ranks"), cache=False)
    old = RecordedRun(run, ranks=4, steps=3, on_gpus=True)

    assert "wrong" == check_metadata(old).level
    assert "warning" == check_launch_clock(old).level
    assert "ok" == check_clocks(old).level


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
    ("error", "words"),
    [
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", ["--cap-add=SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0"]),
        ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", ["nsys", "CUDA_INJECTION64_PATH"]),
        ("CUPTI_ERROR_HARDWARE_BUSY", ["DCGM", "dcgmi profile --pause"]),
        ("CUPTI_ERROR_NOT_INITIALIZED", ["driver"]),
        ("CUPTI_ERROR_NEW_IN_CUDA_14", ["CUPTI_ERROR_NEW_IN_CUDA_14"]),
    ],
)
def test_an_error_of_cupti_has_a_cause_and_a_remedy(error: str, words: list[str]) -> None:
    """Each known error names what to do, an unknown one itself; the line of advice counts as no error."""
    (cause,) = missing_kernel_causes(kineto(error) * 2)

    assert all(word in cause for word in [*words, error])


def test_a_missing_library_is_named() -> None:
    """Where libcupti cannot be loaded, its name and the package are given."""
    (cause,) = missing_kernel_causes("OSError: libcupti.so.12: cannot open shared object file: No such file")

    assert "libcupti.so.12" in cause
    assert "pip install" in cause


def test_a_quiet_log_has_no_cause() -> None:
    """Lines of a healthy recording are no error."""
    assert [] == missing_kernel_causes(f"USDT:2026-11-22 SyncActivityProfilerHandler.cpp:52] profiler_start\n{ADVICE}")


def test_what_hinders_is_found_on_the_machine() -> None:
    """A tool that injects itself, and a driver for administrators only; nothing on a machine without either."""
    tool, driver = hindrances(
        {"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}, "Mobile: 1\nRmProfilingAdminOnly: 1\n"
    )

    assert "CUDA_INJECTION64_PATH" in tool
    assert "NVreg_RestrictProfilingToAdminUsers" in driver
    assert () == hindrances({"HOME": "/root"}, "RmProfilingAdminOnly: 0\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("WARNING:2026-05-11 CuptiActivityApi.cpp:238] Dropped 4711 activity records", "4711"),
        ("WARNING: Exceeded max GPU buffer count (33 >= 33) - terminating tracing", "buffers were full"),
        ("UserWarning: Device profiling activity collection was stopped early at step 3", "buffers were full"),
    ],
)
def test_lost_records_are_found(line: str, words: str) -> None:
    """What Kineto and torch say about records that they lost is found, once."""
    (lost,) = lost_records(f"{line}\n{line}\n")

    assert words in lost
    assert [] == lost_records("Max GPU buffer size: 128MB")


# Checks of each rank's trace, on recordings from which something is missing.


def test_a_healthy_recording_passes_trace_checks() -> None:
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
