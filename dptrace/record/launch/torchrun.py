"""Start torchrun for a job, supervise it, and end it with all its ranks."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dptrace.core.subprocess_pool import available_cores
from dptrace.errors import RecordingError
from dptrace.record.messages import TERMINATED, LauncherSettings, rank_log, write_json, writers
from dptrace.record.processes import AGENT_PID_ENV, LAUNCHER_PID_ENV, Signals, descendants

# What the launchers of several machines know of each other: that the first has begun, and that one has failed.


_MACHINES_POLL_S = 0.2
"""How often other machines are looked for."""
_LOOK_EVERY_S = 1.0
"""The folder may be on a network."""
_MACHINES_GRACE_S = 15.0
"""How long this machine's ranks may take to notice the end of the others by themselves."""


def wait_for_first_machine(endpoint: str, timeout_s: float = 600.0, check: Callable[[], None] = lambda: None) -> None:
    """Wait until torchrun listens on the first machine, which has prepared the run's folder before.

    Other machines that begin earlier would put files into a folder that the first one is about to empty.

    Args:
        check: called many times; ends the wait by an exception.

    Raises:
        RecordingError: it did not within the time.
    """
    host, _, port = endpoint.rpartition(":")
    until = time.monotonic() + timeout_s
    problem = ""
    while time.monotonic() < until:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return
        except OSError as error:
            problem = error.strerror or str(error)
        check()
        time.sleep(_MACHINES_POLL_S)
    raise RecordingError(
        f"The first machine does not answer at {endpoint} ({problem}). Start the same command there, and check that "
        "this machine reaches that address."
    )


class EndedElsewhere:
    """Notices in a folder that all machines share that the job has ended on another one.

    A dead rank's peers on other machines may wait for it for as long as the backend's timeout.
    """

    def __init__(self, folder: Path, node_rank: int) -> None:
        self.folder, self.node_rank = folder, node_rank
        self._next_look = self._seen_at = 0.0

    def __bool__(self) -> bool:
        """Return whether another machine has ended so long ago that this one must be ended too."""
        now = time.monotonic()
        if self._seen_at:
            return now > self._seen_at + _MACHINES_GRACE_S
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_S
        others = (path.name for path in self.folder.glob("agent*.json"))
        # The first machine renames the folder at the end.
        if not self.folder.exists() or any(name != f"agent{self.node_rank}.json" for name in others):
            self._seen_at = now
        return False


_SHUTDOWN_S = 5
"""Seconds that torchrun gives the peers of a dead rank to end, in versions that can be configured."""
_GRACE_S = 3
"""How much longer than torchrun itself takes to end its ranks they are waited for."""
SCRIPT_S = 30.0
"""Seconds that a user's script has to end after a SIGTERM, as under torchrun: it may save what it has trained."""
_POLL_S = 0.05
"""How often torchrun and its ranks are asked whether they have ended."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A job to start."""

    out: Path
    force: bool
    script: Path
    """A trainer, or the user's script or module."""
    arguments: Sequence[str]
    processes: int
    """Number of processes on this machine."""
    mode: str | None
    """None for a user script, which *runner* runs."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """``steps``, ``warmup``, ``wait``, ``duration_s``, ``light``, ``memory`` …, as in LauncherSettings."""
    repeat: int = 1
    """How many runs to record."""
    stop: bool = False
    """Whether to end the training when all runs are recorded."""
    timeout_s: float | None = None
    """After how long without a step the job is ended, 0 never; None: a trainer after half an hour, a script never."""
    trigger: str | None = None
    """A file, or ``SIGUSR2``, by which the user asks for a recording; None to record without being asked."""
    nnodes: int = 1
    """Number of machines, each with a launcher."""
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
    use_script_profiler: bool = False
    """Whether the traces of the script's own profiler are the recording."""
    links: dict[str, Any] | None = None
    """Measurements of the links, for run.json."""
    is_module: bool = False
    """Whether *script* is the dotted name of a module, as after ``python -m``."""
    python_options: Sequence[str] = ()
    """Options of Python in the ranks, such as ``-O``."""
    runner: Sequence[str] = ("dptrace.record.script.runner",)
    """The module, and its options, that runs a user's script in each rank."""

    @property
    def is_alone(self) -> bool:
        """Whether the script is one process, which must not take itself for a rank of several."""
        return self.processes * self.nnodes == 1 and not self.mode and not self.max_restarts


def run_torchrun(
    job: Launch,
    staging: Path,
    signals: Signals,
    watch: Callable[[int], bool] = lambda agent: False,
    interrupted: Callable[[], None] = lambda: None,
) -> int | None:
    """Run torchrun until it ends, and return its exit code; None if *watch* has ended it.

    Args:
        signals: those that end the job.
        watch: called many times a second with torchrun's process id; training is ended when it returns true.
        interrupted: called when a signal arrives, before the ranks are ended.

    Raises:
        Interrupted: a signal arrived.
    """
    command = _command(job, staging)
    if job.verbose:
        print(shlex.join(command), file=sys.stderr)
    # A separate session: the terminal's Ctrl-C reaches only the launcher, which ends the ranks in order.
    with _output_of_one(job, staging) as output:
        agent = subprocess.Popen(
            command, env=_environment(job, staging), start_new_session=True, stdout=output, stderr=output
        )
    ended_elsewhere = EndedElsewhere(staging, job.node_rank)

    def waits(seconds: float) -> bool:
        if signals.again or not signals.numbers or job.mode is not None:
            return not signals.again and (seconds < _SHUTDOWN_S + _GRACE_S or bool(writers(staging)))
        return signals.numbers[0] == signal.SIGINT or seconds < SCRIPT_S or bool(writers(staging))

    try:
        while agent.poll() is None:
            time.sleep(_POLL_S)
            if signals.numbers:
                interrupted()
                signals.check()
            if watch(agent.pid):
                return None
            if job.nnodes > 1 and ended_elsewhere:
                stop_agent(agent, waits=waits)
                break
        if job.is_alone and agent.returncode:
            with suppress(OSError):  # the exit code says it, too
                write_json(staging / "agent0.json", [{"rank": 0, "exit_code": agent.returncode}])
        killed = time.monotonic()
        while agent.returncode < 0 and waits(time.monotonic() - killed):
            time.sleep(_POLL_S)  # ranks whose torchrun was killed write what they have recorded, and end within seconds
        return agent.returncode
    finally:
        # A script's own handling of Ctrl-C runs; before its ranks are prepared, a traceback of an import would be all.
        interrupt = job.mode is None and signals.numbers[:1] == [signal.SIGINT] and any(staging.glob("rank*.stacks"))
        stop_agent(agent, signal.SIGINT if interrupt else signal.SIGTERM, waits)
        signals.exit_code = _own_exit_code(job, agent.returncode, signals)


def _own_exit_code(job: Launch, code: int | None, signals: Signals) -> int | None:
    """Return the code with which a script without torchrun has ended itself; None if a signal has ended it."""
    if code == TERMINATED and signals.numbers[:1] != [signal.SIGTERM]:
        return None  # by the SIGTERM that stands for another signal
    return code if job.is_alone and job.mode is None and code is not None and code >= 0 else None


@contextmanager
def _output_of_one(job: Launch, staging: Path) -> Iterator[IO[bytes] | None]:
    """Open the file for the output of a script without torchrun, where a rank's would be; None shows the output."""
    if not job.is_alone or job.show_output:
        yield None
        return
    with rank_log(staging, 0).open("wb") as file:
        yield file


def stop_agent(
    agent: subprocess.Popen[bytes],
    number: signal.Signals = signal.SIGTERM,
    waits: Callable[[float], bool] = lambda seconds: seconds < _SHUTDOWN_S + _GRACE_S,
) -> None:
    """End torchrun, which passes the signal on to the ranks; kill those that are still running in the end.

    Each rank has its own session, so that a signal to torchrun's process group does not reach it; and some versions of
    torchrun wait half a minute for a rank that ignores SIGTERM.

    Args:
        waits: whether to wait for the ranks, so many seconds after the signal.
    """
    if agent.poll() is not None:
        return
    ranks = descendants(agent.pid)  # before torchrun ends: afterwards they have another parent
    if number == signal.SIGINT:
        os.killpg(agent.pid, number)  # as a terminal does: the workers of a script without torchrun, too
    else:
        agent.send_signal(number)
    began = time.monotonic()
    while agent.poll() is None:
        if not waits(time.monotonic() - began):
            for process in {*ranks, *descendants(agent.pid)}:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            agent.kill()
            agent.wait()
        time.sleep(_POLL_S)


def _command(job: Launch, staging: Path) -> list[str]:
    """Return the command that starts the ranks."""
    python = [sys.executable, "-u", *job.python_options]
    module = ["-m"] if job.is_module else []
    start = str(Path(__file__).with_name("start.py"))
    runner = [start, *job.runner, *module, str(job.script), *job.arguments]
    if job.is_alone:
        return [*python, *runner]
    rendezvous = ["--standalone", "--local-addr=127.0.0.1"]
    if job.nnodes > 1:
        rendezvous = [f"--nnodes={job.nnodes}", f"--node-rank={job.node_rank}", f"--rdzv-endpoint={job.endpoint}"]
    script = [str(job.script), *job.arguments] if job.mode else runner
    if job.python_options:
        script = ["--no-python", *python, *script]
    return [
        *(sys.executable, start, "dptrace.record.launch.torchrun_agent"),
        *(f"{staging}/agent{job.node_rank}.json", str(int(job.show_output))),
        *rendezvous,
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.max_restarts}",
        f"--log-dir={os.devnull}",
        *script,
    ]


def _environment(job: Launch, staging: Path) -> dict[str, str]:
    assignment = LauncherSettings(
        str(staging),
        str(job.out),
        script=job.mode is None,
        on_demand=job.trigger is not None,
        repeat=job.repeat,
        use_script_profiler=job.use_script_profiler,
        **job.schedule,
    )
    parents = {LAUNCHER_PID_ENV: str(os.getpid())}
    # Restarted ranks must not find the addresses that the previous ones left in torchrun's own store.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if job.max_restarts else {}
    local = loopback_environment() if job.nnodes == 1 else {}
    parents |= {AGENT_PID_ENV: str(os.getpid())} if job.is_alone else {}
    threads = thread_environment(job.processes)
    if job.mode is None and "OMP_NUM_THREADS" not in os.environ:
        # A script has as many threads as without dptrace: they decide in which order a CPU adds up.
        del threads["OMP_NUM_THREADS"]
    return fresh | local | threads | parents | assignment.environment()


def loopback_environment() -> dict[str, str]:
    """Return an environment in which gloo listens on the loopback interface only; the user's setting takes precedence.

    Without it, gloo listens at the address of the machine's name. NCCL is left alone, because the interface is part of
    what it bases its choice of channels on.
    """
    names = [name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names and "GLOO_SOCKET_IFNAME" not in os.environ else {}


def thread_environment(processes: int) -> dict[str, str]:
    """Return an environment in which this many ranks share the machine's cores; the user's settings take precedence."""
    defaults = {
        # If each rank used all cores, ranks would wait for each other's threads.
        "OMP_NUM_THREADS": str(max(1, available_cores() // processes)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_S),
    }
    return defaults | os.environ
