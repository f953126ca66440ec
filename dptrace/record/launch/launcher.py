"""Start the ranks with torchrun, supervise them, and finish the run or report its failure; leave no process behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dptrace.core.units import plural
from dptrace.errors import MissingExtraError, RecordingError, UsageError
from dptrace.record.accelerator import available_accelerator
from dptrace.record.launch.checkpoint_folder import kept_checkpoints_message
from dptrace.record.launch.failure import (
    Failure,
    collect_logs,
    find_failure,
    find_restarts,
    last_lines,
    remove_launcher_files,
)
from dptrace.record.launch.manifest import launch_metadata, write_manifest
from dptrace.record.launch.messages import read_messages
from dptrace.record.launch.run_folder import RunFolder
from dptrace.record.launch.torchrun import Interrupted, Launch, raise_on_signals, run_torchrun

__all__ = ["launch", "local_gpu_count"]


def local_gpu_count() -> int:
    """Return the number of this machine's GPUs, as torch sees them.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        accelerator = available_accelerator()
    except ModuleNotFoundError:
        raise MissingExtraError("Recording needs torch", "record") from None
    return 0 if accelerator is None else int(accelerator.module.device_count())


def launch(job: Launch, progress: Callable[[int, int], None]) -> dict[str, Any] | None:
    """Record a job, and return the contents of run.json with ``folder``, the path of the run.

    Return None on a machine whose files another machine collects.

    Args:
        progress: called repeatedly with the steps done and the total number of steps.

    Raises:
        RecordingError: a rank died, or nothing was recorded.
        UsageError: the folder cannot be used, or a rank refused its options.
        Interrupted: a signal arrived; neither processes nor files are left.
    """
    run = RunFolder(job.out)
    if job.node_rank == 0:
        run.begin(job.force)
    else:
        run.staging.mkdir(parents=True, exist_ok=True)
    try:
        with raise_on_signals():
            code = run_torchrun(job, run.staging, progress)
    except Interrupted:
        run.discard()
        raise
    return _finish_run(job, run, code)


def _finish_run(job: Launch, run: RunFolder, code: int) -> dict[str, Any] | None:
    folder = run.staging
    if job.node_rank and (not folder.exists() or (folder / "owner").exists()):
        # A folder that all machines share: machine 0 collects the files.
        if code:
            raise RecordingError("A rank died; machine 0 reports which one and keeps the files.")
        return None
    failure = _failure(job, folder, code)
    if failure is not None:
        collect_logs(folder, job.processes)
    restarts = find_restarts(folder)
    remove_launcher_files(folder)
    mode_or_script = (job.mode, None if job.mode else str(job.script))
    run_metadata = launch_metadata(job.command, *mode_or_script, failure.to_dict() if failure else None) | {
        "nnodes": job.nnodes,
        "restarts": restarts,
    }
    run_metadata |= {} if job.links is None else {"links": job.links}
    if failure is None:
        content = write_manifest(folder, run_metadata)
        return content | {"folder": str(run.complete())}
    raise _failure_error(failure, run, run_metadata, job.checkpoints)


def _failure(job: Launch, folder: Path, code: int) -> Failure | None:
    failure = find_failure(folder)
    if failure is not None:
        return failure
    pieces = read_messages(folder, "piece")
    finished = {int(rank_metadata["rank"]) for rank_metadata in pieces}
    # A script that starts its own ranks decides how many there are.
    processes = int(pieces[0]["world_size"]) // job.nnodes if pieces else job.processes
    first = job.node_rank * processes
    missing = [rank for rank in range(first, first + processes) if rank not in finished]
    if missing and code == 0:
        return Failure(None, f"rank {missing[0]} ended without an error but wrote no trace")
    return None if code == 0 else Failure(None, f"torchrun ended with exit code {code}")


def _failure_error(
    failure: Failure, run: RunFolder, run_metadata: dict[str, Any], checkpoints: Path | None
) -> RecordingError | UsageError:
    """Keep traces and logs, and return an error that says what happened and what was kept."""
    traces = sorted(path.name for path in run.staging.glob("rank*.gz"))
    logs = sorted(path.name for path in run.staging.glob("rank*.log"))
    if failure.is_user_error and not traces:
        run.discard()
        return UsageError(failure.message) if failure.exit_code == 2 else RecordingError(failure.message)
    what = "The recording failed" if failure.rank is None else f"Rank {failure.rank} died"
    restarts = len(run_metadata["restarts"])
    what += f" after {plural(restarts, 'restart')}" if restarts else ""
    text = f"{what}: {failure.message}." + last_lines(run.staging / f"rank{failure.rank}.log")
    if failure.is_user_error:
        text = failure.message
    if traces or logs:
        write_manifest(run.staging, run_metadata)
        text += f"\nKept in {run.keep_failed()}: {', '.join([*traces, *logs])}; the run is incomplete."
    else:
        run.discard()
        text += "\nNothing was recorded."
    if kept := kept_checkpoints_message(checkpoints):
        text += f"\n{kept}"
    return RecordingError(text)
