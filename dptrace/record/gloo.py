"""The threads on which gloo carries out collectives: which they are, and when they are idle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")
_LOOK_S = 0.001
"""How often threads are looked at until they rest."""
_LOOKS = 3
"""How often in a row all threads must have been idle. A thread that has just ended a collective is still in torch's
code, runs or is ready to run, and a look finds it so."""
_LONGEST_S = 5.0
"""How long the end of collectives is waited for."""
_ELSEWHERE_S = 0.02
"""How long to wait on systems that do not tell what threads do."""


def gloo_threads(tasks: Path = _TASKS) -> list[int]:
    """Return the ids of gloo's threads in order of creation; empty if the system does not list threads.

    A trace names no process group for their work, but their order identifies it.

    Args:
        tasks: the folder in which the system lists this process's threads, in the order in which they were created:
            Linux appends each to the list that it shows. Their ids begin again when they have reached the largest,
            and their start times are in hundredths of a second, so neither can replace that order.
    """
    threads = []
    with suppress(OSError):
        for path in tasks.iterdir():
            with suppress(OSError, ValueError):  # a thread may end meanwhile
                if (path / "comm").read_text(encoding="utf-8").strip() == "pt_gloo_runloop":
                    threads.append(int(path.name))
    return threads


class _Place(NamedTuple):
    """Where a thread is."""

    sleeps: bool
    switches: str
    """How often it has gone to sleep."""
    depth: int
    """Bytes on its stack; -1 where the system does not tell."""


class GlooThreads:
    """Gloo's threads while a profiler is on.

    torch corrupts its memory if a profiler stops before a collective that it records has ended: the end writes into the
    event, which the stop has freed. A collective ends a moment after those who wait for it go on.
    """

    def __init__(self) -> None:
        self._tops: dict[int, int] = {}
        """The address at which each thread's stack begins."""
        self._before = {thread: self._place(thread) for thread in gloo_threads()}

    def wait_until_idle(self, longest_s: float = _LONGEST_S) -> bool:
        """Wait until no thread carries out a collective that began since; return whether that was so in time."""
        if not _TASKS.exists():
            time.sleep(_ELSEWHERE_S)
            return True
        until = time.monotonic() + longest_s
        looks, last, threads = 0, None, gloo_threads()
        while threads and looks < _LOOKS:
            places = {thread: self._place(thread) for thread in threads}
            looks = looks + 1 if places == last and self._all_idle(places) else 0
            if time.monotonic() > until:
                return False
            last = places
            time.sleep(_LOOK_S)
        return True

    def _all_idle(self, places: dict[int, _Place]) -> bool:
        # All wait for work in the same function, so the one that waits there has the least on its stack. One that has
        # not moved since the profiler began may wait in a collective, which is then not recorded.
        seen = [*places.values(), *self._before.values()]
        least = min((place.depth for place in seen if place.depth >= 0), default=-1)
        return all(
            place.sleeps and (place.depth == least or place == self._before.get(thread))
            for thread, place in places.items()
        )

    def _place(self, thread: int) -> _Place:
        """Look at a thread; one that has ended sleeps."""
        try:
            status = (_TASKS / str(thread) / "status").read_text()
        except OSError:
            return _Place(True, "", -1)
        sleeps = "\nState:\tS" in status
        return _Place(sleeps, status.partition("\nvoluntary_ctxt_switches:")[2], self._depth(thread) if sleeps else -1)

    def _depth(self, thread: int) -> int:
        try:
            words = (_TASKS / str(thread) / "syscall").read_text().split()
            pointer = int(words[-2], 16)
        except (OSError, LookupError, ValueError):  # it runs, or the system does not tell
            return -1
        if thread not in self._tops:
            self._tops[thread] = next((end for start, end in _areas() if start <= pointer < end), pointer)
        return self._tops[thread] - pointer


def _areas() -> Iterator[tuple[int, int]]:
    """Yield the areas of this process's memory; each stack is one."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            yield (int(start, 16), int(end, 16))
