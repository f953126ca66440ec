"""Start the ranks with torchrun, watch over them, and leave a whole run or an honest failure; never a process."""

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
"""How long torchrun lets the peers of a dead rank end by themselves, where its version can be told."""
_GRACE_S = 3
_POLL_S = 0.05


class Interrupted(BaseException):
    """A signal asked the launcher to stop."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start."""

    out: Path
    force: bool
    script: Path
    arguments: Sequence[str]
    processes: int
    """On this machine."""
    mode: str | None
    """None for a user's own script, which is run by ``record.script_runner``."""
    schedule: dict[str, int | None] = field(default_factory=dict)
    """``steps``, ``warmup``, ``wait``, where the user gave them."""
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    max_restarts: int = 0
    """How often all ranks are started anew when one fails."""
    checkpoints: Path | None = None
    """Folder of the training's checkpoints, where it writes any or goes on from one."""
    show_output: bool = True
    """Whether rank 0's output goes to the terminal; all other is kept, to be told when a rank dies."""
    verbose: bool = False
    command: Sequence[str] = ()
    links: dict[str, Any] | None = None
    """What the links were measured at, for run.json."""


def local_gpu_count() -> int:
    """Count this machine's GPUs as torch sees them.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        accelerator = available_accelerator()
    except ModuleNotFoundError:
        raise MissingExtraError("Recording needs torch", "record") from None
    return 0 if accelerator is None else int(accelerator.module.device_count())


def launch(job: Launch, progress: Callable[[int, int], None]) -> dict[str, Any] | None:
    """Record, and give the contents of run.json, and ``folder``, where the run is.

    None on a machine whose files another one collects.

    Args:
        job: what to start.
        progress: called now and then with the steps done and the steps in all.

    Raises:
        RecordingError: a rank died, or nothing was recorded.
        UsageError: the folder or the options are such that no rank would start.
        Interrupted: by a signal; no process is left, and no file.
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
    """Turn the signals that end a process into an exception, so that the ranks are ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not leave the ranks behind
        raise Interrupted(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_torchrun(job: Launch, staging: Path, progress: Callable[[int, int], None]) -> int:
    progress_file = staging / "progress"
    command = _torchrun_command(job, staging)
    if job.verbose:
        print(" ".join(command), file=sys.stderr)
    # A session of its own: the terminal's Ctrl-C reaches the launcher alone, which ends the ranks in order.
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
    """End torchrun, which ends the ranks; what is left of them after some seconds is killed.

    Each rank has a session of its own, so that no signal to torchrun's group reaches it; and some versions of
    torchrun give a rank that does not heed SIGTERM half a minute.
    """
    if agent.poll() is not None:
        return
    ranks = descendants(agent.pid)  # now: later they may be nobody's children
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
    where = ["--standalone", "--local-addr=127.0.0.1"]
    if job.nnodes > 1:
        where = [f"--nnodes={job.nnodes}", f"--node-rank={job.node_rank}", f"--rdzv-endpoint={job.endpoint}"]
    # Rank 0's output goes straight to the terminal, not through torchrun's tee, which would hold back the
    # lines that a progress bar rewrites.
    kept = ",".join(f"{local}:3" for local in range(job.show_output, job.processes))
    output = [f"--log-dir={staging}/logs{job.node_rank}", f"--redirects={kept or 0}"]
    what = [str(job.script)] if job.mode else ["-m", "dptrace.record.script_runner", str(job.script)]
    agent = [sys.executable, "-m", "dptrace.record.launch.torchrun_agent", f"{staging}/agent{job.node_rank}.json"]
    return [
        *agent,
        *where,
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.max_restarts}",
        *output,
        *what,
        *job.arguments,
    ]


def _environment(job: Launch, staging: Path) -> dict[str, str]:
    assignment = LauncherSettings(str(staging), str(job.out), progress=job.mode is not None, **job.schedule)
    # Ranks that are started anew must not find the addresses that those before them left in torchrun's own store.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if job.max_restarts else {}
    return fresh | thread_environment(job.processes) | assignment.environment()


def thread_environment(processes: int) -> dict[str, str]:
    """Give an environment in which so many ranks share this machine's cores; the user's own settings win."""
    defaults = {
        # Ranks that each take all cores would wait for each other's threads.
        "OMP_NUM_THREADS": str(max(1, available_cores() // processes)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_S),
    }
    return defaults | os.environ


def _finish_run(job: Launch, run: RunFolder, code: int) -> dict[str, Any] | None:
    folder = run.staging
    if job.node_rank and (not folder.exists() or (folder / "owner").exists()):
        # A folder that all machines share: machine 0 collects.
        if code:
            raise RecordingError("A rank died; machine 0 tells which, and keeps what there is.")
        return None
    failure = _failure(job, folder, code)
    if failure is not None:
        collect_logs(folder, job.processes)
    overcome = find_restarts(folder)
    remove_launcher_files(folder)
    mode_or_script = (job.mode, None if job.mode else str(job.script))
    run_metadata = launch_metadata(job.command, *mode_or_script, failure.to_dict() if failure else None) | {
        "nnodes": job.nnodes,
        "restarts": overcome,
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
    here = {int(rank_message["rank"]) for rank_message in read_messages(folder, "piece")}
    first = job.node_rank * job.processes
    missing = [rank for rank in range(first, first + job.processes) if rank not in here]
    if missing and code == 0:
        return Failure(None, f"rank {missing[0]} ended without an error, but left no trace")
    return None if code == 0 else Failure(None, f"torchrun ended with exit code {code}")


def _failure_error(
    failure: Failure, run: RunFolder, run_metadata: dict[str, Any], checkpoints: Path | None
) -> RecordingError | UsageError:
    """Keep what is worth keeping, and say what happened and what was kept."""
    traces = sorted(path.name for path in run.staging.glob("rank*.gz"))
    lines = [] if failure.rank is None else last_lines(run.staging / f"rank{failure.rank}.log")
    logs = sorted(path.name for path in run.staging.glob("rank*.log"))
    if failure.is_user_error and not traces:
        run.discard()
        return UsageError(failure.message) if failure.exit_code == 2 else RecordingError(failure.message)
    who = "The recording failed" if failure.rank is None else f"Rank {failure.rank} died"
    again = len(run_metadata["restarts"])
    who += f" after {again} restart{'s' * (again > 1)}" if again else ""
    text = failure.message if failure.is_user_error else f"{who}: {failure.message}."
    if lines and not failure.is_user_error:
        text += "\nIts last lines:\n" + "\n".join(f"    {line}" for line in lines)
    if traces or logs:
        write_manifest(run.staging, run_metadata)
        text += f"\nKept in {run.keep_failed()}: {', '.join([*traces, *logs])}; no whole run."
    else:
        run.discard()
        text += "\nNothing was recorded."
    if stays := kept_checkpoints_message(checkpoints):
        text += f"\n{stays}"
    return RecordingError(text)
