"""The processes that run in a folder."""

from __future__ import annotations

from pathlib import Path

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
