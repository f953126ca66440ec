"""Which of this process's threads are gloo's: a trace names no group for what they do, and their order tells it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["gloo_threads"]

_NAME = "pt_gloo_runloop"


def gloo_threads(tasks: Path = Path("/proc/self/task")) -> list[int]:
    """Give the ids of gloo's threads in the order in which they were made; none where the system does not tell.

    Args:
        tasks: where the system lists this process's threads.
    """
    found = []
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
                if (task / "comm").read_text(encoding="utf-8").strip() == _NAME:
                    # Ids begin anew once they are used up, so that the time of beginning comes first.
                    after_name = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    found.append((int(after_name[19]), int(task.name)))
    return [thread for _, thread in sorted(found)]
