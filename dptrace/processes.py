"""A Python process of our own, started clean: nothing of the caller's script is run again in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["cores", "start"]


def cores() -> int:
    """Count the cores that this process may use, which a container may have cut; macOS does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(code: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
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
