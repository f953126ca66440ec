"""The ids of gloo's threads: a trace names no process group for their work, but their order identifies it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["gloo_threads"]

_NAME = "pt_gloo_runloop"


def gloo_threads(tasks: Path = Path("/proc/self/task")) -> list[int]:
    """Return the ids of gloo's threads in order of creation; empty if the system does not list threads.

    Args:
        tasks: the folder in which the system lists this process's threads, in the order in which they were created:
            Linux appends each to the list that it shows. Their ids begin again when they have reached the largest,
            and their start times are in hundredths of a second, so neither can replace that order.
    """
    threads = []
    with suppress(OSError):
        for name in os.listdir(tasks):
            with suppress(OSError, ValueError):  # a thread may end meanwhile
                if (tasks / name / "comm").read_text(encoding="utf-8").strip() == _NAME:
                    threads.append(int(name))
    return threads
