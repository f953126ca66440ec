"""A Python process of our own, started clean: nothing of the caller's script is run again in it.

Work spread over the cores: processes of our own beside this one, which works too.

Not ``multiprocessing``: its processes begin by running the caller's script again, which a script or a notebook that
only calls :func:`dptrace.open` is not made for, and forked ones inherit whatever threads hold.
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

__all__ = ["available_cores", "run_parallel", "start_python"]


def available_cores() -> int:
    """Count the cores that this process may use, which a container may have cut; macOS does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_python(code: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Run *code* in a new interpreter that finds the same packages, with pipes to its stdin and from its stdout.

    Args:
        descriptors: open files that it may use, too.
    """
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        # Its own session: Ctrl-C reaches this process, which then stops it. If this one is killed, its pipe ends.
        start_new_session=True,
        env={
            # NumPy's linear algebra would start threads that spin, for nothing.
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        },
    )


Item = TypeVar("Item")
Result = TypeVar("Result")


def run_parallel(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Result | DptraceError]]:
    """Call *function* on each item in *jobs* processes, this one among them; give the results as they come.

    Args:
        function: a module's own function, so that another process can import it.
        items: what it is called with; they and the results must pickle.

    Yields:
        An item's index, and what the function returned or the DptraceError that it raised. A process that died (out
        of memory, killed) costs the item it was at another try, in this process, once the others are done.
    """
    waiting, lost = deque(range(len(items))), list[int]()
    done: SimpleQueue[tuple[int, Result | BaseException]] = SimpleQueue()
    workers = [_Worker(function, items, waiting, done) for _ in range(min(jobs, len(items)) - 1)]
    given = 0
    try:
        while given + len(lost) < len(items):
            index = _next(waiting) if done.empty() else None
            if index is not None:
                given += 1
                yield index, _call(function, items[index])
                continue
            index, result = done.get()
            if isinstance(result, _WorkerDied):
                lost.append(index)
                continue
            given += 1
            yield _unwrap(index, result)
        # A process that died costs its item another try, here, where nothing runs beside it any more.
        for index in lost:
            yield index, _call(function, items[index])
    finally:
        waiting.clear()
        for helper in workers:
            helper.stop()


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
    """The process that an item was given to ended without an answer."""


def _unwrap(index: int, result: Result | BaseException) -> tuple[int, Result | DptraceError]:
    if isinstance(result, BaseException) and not isinstance(result, DptraceError):
        raise result
    return index, result


class _Worker:
    """One process, and the thread that hands it items and takes its results."""

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
                return  # what is left is for the others

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
        """End the process, whatever it is at."""
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()


def _send(stream: IO[bytes], message: object) -> None:
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def serve() -> None:
    """Answer on stdout what is asked on stdin, until it ends; run in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
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
            return  # nobody is there to hear it
