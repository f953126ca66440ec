"""Python subprocesses that start clean, and a pool of them that works through items together with this process.

``multiprocessing`` starts none of them: its processes first run the caller's script again, which breaks scripts and
notebooks that call :func:`dptrace.open` without a main guard; forked processes inherit locks that other threads hold;
and its pools fail all remaining items when one process is killed. Only its connections are used.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from dptrace.core.termination import Terminated, end_on_signals
from dptrace.errors import DptraceError


def available_cores() -> int:
    """Count the cores that this process may use, which a container may limit; on macOS, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, within the limit of the container, if any."""
    free = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # not Linux, or no such cgroup controller
    if free == [1 << 62] and hasattr(os, "sysconf"):
        free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return max(min(free), 0)


def command_output(*command: str) -> str:
    """Return what a command prints; nothing if it is missing, fails or hangs, as nvidia-smi does on a broken GPU."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


class PythonProcess:
    """A new interpreter with the same import path, and a connection to it.

    Args:
        main: the function that it runs, as ``module:function``; its arguments are the descriptors of its end of the
            connection, for :func:`serve`, and of *shared*.
        shared: file descriptors that it inherits.
    """

    def __init__(self, main: str, *shared: int) -> None:
        # A run of one file needs neither.
        import subprocess
        from multiprocessing.connection import Pipe

        module, _, function = main.partition(":")
        self.connection, theirs = Pipe()
        with theirs:
            descriptors = (theirs.fileno(), *shared)
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {module} import {function}; {function}{descriptors}"],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print goes to stderr
                pass_fds=descriptors,
                # Its own session: Ctrl-C reaches only this process, which then stops it. If this one is killed, the
                # connection ends.
                start_new_session=True,
                env={
                    # NumPy's linear algebra would start threads that only spin.
                    "OPENBLAS_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                },
            )

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def serve(descriptor: int, answer: Callable[[Any], object]) -> None:
    """Send back what *answer* returns or raises for each message, until the parent process has gone."""
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_on_signals()
    try:
        with Connection(descriptor) as connection, suppress(EOFError, OSError):
            while True:
                message = connection.recv()
                try:
                    result = answer(message)
                except Exception as error:
                    result = error
                connection.send(result)
    except Terminated as ended:
        os._exit(ended.exit_code)


Item = TypeVar("Item")
Result = TypeVar("Result")


def run_parallel(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Result | DptraceError]]:
    """Call *function* on each item in *jobs* processes, including this one, and yield the results as they arrive.

    Args:
        function: a function at the top level of a module, so that another process can import it.
        items: its arguments; they and the results must be picklable.

    Yields:
        The item's index, and the function's result or the DptraceError that it raised. If a process dies (out of
        memory, killed), or its answer can't be unpickled here, its item is tried once more in this process after all
        others.
    """
    waiting, lost = iter(range(len(items))), list[int]()
    done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    # Windows passes no descriptors on: there, this process does all.
    others = min(jobs, len(items)) - 1 if hasattr(os, "fork") else 0
    workers = [_Worker(function, items, waiting, done) for _ in range(others)]
    finished = 0
    try:
        while finished + len(lost) < len(items):
            index = next(waiting, None) if done.empty() else None
            index, result = done.get() if index is None else (index, _call(function, items[index]))
            if result is _LOST:
                lost.append(index)
                continue
            if isinstance(result, BaseException) and not isinstance(result, DptraceError):
                raise result
            finished += 1
            yield index, result
        # Retried here, where no other process takes memory any more.
        for index in lost:
            yield index, _call(function, items[index])
    finally:
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.stop()


def _call(function: Callable[[Item], Result], item: Item) -> Result | DptraceError:
    try:
        return function(item)
    except DptraceError as error:
        return error


_END_TIMEOUT_S = 5
"""How long a process may take to notice that it is to end; one long computation in C delays that."""
_LOST = object()
"""In place of a result: none has arrived."""


class _Worker(PythonProcess):
    """One process, and the thread that sends it items and receives its results."""

    def __init__(self, *work: Any) -> None:
        super().__init__("dptrace.core.subprocess_pool:serve_calls")
        self.working = False
        self.thread = threading.Thread(target=self._run, args=work, daemon=True)
        self.thread.start()

    def _run(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        waiting: Iterator[int],
        done: SimpleQueue[tuple[int, Any]],
    ) -> None:
        for index in waiting:
            try:
                self.working = True
                self.connection.send((function, items[index]))
                result = self.connection.recv()
            except (EOFError, OSError):
                done.put((index, _LOST))
                return  # the other processes take the remaining items
            except Exception:  # pickling runs the code of the classes: an exception may be one that can't be unpickled
                result = _LOST
            self.working = False
            done.put((index, result))

    def ask_to_end(self) -> None:
        """Let the process remove what it is writing, if it is working."""
        if self.working:
            self.process.terminate()

    def stop(self) -> None:
        """End the process, whatever it is doing, and the thread with it."""
        import subprocess

        if self.working:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_TIMEOUT_S)
        self.process.kill()
        self.thread.join()
        super().stop()


def serve_calls(descriptor: int) -> None:
    """Call functions for the parent process; the main function of a worker."""
    serve(descriptor, lambda call: call[0](call[1]))


# The garbage collector of reference cycles.


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the search for reference cycles while many objects are made that have none.

    Reading a million events starts it hundreds of times, a tenth of all time. Objects without cycles are freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
