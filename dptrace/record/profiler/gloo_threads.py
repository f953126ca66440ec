"""The ids of gloo's threads: a trace names no process group for their work, but their order identifies it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["gloo_threads"]

_NAME = "pt_gloo_runloop"


def gloo_threads(tasks: Path = Path("/proc/self/task")) -> list[int]:
    """Return the ids of gloo's threads in order of creation; empty if the system does not list threads.

    Args:
        tasks: the folder in which the system lists this process's threads.
    """
    threads = []
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
                if (task / "comm").read_text(encoding="utf-8").strip() == _NAME:
                    # Ids wrap around, so sort by start time first.
                    after_name = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    threads.append((int(after_name[19]), int(task.name)))
    return [thread for _, thread in sorted(threads)]
