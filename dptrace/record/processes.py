"""Processes of a job: the signals that end them, and the tree below one."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from dptrace.record.safety import harmless

# Processes that end with their parent, however it ends, and the descendants of a process.


LAUNCHER_PID_ENV, AGENT_PID_ENV = "DPTRACE_LAUNCHER", "DPTRACE_AGENT"
"""Environment variables that hold the process id of the launcher, for its agent, and of the agent, for its ranks."""

INTERRUPT_IGNORED = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""Whether this process was started so, as a shell starts ``command &`` in a script."""
_PR_SET_PDEATHSIG = 1
"""Of ``prctl``: the signal that a process gets when its parent ends."""
_LOOK_S, _GRACE_S = 1.0, 5.0
"""How often a process looks whether its parent lives, and how long it may take to end by itself then."""


def end_with_parent(with_signal: signal.Signals, parent: str | None = None) -> None:
    """Ask Linux to signal this process when its parent dies, even by SIGKILL; elsewhere do nothing.

    Args:
        parent: id of a process that must be alive, if known: it may have died before this process made the request.
    """
    if not sys.platform.startswith("linux"):
        return
    before = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != before or (parent and not is_running(int(parent))):
        # It died before the call above, so no signal will come.
        os.kill(os.getpid(), with_signal)


def core_wait_ns() -> int | None:
    """Return how long the calling thread could have run since it began, but had no core; None where Linux is not."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 100).split()[1])  # time on a core, time in a queue for one, and turns
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return None


def is_running(process: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"  # ended, but not yet collected by its parent
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or a system without /proc
        return True


def tie_to_parent(parent: str | None, busy: Callable[[], bool]) -> None:
    """Let this process end when its parent dies: by SIGTERM first, so that it can write, and by SIGKILL in the end.

    SIGTERM counts as an exit, unless the program handles it. torchrun sends it to the peers of a dead rank, and the
    system to ranks whose torchrun has died; each writes the steps that it has recorded.

    Without a launcher above it, the process may outlive its parent, as without a recorder: a shell that has started it
    and is left, for example. It then only handles SIGTERM.

    Args:
        parent: id of the launcher or of its agent, as in :func:`end_with_parent`; None without one.
        busy: whether this process writes what must not be lost.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    with suppress(ValueError):  # only the main thread can set it
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave)
    if parent is None:
        return
    end_with_parent(signal.SIGTERM, parent)
    before = os.getppid()

    @harmless("watching the launcher")
    def watch() -> None:
        while os.getppid() == before:
            time.sleep(_LOOK_S)
        time.sleep(_GRACE_S)
        while busy():
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGKILL)  # the main thread may wait in C++ code, which heeds no SIGTERM

    threading.Thread(target=watch, name="dptrace_parent", daemon=True).start()


def hang_up() -> None:
    """Close the connections of this process's collectives on CPUs, as its end would: it may write for seconds first.

    A peer that waits for it in one gets no signal, since it runs C++ code; it now fails, and writes what it has
    recorded. Gloo serves its connections by epoll. Those of the job's key-value store stay; systems without /proc
    have nothing closed.
    """
    store = os.environ.get("MASTER_PORT", "")
    with suppress(OSError):
        for number in {watched for name in os.listdir("/proc/self/fd") for watched in _watched(name)}:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                if store not in (str(connection.getsockname()[1]), str(connection.getpeername()[1])):
                    connection.shutdown(socket.SHUT_RDWR)


def _watched(name: str) -> list[int]:
    """Return the descriptors that an epoll descriptor of this process watches; none for one of another kind."""
    try:
        if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
            with open(f"/proc/self/fdinfo/{name}") as file:
                return [int(line.split()[1]) for line in file if line.startswith("tfd:")]
    except OSError:  # closed meanwhile
        pass
    return []


def ignore_termination() -> Any:
    """Ignore SIGTERM: this process ends by itself, and would lose what it writes. torchrun kills after some seconds.

    Return the handler before; None where this is not the main thread, which alone can set one.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, signal.SIG_IGN)


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    tree = [process]
    for member in tree:  # grows during the loop
        tree += children.get(member, [])
    return tree[1:]


def _parents() -> list[tuple[int, int]]:
    """Return the ids of each process of this machine and its parent."""
    if not sys.platform.startswith("linux"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
        return [(int(child), int(parent)) for child, parent in map(str.split, listed.stdout.splitlines())]
    pairs = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The program name, in parentheses, may contain anything; state and parent follow it.
            with open(f"/proc/{name}/stat", errors="replace") as file:
                pairs.append((int(name), int(file.read().rpartition(")")[2].split()[1])))
        except OSError:  # the process has ended
            continue
    return pairs


# Catch the signals that ask a launcher to end, and act on them where that is safe.
#
# A handler that raised would do so anywhere: inside an import that swallows it, or inside ``Popen.poll``, whose lock it
# would leave locked. So the handler only takes note, and loops look.


class Interrupted(BaseException):
    """A signal stopped the launcher."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        self.kept = "; no step was recorded yet, and nothing is kept."
        """What is kept of a recording, and what is lost, as the end of a sentence and further lines."""


class Signals:
    """The signals that have arrived."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.exit_code: int | None = None
        """With which a script without torchrun has ended itself after one."""

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self.numbers:
            raise Interrupted(self.numbers[0])

    @property
    def again(self) -> bool:
        """Whether the user has asked a second time."""
        return len(self.numbers) > 1


_caught: Signals | None = None


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Take note of SIGINT, SIGTERM and SIGHUP in the block; a block inside another one shares what it has noted.

    A signal that is ignored stays so: SIGHUP under nohup, SIGINT of a command in a script's background.
    """
    global _caught
    if _caught is not None or threading.current_thread() is not threading.main_thread():
        yield _caught or Signals()
        return
    caught = _caught = Signals()

    def note(number: int, frame: FrameType | None) -> None:
        caught.numbers.append(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        _caught = None
        for number, handler in before.items():
            signal.signal(number, handler)
