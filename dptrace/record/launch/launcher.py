"""Start the ranks with torchrun, supervise them, and finish the run or report its failure; leave no process behind."""

from __future__ import annotations

import importlib.util
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dptrace.core.units import plural
from dptrace.errors import MissingExtraError, RecordingError, UsageError
from dptrace.record.accelerator import ACCELERATORS, available_accelerator
from dptrace.record.failures import Failure, find_failure, last_lines, recorder_failures
from dptrace.record.launch.monitor import Monitor, Reporter, Stalled
from dptrace.record.launch.torchrun import Launch, run_torchrun, wait_for_first_machine
from dptrace.record.messages import NOTHING_RECORDED, rank_log, read_messages, window_folder
from dptrace.record.processes import Interrupted, Signals, catch_signals
from dptrace.record.run_folder import (
    RUN_FILE,
    RunFolder,
    keep_incomplete,
    keep_logs,
    kept_checkpoints_message,
)

NEVER_PROFILED = (
    "Nothing was recorded: the script did not finish a trace with torch.profiler.profile. Leave out "
    "--use-script-profiler, so that dptrace's profiler records; or check that the script's profiler is on and that its "
    "schedule ends before the training does."
)


def local_gpu_count() -> int:
    """Return the number of this machine's GPUs, as torch sees them.

    Raises:
        MissingExtraError: torch is not installed.
    """
    if not _may_have_gpu():
        if importlib.util.find_spec("torch") is None:
            raise MissingExtraError("Recording needs torch", "record")
        return 0
    try:
        accelerator = available_accelerator()
    except ModuleNotFoundError:
        raise MissingExtraError("Recording needs torch", "record") from None
    return 0 if accelerator is None else int(accelerator.module.device_count())


def processes_here(asked: int | None) -> tuple[int, int]:
    """Return how many processes to start on this machine, by default one per GPU or two without, and its GPUs.

    Raises:
        UsageError: more are asked for than it has GPUs.
    """
    gpus = local_gpu_count()
    if gpus and asked is not None and asked > gpus:
        raise UsageError(f"--gpus {asked}: this machine has only {gpus}.")
    return asked or gpus or 2, gpus


def _may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether the system may have a GPU; without any device, torch need not be imported, which takes seconds."""
    patterns = (pattern for known in ACCELERATORS for pattern in known.device_files)
    return sys.platform != "linux" or any(True for pattern in patterns for _ in devices.glob(pattern))


def launch(job: Launch, reporter: Reporter) -> list[dict[str, Any]]:
    """Record a job, and return the contents of each run.json with ``folder``, the path of the run.

    Return an empty list on a machine whose files another machine collects, and if an error of the recorder, which the
    reporter has shown, has kept a script from being recorded.

    Args:
        reporter: learns of runs as soon as they are written, while training goes on.

    Raises:
        RecordingError: a rank died, or nothing was recorded.
        UsageError: the folder cannot be used, or a rank refused its options.
        Interrupted: a signal arrived; what was whole is kept, and no process is left.
    """
    run = RunFolder(job.out)
    with catch_signals() as signals:
        if job.node_rank == 0:
            for path in run.begin(job.force):
                reporter.message(f"A recording to {job.out} was killed earlier; its traces are now in {path}.")
        else:
            wait_for_first_machine(str(job.endpoint), check=signals.check)
            run.staging.mkdir(parents=True, exist_ok=True)
        monitor = Monitor(job, run, reporter)
        try:
            code = _supervise(monitor, signals)
        except Interrupted as stopped:
            if signals.exit_code is not None:
                stopped.exit_code = signals.exit_code  # a script may handle the signal, save, and end with 0
            _keep_interrupted(monitor, stopped)
            raise
        except Stalled as stalled:
            failure = Failure(None, f"{stalled} All ranks are ended; raise --timeout if steps take that long", 1)
            try:
                raise _failure_error(failure, monitor) from None
            finally:
                _clear(monitor)
        return _finish_job(monitor, code)


def _supervise(monitor: Monitor, signals: Signals) -> int | None:
    """Run torchrun and act on what happens meanwhile; return its exit code, None if --stop has ended it."""
    if monitor.job.trigger is not None:
        monitor.reporter.message(f"Training starts; record with {monitor.trigger_text}.")
    if monitor.job.mode is None and monitor.job.processes > 1:
        log = rank_log(monitor.run.staging, 1)
        monitor.reporter.state(
            f"Only rank 0's output is shown; that of the others is in {log} and so on while they train."
        )
    with monitor.trigger_signal():
        staging = monitor.run.staging
        return run_torchrun(monitor.job, staging, signals, monitor.poll, lambda: monitor.finish_window(signals))


def _keep_interrupted(monitor: Monitor, stopped: Interrupted) -> None:
    """Keep what is whole, name the rest as incomplete, and say which."""
    if monitor.is_for_another_machine:
        return
    before = len(monitor.runs)
    kept = None
    with monitor.contain_errors():
        monitor.complete_runs(goes_on=False)
        if len(monitor.runs) == before:
            metadata = monitor.run_metadata(Failure(None, "interrupted").to_dict())
            kept = keep_incomplete(monitor.run, metadata, len(monitor.runs) + 1)
    runs = [info["folder"] for info in monitor.runs]
    if runs:
        stopped.kept = f".\nRecorded, and kept: {shlex.join(runs)}.\nNext: dptrace analyze {shlex.quote(runs[0])}"
    if kept is not None:
        ranks = sorted(int(path.name[4:].partition(".")[0]) for path in kept.glob("rank*.gz"))
        failed = shlex.quote(str(kept))
        stopped.kept = f"{stopped.kept if runs else '.'}\nOf these ranks only, traces were written: "
        stopped.kept += f"{', '.join(map(str, ranks))}. They are in {failed}.\nNext: dptrace analyze {failed}"
    elif not runs and monitor.unwritten_steps:
        stopped.kept = f"; {plural(monitor.unwritten_steps, 'recorded step')} were not written, and are lost."
    _clear(monitor)


def _clear(monitor: Monitor) -> None:
    """Remove the staging folder, unless it holds traces that could not be moved; what ranks printed goes to the run."""
    if monitor.runs:
        with suppress(OSError):
            keep_logs(monitor.run, Path(monitor.runs[-1]["folder"]))
    if any(monitor.run.staging.glob("window*/rank*.gz")):
        where = f"{monitor.run.staging}; the next recording to {monitor.job.out} keeps them"
        monitor.reporter.error(f"Traces that could not be moved are in {where}.")
    else:
        monitor.run.discard()


def _finish_job(monitor: Monitor, code: int | None) -> list[dict[str, Any]]:
    """Complete or keep what is not complete yet, and report a failure."""
    if monitor.is_for_another_machine:
        if code:
            raise RecordingError("A rank died; machine 0 reports which one and keeps the files.")
        return []
    try:
        monitor.complete_runs(goes_on=False)
        failure = None if code is None else _failure(monitor, code)
        if failure is not None:
            raise _failure_error(failure, monitor)
        _report_unrecorded(monitor)
    except OSError as error:
        if code or monitor.job.mode is not None:
            ended = abs(code or 0) + (128 if code and code < 0 else 0)
            what = f"The training ended with exit code {ended}" if ended else "Nothing was recorded"
            raise RecordingError(f"{what}. The recording cannot be kept: {error}.", ended or 1) from None
        with monitor.contain_errors():
            keep_incomplete(monitor.run, monitor.run_metadata(), len(monitor.runs) + 1)
            raise
    finally:
        _clear(monitor)
    return monitor.runs


def _report_unrecorded(monitor: Monitor) -> None:
    """Say which ranks could not be recorded although their training went on, and keep the others' traces."""
    if monitor.job.use_script_profiler and not monitor.runs:
        monitor.reporter.error(NEVER_PROFILED)
        return
    unrecorded = recorder_failures(monitor.run.staging)
    if not monitor.runs and not monitor.job.trigger:  # else nothing may have been asked for
        unrecorded = dict.fromkeys(_ranks_without_trace(monitor), "it wrote no trace") | unrecorded
    if not unrecorded:
        return
    why = "".join(f"\nRank {rank}: {message}" for rank, message in sorted(unrecorded.items()))
    first = min(unrecorded)
    nothing_wrong = all(message.startswith(NOTHING_RECORDED) for message in unrecorded.values())
    if nothing_wrong and not monitor.runs and monitor.job.mode is None:
        monitor.reporter.error(unrecorded[first])
        return
    failure = {"rank": first, "message": unrecorded[first]}
    kept = keep_incomplete(monitor.run, monitor.run_metadata(failure), len(monitor.runs) + 1)
    rest = f"\nThe traces of the other ranks are in {kept}." if kept is not None else ""
    text = f"The training has ended without an error, but its recording failed.{why}{rest}"
    if monitor.job.mode is not None:
        raise RecordingError(text)
    monitor.reporter.error(text)


def _ranks_without_trace(monitor: Monitor) -> list[int]:
    """Return the ranks of this machine that have not written their files of the next run."""
    job = monitor.job
    pieces = read_messages(window_folder(monitor.run.staging, len(monitor.runs) + 1), "piece")
    # A script that starts its own ranks decides how many there are.
    processes = int(pieces[0]["world_size"]) // job.nnodes if pieces else job.processes
    first = job.node_rank * processes
    return sorted({*range(first, first + processes)} - {int(piece["rank"]) for piece in pieces})


def _failure(monitor: Monitor, code: int) -> Failure | None:
    job, folder = monitor.job, monitor.run.staging
    if code < 0 and not job.is_alone:
        what = "torchrun's own process, which starts the ranks and ends them, was ended by"
        return Failure(None, f"{what} {signal.Signals(-code).name}", 128 - code)
    failure = find_failure(folder)
    if failure is not None:
        return failure
    return None if code == 0 else Failure(None, f"torchrun ended with exit code {code}", code)


def _failure_error(failure: Failure, monitor: Monitor) -> RecordingError | UsageError:
    """Keep traces and logs, and return an error that says what happened and what was kept."""
    run, metadata = monitor.run, monitor.run_metadata(failure.to_dict())
    traces = any(run.staging.glob("window*/rank*.gz"))
    if failure.is_user_error and not traces and not monitor.runs:
        return UsageError(failure.message) if failure.exit_code == 2 else RecordingError(failure.message)
    restarts = len(metadata["restarts"])
    text = str(failure).rstrip(".")  # what the error itself says may be a sentence
    text += f", after {plural(restarts, 'restart')}." if restarts else "."
    text += last_lines(run.staging / f"rank{failure.rank}.log")
    if failure.is_user_error:
        text = failure.message
    text += _kept_text(monitor, metadata)
    if kept := kept_checkpoints_message(monitor.job.checkpoints):
        text += f"\n{kept}"
    return RecordingError(text, failure.exit_code)


def _kept_text(monitor: Monitor, run_metadata: dict[str, Any]) -> str:
    """Keep the files of the window that was not complete, and return what is kept, each on a line."""
    text = "".join(f"\nRecorded before that, and complete: {info['folder']}." for info in monitor.runs)
    kept = keep_incomplete(monitor.run, run_metadata, len(monitor.runs) + 1, logs_suffice=True)
    if kept is not None:
        names = sorted(path.name for path in kept.iterdir() if path.name != RUN_FILE)
        if not any(name.endswith(".gz") for name in names):
            return f"{text}\nThe output of the ranks is in {kept}: {', '.join(names)}."
        text += f"\nKept in {kept}: {', '.join(names)}; the run is incomplete."
        return f"{text}\nNext: dptrace analyze {shlex.quote(str(kept))}"
    return text if text or monitor.job.trigger else "\nNothing was recorded."  # else nothing may have been asked for
