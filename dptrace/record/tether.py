"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(with_signal: signal.Signals) -> None:
    """Ask Linux to signal this process when its parent dies, even by SIGKILL; elsewhere do nothing."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != parent:
        # It died before the call above; nobody will tell.
        os.kill(os.getpid(), with_signal)
