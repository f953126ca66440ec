"""What the launchers of several machines know of each other: that the first has begun, and that one has failed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from dptrace.errors import RecordingError

__all__ = ["EndedElsewhere", "wait_for_first_machine"]

_POLL_S = 0.2
_LOOK_EVERY_S = 1.0
"""The folder may be on a network."""
_GRACE_S = 15.0
"""How long this machine's ranks may take to notice the end of the others by themselves."""


def wait_for_first_machine(endpoint: str, timeout_s: float = 600.0, check: Callable[[], None] = lambda: None) -> None:
    """Wait until torchrun listens on the first machine, which has prepared the run's folder before.

    Other machines that begin earlier would put files into a folder that the first one is about to empty.

    Args:
        check: called many times; ends the wait by an exception.

    Raises:
        RecordingError: it did not within the time.
    """
    host, _, port = endpoint.rpartition(":")
    until = time.monotonic() + timeout_s
    problem = ""
    while time.monotonic() < until:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return
        except OSError as error:
            problem = error.strerror or str(error)
        check()
        time.sleep(_POLL_S)
    raise RecordingError(
        f"The first machine does not answer at {endpoint} ({problem}). Start the same command there, and check that "
        "this machine reaches that address."
    )


class EndedElsewhere:
    """Notices in a folder that all machines share that the job has ended on another one.

    A dead rank's peers on other machines may wait for it for as long as the backend's timeout.
    """

    def __init__(self, folder: Path, node_rank: int) -> None:
        self.folder, self.node_rank = folder, node_rank
        self._next_look = self._seen_at = 0.0

    def __bool__(self) -> bool:
        """Return whether another machine has ended so long ago that this one must be ended too."""
        now = time.monotonic()
        if self._seen_at:
            return now > self._seen_at + _GRACE_S
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_S
        others = (path.name for path in self.folder.glob("agent*.json"))
        # The first machine renames the folder at the end.
        if not self.folder.exists() or any(name != f"agent{self.node_rank}.json" for name in others):
            self._seen_at = now
        return False
