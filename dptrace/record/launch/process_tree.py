"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

__all__ = ["AGENT_PID_ENV", "LAUNCHER_PID_ENV", "descendants", "end_with_parent"]

LAUNCHER_PID_ENV, AGENT_PID_ENV = "DPTRACE_LAUNCHER", "DPTRACE_AGENT"
"""Variables by which a launcher tells its agent, and an agent its ranks, whose children they are."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(with_signal: signal.Signals, parent: str | None = None) -> None:
    """Ask Linux to signal this process when its parent dies, even by SIGKILL; elsewhere do nothing.

    Args:
        parent: id of the process that must be alive, where that was told: it may have died before this one could ask.
    """
    if not sys.platform.startswith("linux"):
        return
    before = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != before or (parent and not _is_running(int(parent))):
        # It died before the call above; nobody will tell.
        os.kill(os.getpid(), with_signal)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def descendants(process: int) -> list[int]:
    """Give the ids of all processes that a process has started, and of those that they started in turn."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [process]
    for one in found:  # grows as it goes
        found += children.get(one, [])
    return found[1:]


def _parents() -> list[tuple[int, int]]:
    """Give each process of this machine with its parent."""
    if not sys.platform.startswith("linux"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
        return [(int(child), int(parent)) for child, parent in map(str.split, listed.stdout.splitlines())]
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name of the program, in parentheses, may hold anything; state and parent come after it.
            with open(f"/proc/{name}/stat", errors="replace") as file:
                found.append((int(name), int(file.read().rpartition(")")[2].split()[1])))
        except OSError:  # it has ended
            continue
    return found
