"""Start the ranks with torchrun, supervise them, and finish the run or report its failure; leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from dptrace.core.subprocess_pool import available_cores
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
from dptrace.record.launch.messages import LauncherSettings, read_messages
from dptrace.record.launch.process_tree import LAUNCHER_PID_ENV, descendants
from dptrace.record.launch.run_folder import RunFolder

__all__ = ["Interrupted", "Launch", "launch", "local_gpu_count", "raise_on_signals", "stop_agent", "thread_environment"]

_SHUTDOWN_S = 5
"""Seconds that torchrun gives the peers of a dead rank to end, in versions that can be configured."""
_GRACE_S = 3
_POLL_S = 0.05


class Interrupted(BaseException):
    """A signal stopped the launcher."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


@dataclass(frozen=True, slots=True)
class Launch:
    """A job to start."""

    out: Path
    force: bool
    script: Path
    arguments: Sequence[str]
    processes: int
    """Number of processes on this machine."""
    mode: str | None
    """None for a user script, which ``record.script_runner`` runs."""
    schedule: dict[str, int | None] = field(default_factory=dict)
    """``steps``, ``warmup``, ``wait``; None for those that the user did not give."""
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    max_restarts: int = 0
    """How often all ranks are restarted when one fails."""
    checkpoints: Path | None = None
    """Folder of the training's checkpoints; None if it neither writes nor reads any."""
    show_output: bool = True
    """Whether rank 0's output goes to the terminal; other output is kept and shown if a rank dies."""
    verbose: bool = False
    command: Sequence[str] = ()
    links: dict[str, Any] | None = None
    """Measurements of the links, for run.json."""


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


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise Interrupted for the signals that end a process, so that the ranks are ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not leave ranks behind
        raise Interrupted(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_torchrun(job: Launch, staging: Path, progress: Callable[[int, int], None]) -> int:
    """Run torchrun until it ends, and return its exit code."""
    progress_file = staging / "progress"
    command = _torchrun_command(job, staging)
    if job.verbose:
        print(" ".join(command), file=sys.stderr)
    # A separate session: the terminal's Ctrl-C reaches only the launcher, which ends the ranks in order.
    agent = subprocess.Popen(
        command, env=_environment(job, staging) | {LAUNCHER_PID_ENV: str(os.getpid())}, start_new_session=True
    )
    try:
        while agent.poll() is None:
            time.sleep(_POLL_S)
            with suppress(OSError, ValueError):
                done, total = map(int, progress_file.read_text().split())
                progress(done, total)
        return agent.returncode
    finally:
        stop_agent(agent)


def stop_agent(agent: subprocess.Popen[bytes]) -> None:
    """End torchrun, which ends the ranks; kill those that are still running after some seconds.

    Each rank has its own session, so that a signal to torchrun's process group does not reach it; and some versions of
    torchrun wait half a minute for a rank that ignores SIGTERM.
    """
    if agent.poll() is not None:
        return
    ranks = descendants(agent.pid)  # before torchrun ends: afterwards they have another parent
    agent.terminate()
    try:
        agent.wait(_SHUTDOWN_S + _GRACE_S)
    except subprocess.TimeoutExpired:
        for process in {*ranks, *descendants(agent.pid)}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        agent.kill()
        agent.wait()


def _torchrun_command(job: Launch, staging: Path) -> list[str]:
    rendezvous = ["--standalone", "--local-addr=127.0.0.1"]
    if job.nnodes > 1:
        rendezvous = [f"--nnodes={job.nnodes}", f"--node-rank={job.node_rank}", f"--rdzv-endpoint={job.endpoint}"]
    # Rank 0's output goes directly to the terminal, not through torchrun's tee, which would hold back the lines that a
    # progress bar rewrites.
    redirected = ",".join(f"{local}:3" for local in range(job.show_output, job.processes))
    output = [f"--log-dir={staging}/logs{job.node_rank}", f"--redirects={redirected or 0}"]
    script = [str(job.script)] if job.mode else ["-m", "dptrace.record.script_runner", str(job.script)]
    agent = [sys.executable, "-m", "dptrace.record.launch.torchrun_agent", f"{staging}/agent{job.node_rank}.json"]
    return [
        *agent,
        *rendezvous,
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.max_restarts}",
        *output,
        *script,
        *job.arguments,
    ]


def _environment(job: Launch, staging: Path) -> dict[str, str]:
    assignment = LauncherSettings(str(staging), str(job.out), progress=job.mode is not None, **job.schedule)
    # Restarted ranks must not find the addresses that the previous ones left in torchrun's own store.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if job.max_restarts else {}
    return fresh | thread_environment(job.processes) | assignment.environment()


def thread_environment(processes: int) -> dict[str, str]:
    """Return an environment in which this many ranks share the machine's cores; the user's settings take precedence."""
    defaults = {
        # If each rank used all cores, ranks would wait for each other's threads.
        "OMP_NUM_THREADS": str(max(1, available_cores() // processes)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_S),
    }
    return defaults | os.environ


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
    finished = {int(rank_metadata["rank"]) for rank_metadata in read_messages(folder, "piece")}
    first = job.node_rank * job.processes
    missing = [rank for rank in range(first, first + job.processes) if rank not in finished]
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
