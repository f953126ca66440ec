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

__all__ = ["RUN_FILE", "SCHEMA", "RunFolder", "is_run_folder", "trace_name"]

RUN_FILE = "run.json"  # dptrace.readers.sources.discovery says it too: recording imports nothing of reading
SCHEMA = 1
"""Version of run.json; docs/run-folder.md describes it."""

_OWNER_TIMEOUT_S = 24 * 3600
"""For how long another machine's recording that writes nothing is taken to be under way."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_RUN_FILE_NAMES = re.compile(r"run\.json|rank\d+\.pt\.trace\.json\.gz|rank\d+\.log")


def trace_name(rank: int) -> str:
    """Name a rank's trace."""
    return f"rank{rank}.pt.trace.json.gz"


def is_run_folder(path: Path) -> bool:
    """Tell whether a folder is a recorded run and holds nothing else, so that it may be replaced."""
    try:
        info = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ours = isinstance(info, dict) and {"schema", "status", "world_size"} <= info.keys()
    return ours and all(_RUN_FILE_NAMES.fullmatch(file.name) and _is_plain(file) for file in path.iterdir())


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


class RunFolder:
    """A run on its way to *path*; until it is complete its files lie in the hidden folder ``staging`` beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Absolute: a script may change its folder before it writes.
        self._target = Path(os.path.abspath(path))
        if Path.cwd().is_relative_to(self._target):
            raise UsageError(f"{path} is the folder you are in, or holds it. Name a new folder with --out.")
        self.staging = self._target.with_name(f".{self._target.name}.recording")
        self._owner = self.staging / "owner"
        self._force = False

    def begin(self, force: bool) -> None:
        """Make sure that the run may go to its path, and make the staging folder.

        Raises:
            UsageError: see :meth:`check`.
            DptraceError: another recording to the same path is under way, or the folder can't be made.
        """
        self.check(force)
        self._force = force
        where = self._other_owner()
        if where is not None:
            raise DptraceError(
                f"{self.path}: another recording to this folder is under way on {where}. Choose another --out; "
                f"if it is none of yours or has died, remove {self.staging}."
            )
        try:
            if self.staging.exists() and any(self.staging.iterdir()) and not self._owner.exists():
                raise DptraceError(f"{self.staging} is in the way and was not left by a recording; move it elsewhere.")
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            self._owner.write_text(f"{os.getpid()} {platform.node()}")
        except OSError as error:
            raise DptraceError(f"{self.path}: can't be made: {error.strerror or error}.") from None

    def check(self, force: bool) -> None:
        """Refuse to replace what must stay: any run without *force*, and anything but a run with it.

        Raises:
            UsageError: something of that kind is there, or the name is one that would tear lines of output apart.
        """
        if _UNPRINTABLE.search(str(self.path)):
            raise UsageError(
                f"{str(self.path)!r}: a run's name can't hold line breaks or control signs. Choose another --out."
            )
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or self.path.is_symlink():
            raise UsageError(f"{self.path} is there already and is no folder. Choose another --out.")
        if not any(self.path.iterdir()):
            return
        if not is_run_folder(self.path):
            raise UsageError(
                f"{self.path} is there already and holds more than a recorded run; even --force does not replace it. "
                "Choose another --out."
            )
        if not force:
            raise UsageError(
                f"{self.path} holds a run already. Replace it with --force (in Python, force=True), or choose "
                "another --out."
            )

    def _other_owner(self) -> str | None:
        """Name the machine on which another process fills the folder; None when the folder is free."""
        try:
            owner, _, host = self._owner.read_text().partition(" ")
            if host and host != platform.node():
                # Its process ids mean nothing here; what it left long ago is taken over.
                newest = max(file.stat().st_mtime for file in self.staging.iterdir())
                return host if time.time() - newest < _OWNER_TIMEOUT_S else None
            if int(owner) == os.getpid():
                return None
            os.kill(int(owner), 0)
        except PermissionError:  # another user's process: there it is
            pass
        except (OSError, ValueError, OverflowError):
            return None
        return "this machine"

    def complete(self) -> Path:
        """Put the run under its name, and give its path; a run that was there goes only now.

        What else has come to stand there meanwhile, such as the script's own checkpoints, stays: the run's files join
        it, or, if names collide, the run gets another name.
        """
        self._owner.unlink(missing_ok=True)
        if not self._target.exists() or (self._force and is_run_folder(self._target)):
            self._replace()
        elif self._target.is_dir() and not {f.name for f in self.staging.iterdir()} & set(os.listdir(self._target)):
            # run.json last: with it the run is whole.
            for file in sorted(self.staging.iterdir(), key=lambda file: file.name == RUN_FILE):
                file.rename(self._target / file.name)
            self.staging.rmdir()
        else:
            self.path = self._rename("run")
        return self.path

    def _replace(self) -> None:
        old = self._target.with_name(f".{self._target.name}.replaced-{os.getpid()}")
        if self._target.exists():
            self._target.rename(old)
        self.staging.rename(self._target)
        shutil.rmtree(old, ignore_errors=True)

    def keep_failed(self) -> Path:
        """Put what there is of a failed run under a name that says so, and give it."""
        self._owner.unlink(missing_ok=True)
        return self._rename("failed")

    def _rename(self, ending: str) -> Path:
        """Give the staging folder the first free name beside the target's."""
        name, number = f"{self._target.name}.{ending}", 1
        while os.path.lexists(self._target.with_name(name)):
            number += 1
            name = f"{self._target.name}.{ending}-{number}"
        self.staging.rename(self._target.with_name(name))
        return self.path.with_name(name)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.staging, ignore_errors=True)
