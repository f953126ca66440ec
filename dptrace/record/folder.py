"""The run folder: filled beside its name and renamed at the end, so that no half-written run appears under it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from pathlib import Path

from dptrace.errors import DptraceError, UsageError

__all__ = ["RUN_FILE", "SCHEMA", "RunFolder", "is_run", "trace_name"]

RUN_FILE = "run.json"  # dptrace.sources says it too: recording imports nothing of reading
SCHEMA = 1
"""Version of run.json; docs/run-folder.md describes it."""

_FRESH_S = 24 * 3600
"""For how long another machine's recording that writes nothing is taken to be under way."""
_OURS = re.compile(r"run\.json|rank\d+\.pt\.trace\.json\.gz|rank\d+\.log")


def trace_name(rank: int) -> str:
    """Name a rank's trace."""
    return f"rank{rank}.pt.trace.json.gz"


def is_run(path: Path) -> bool:
    """Tell whether a folder is a recorded run and holds nothing else, so that it may be replaced."""
    try:
        info = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ours = isinstance(info, dict) and {"schema", "status", "world_size"} <= info.keys()
    return ours and all(_OURS.fullmatch(file.name) for file in path.iterdir())


class RunFolder:
    """A run on its way to *path*; until it is complete its files lie in the hidden folder ``staging`` beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Absolute: a script may change its folder before it writes.
        self._target = path.absolute()
        self.staging = self._target.with_name(f".{path.name}.recording")
        self._owner = self.staging / "owner"

    def begin(self, force: bool) -> None:
        """Make sure that the run may go to its path, and make the staging folder.

        Raises:
            UsageError: see :meth:`check`.
            DptraceError: another recording to the same path is under way, or the folder can't be made.
        """
        self.check(force)
        where = self._busy()
        if where is not None:
            raise DptraceError(
                f"{self.path}: another recording to this folder is under way on {where}. Choose another --out; "
                f"if it is none of yours or has died, remove {self.staging}."
            )
        try:
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            self._owner.write_text(f"{os.getpid()} {platform.node()}")
        except OSError as error:
            raise DptraceError(f"{self.path}: can't be made: {error.strerror or error}.") from None

    def check(self, force: bool) -> None:
        """Refuse to replace what must stay: any run without *force*, and anything but a run with it.

        Raises:
            UsageError: something of that kind is there.
        """
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or self.path.is_symlink():
            raise UsageError(f"{self.path} is there already and is no folder. Choose another --out.")
        if not any(self.path.iterdir()):
            return
        if not is_run(self.path):
            raise UsageError(
                f"{self.path} is there already and holds more than a recorded run; even --force does not replace it. "
                "Choose another --out."
            )
        if not force:
            raise UsageError(f"{self.path} holds a run already; --force replaces it, --out records elsewhere.")

    def _busy(self) -> str | None:
        """Name the machine on which another process fills the folder; None when the folder is free."""
        try:
            owner, _, host = self._owner.read_text().partition(" ")
            if host and host != platform.node():
                # Its process ids mean nothing here; what it left long ago is taken over.
                newest = max(file.stat().st_mtime for file in self.staging.iterdir())
                return host if time.time() - newest < _FRESH_S else None
            if int(owner) == os.getpid():
                return None
            os.kill(int(owner), 0)
        except PermissionError:  # another user's process: there it is
            pass
        except (OSError, ValueError, OverflowError):
            return None
        return "this machine"

    def complete(self) -> Path:
        """Put the run under its name; a run that was there goes only now."""
        self._owner.unlink(missing_ok=True)
        old = self._target.with_name(f".{self.path.name}.replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self._target.exists():
            self._target.rename(old)
        self.staging.rename(self._target)
        shutil.rmtree(old, ignore_errors=True)
        return self.path

    def keep_failed(self) -> Path:
        """Put what there is of a failed run under a name that says so, and give it."""
        self._owner.unlink(missing_ok=True)
        name, number = f"{self.path.name}.failed", 1
        while self._target.with_name(name).exists():
            number += 1
            name = f"{self.path.name}.failed-{number}"
        self.staging.rename(self._target.with_name(name))
        return self.path.with_name(name)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.staging, ignore_errors=True)
