"""Python subprocesses that start clean, and a pool of them that works through items together with this process.

``multiprocessing`` is not used: its processes first run the caller's script again, which breaks scripts and notebooks
that call :func:`dptrace.open` without a main guard; forked processes inherit locks that other threads hold; and its
pools fail all remaining items when one process is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import IO, Any, TypeVar

from dptrace.errors import DptraceError

__all__ = ["available_cores", "close_pipes", "detach_output", "run_parallel", "start_python", "stop_process"]


def available_cores() -> int:
    """Count the cores that this process may use, which a container may limit; on macOS, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_python(code: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Run *code* in a new interpreter with the same import path, and pipes to its stdin and from its stdout.

    Args:
        descriptors: file descriptors that it inherits.
    """
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        # Its own session: Ctrl-C reaches only this process, which then stops it. If this one is killed, its pipe ends.
        start_new_session=True,
        env={
            # NumPy's linear algebra would start threads that only spin.
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        },
    )


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and wait for its end."""
    with suppress(OSError):
        process.kill()
    process.wait()


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close this process's ends of the pipes to another."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


def detach_output() -> IO[bytes]:
    """Return a worker's stdout for its results only: what libraries print goes to stderr, and Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return results


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
        memory, killed), its item is tried once more in this process after all others.
    """
    waiting, lost = deque(range(len(items))), list[int]()
    done: SimpleQueue[tuple[int, Result | BaseException]] = SimpleQueue()
    workers = [_Worker(function, items, waiting, done) for _ in range(min(jobs, len(items)) - 1)]
    finished = 0
    try:
        while finished + len(lost) < len(items):
            index = _next(waiting) if done.empty() else None
            if index is not None:
                finished += 1
                yield index, _call(function, items[index])
                continue
            index, result = done.get()
            if isinstance(result, _WorkerDied):
                lost.append(index)
                continue
            finished += 1
            yield _unwrap(index, result)
        # Retried here, where no other process takes memory any more.
        for index in lost:
            yield index, _call(function, items[index])
    finally:
        waiting.clear()
        for worker in workers:
            worker.stop()


def _next(waiting: deque[int]) -> int | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _call(function: Callable[[Item], Result], item: Item) -> Result | DptraceError:
    try:
        return function(item)
    except DptraceError as error:
        return error


class _WorkerDied(Exception):
    """The process that worked on an item ended without a result."""


def _unwrap(index: int, result: Result | BaseException) -> tuple[int, Result | DptraceError]:
    if isinstance(result, BaseException) and not isinstance(result, DptraceError):
        raise result
    return index, result


class _Worker:
    """One process, and the thread that sends it items and receives its results."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        waiting: deque[int],
        done: SimpleQueue[tuple[int, Any]],
    ) -> None:
        self.function, self.items, self.waiting, self.done = function, items, waiting, done
        self.process = start_python("from dptrace.core.subprocess_pool import serve; serve()")
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                index = self.waiting.popleft()
            except IndexError:
                return
            result = self._request(index)
            self.done.put((index, result))
            if self.process.poll() is not None:
                return  # the other processes take the remaining items

    def _request(self, index: int) -> object:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        name = f"{self.function.__module__}:{self.function.__qualname__}"
        try:
            _send(self.process.stdin, (name, self.items[index]))
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.process.wait()
            return _WorkerDied()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        stop_process(self.process)
        self.thread.join()
        close_pipes(self.process)


def _send(stream: IO[bytes], message: object) -> None:
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def serve() -> None:
    """Read calls from stdin and write their results to stdout, until stdin ends; the main function of a worker."""
    answers = detach_output()
    while True:
        try:
            name, item = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        module, _, function = name.partition(":")
        try:
            result = getattr(import_module(module), function)(item)
        except Exception as error:
            result = error
        try:
            _send(answers, result)
        except OSError:
            return  # the parent process has gone
