"""Record ten seconds of a small training on this machine, and check the recording."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dptrace.core.termination import signals_held
from dptrace.core.units import sanitize
from dptrace.doctor.collective_checks import (
    check_clocks,
    check_collectives,
    check_launch_clock,
    check_matching,
    check_metadata,
)
from dptrace.doctor.profiler_log import hindrances
from dptrace.doctor.trace_checks import (
    check_kernels,
    check_losses,
    check_overhead,
    check_phases,
    check_ranks,
    check_steps,
    no_kernels,
)
from dptrace.doctor.verdict import RecordedRun, Verdict
from dptrace.errors import DptraceError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.run import Run

__all__ = ["SelfTest", "check_recording", "check_trace_folder", "recording_command", "selftest"]

_STEPS, _WARMUP, _RANKS = 6, 2, 2
_TIMEOUT_S = 180
_LAST_LINES = 8
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
    one = gpus == 1
    ranks = [] if one else ["--gpus", str(_RANKS)]
    schedule = ["--steps", str(_STEPS), "--warmup", str(_WARMUP)]
    return ("record", "--mode", "single" if one else "ddp", *ranks, "--model", "gpt-tiny", *schedule)


def selftest(gpus: int) -> SelfTest:
    """Record with dptrace's own trainer on up to two GPUs, or on two ranks on CPU, check the run and remove it.

    Args:
        gpus: number of this machine's GPUs.
    """
    folder = Path(tempfile.mkdtemp(prefix="dptrace-selftest-"))
    began = time.monotonic()
    try:
        command = recording_command(gpus)
        failure = _record(command, folder)
        verdicts = (failure,) if failure else check_trace_folder(folder / "run", gpus, _read_log(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    result = SelfTest(("dptrace", *command), verdicts, time.monotonic() - began, str(folder))
    if not result.works:
        return result
    shutil.rmtree(folder, ignore_errors=True)
    return SelfTest(result.command, verdicts, result.seconds)


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
    if code == 0:
        return None
    return Verdict("recording", "wrong", f"it failed with exit code {code}: {_last_lines(_read_log(folder))}")


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
            return (Verdict("kernels", "wrong", no_kernels("the ranks", log, surroundings)),)
        return (Verdict("reading", "wrong", f"the recording cannot be read: {str(error).rstrip('. ')}"),)
    ranks = min(gpus, _RANKS) if gpus else _RANKS
    return check_recording(RecordedRun(run, ranks, _STEPS, gpus > 0, log, damage, surroundings))


def _read(folder: Path) -> tuple[Run, str]:
    """Return the run, and what the reader finds damaged in it."""
    try:
        return open_run([str(folder)], ReadOptions(cache=False, strict=True)), ""
    except DptraceError as error:
        return open_run([str(folder)], ReadOptions(cache=False)), str(error)


def check_recording(recorded: RecordedRun) -> tuple[Verdict, ...]:
    """Return what each check that applies to a recording finds."""
    checks: list[Callable[[RecordedRun], Verdict]] = [check_ranks, check_steps, check_kernels]
    if any(True for _ in recorded.timelines()):
        checks.append(check_phases)
        if recorded.on_gpus:
            checks.append(check_launch_clock)
        if recorded.ranks > 1:
            checks += [check_collectives, check_metadata, check_matching, check_clocks]
    checks += [check_losses, check_overhead]
    return tuple(check(recorded) for check in checks)
