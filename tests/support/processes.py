"""The processes that run in a folder, and commands that must come to an end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return all processes that run in *folder*: launcher, torchrun, ranks."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def wait_until(happened: Callable[[], object], timeout_s: float = 120) -> None:
    """Look until something has happened.

    Raises:
        AssertionError: it takes longer.
    """
    until = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def finished(command: Sequence[str | Path], timeout_s: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as :func:`subprocess.run` does, and return its exit code and outputs.

    Raises:
        AssertionError: it takes longer; the message says what each of its processes did, and what they printed.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            states = [_state(one) for one in running]
            for one in running:
                with suppress(psutil.Error):
                    one.kill()
            out, err = process.communicate()
            shown = "\n".join((*states, out[-2000:], err[-4000:]))
            raise AssertionError(f"{command} still ran after {timeout_s} s.\n{shown}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _state(process: psutil.Process) -> str:
    """Return what a process does: its state, its processor time, where in the kernel it waits."""
    try:
        with suppress(OSError):
            waits = Path(f"/proc/{process.pid}/wchan").read_text()
            used = process.cpu_times()
            line = " ".join(process.cmdline())[:120]
            return f"{process.pid} {process.status()}, {used.user + used.system:.1f} s of CPU, in {waits}: {line}"
    except psutil.Error:
        pass
    return f"{process.pid} ended"
