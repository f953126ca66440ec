"""The run folder: written under a hidden name and renamed at the end, so that no incomplete run appears."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dptrace.core.termination import signals_held
from dptrace.errors import DptraceError, UsageError
from dptrace.record.ranks.process_tree import is_running

__all__ = ["RUN_FILE", "SCHEMA", "RunFolder", "is_run_folder", "trace_name"]

RUN_FILE = "run.json"  # also in dptrace.readers.discovery: recording does not import the readers
SCHEMA = 1
"""Version of run.json; docs/reference/run-folder.md describes it."""

_OWNER_TIMEOUT_S = 24 * 3600
"""How long another machine's recording counts as running although it writes nothing."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_RUN_FILE_NAMES = re.compile(r"run\.json|rank\d+\.pt\.trace\.json\.gz|rank\d+\.log")


def trace_name(rank: int) -> str:
    """Return the file name of a rank's trace."""
    return f"rank{rank}.pt.trace.json.gz"


def is_run_folder(path: Path) -> bool:
    """Return whether a folder is a recorded run and contains nothing else, so that it may be replaced."""
    try:
        manifest = json.loads((path / RUN_FILE).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    is_run = isinstance(manifest, dict) and {"schema", "status", "world_size"} <= manifest.keys()
    return is_run and all(
        _RUN_FILE_NAMES.fullmatch(file.name) and file.is_file() and not file.is_symlink() for file in path.iterdir()
    )


class RunFolder:
    """A run that will be at *path*; until it is complete, its files are in the hidden folder ``staging`` next to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Absolute, because a script may change its working directory.
        self._target = Path(os.path.abspath(path))
        if Path.cwd().is_relative_to(self._target):
            raise UsageError(f"{path} is the folder you are in, or contains it. Choose a new folder with --out.")
        self.staging = self._target.with_name(f".{self._target.name}.recording")
        self._owner = self.staging / "owner"
        self._force = False
        self.recovered: list[Path] = []
        """What an earlier recording to this path, whose launcher was killed, has left."""

    @classmethod
    def of_staging(cls, staging: Path) -> RunFolder | None:
        """Return the run that belongs to a staging folder; None if it is none."""
        name = re.fullmatch(r"\.(.+)\.recording", staging.name)
        return None if name is None else cls(staging.with_name(name[1]))

    def begin(self, force: bool, recover: Callable[[RunFolder], list[Path]] | None = None) -> None:
        """Check that the run may be written to its path, and create the staging folder.

        Args:
            force: replace a run that is there.
            recover: keeps what a killed recording has left in staging; by default, its traces without run.json.

        Raises:
            UsageError: see :meth:`check`.
            DptraceError: another recording to the same path is running, or the folder cannot be created.
        """
        self.check(force)
        self._force = force
        machine = next(filter(None, map(self._other_owner, (self._owner, self.staging / "owner.agent"))), None)
        if machine is not None:
            raise DptraceError(
                f"{self.path}: another recording to this folder is in progress on {machine}. Choose another -o; "
                f"if that recording has died, remove {self.staging}."
            )
        try:
            if self.staging.exists() and any(self.staging.iterdir()) and not self._owner.exists():
                raise DptraceError(f"{self.staging} exists and is not from a recording; move it elsewhere.")
            self.recovered = (recover or RunFolder._rescue)(self)
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            self._owner.write_text(f"{os.getpid()} {platform.node()}")
        except OSError as error:
            raise DptraceError(f"{self.path} cannot be created: {error.strerror or error}.") from None

    def _rescue(self) -> list[Path]:
        windows = [folder for folder in self.staging.glob("window*") if any(folder.glob("rank*.gz"))]
        return [self.keep_failed(folder) for folder in windows]

    def check(self, force: bool) -> None:
        """Check that writing the run replaces nothing: no run without *force*, and with it nothing but a run.

        Raises:
            UsageError: the path exists and may not be replaced, or its name contains control characters.
        """
        if _UNPRINTABLE.search(str(self.path)):
            raise UsageError(
                f"{str(self.path)!r}: a run's name can't hold line breaks or control characters. Choose another -o."
            )
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or self.path.is_symlink():
            raise UsageError(f"{self.path} exists and is not a folder. Choose another -o.")
        if not any(self.path.iterdir()):
            return
        if not is_run_folder(self.path):
            raise UsageError(
                f"{self.path} exists and contains more than a recorded run; even --force does not replace it. "
                "Choose another -o."
            )
        if not force:
            raise UsageError(
                f"{self.path} already contains a run. Replace it with --force (in Python, force=True), or choose "
                "another -o."
            )

    def _other_owner(self, note: Path) -> str | None:
        """Return the machine on which the process that a file names runs; None if it has ended, or is this one."""
        try:
            owner, _, host = note.read_text().partition(" ")
            if host and host != platform.node():
                # Its process ids mean nothing here; a folder that it left long ago may be reused.
                newest = max(file.stat().st_mtime for file in self.staging.iterdir())
                return host if time.time() - newest < _OWNER_TIMEOUT_S else None
            running = int(owner) != os.getpid() and is_running(int(owner))
        except (OSError, ValueError, OverflowError):
            return None
        return "this machine" if running else None

    def complete(self, files: Path, number: int = 1) -> Path:
        """Move the files of a finished run to its path and return the path; an old run is removed only now.

        Other files that have appeared there meanwhile, such as the script's own checkpoints, stay: the run's files are
        added to them or, if names collide, the run gets another name.

        Args:
            files: the folder in ``staging`` that holds the run's files.
            number: which run of the job it is; from the second on, the number is part of the name.
        """
        with signals_held():
            return self._complete(files, number)

    def _complete(self, files: Path, number: int) -> Path:
        target = self._numbered(self._target, number)
        if not target.exists() or (self._force and is_run_folder(target)):
            self._replace(files, target)
            return self._numbered(self.path, number)
        if number == 1 and target.is_dir() and not {f.name for f in files.iterdir()} & set(os.listdir(target)):
            # run.json last: it marks the run as complete.
            for file in sorted(files.iterdir(), key=lambda file: file.name == RUN_FILE):
                file.rename(target / file.name)
            files.rmdir()
            return self.path
        return self._rename(files, "run")

    def _numbered(self, path: Path, number: int) -> Path:
        return path if number == 1 else path.with_name(f"{path.name}-{number}")

    def _replace(self, files: Path, target: Path) -> None:
        old = target.with_name(f".{target.name}.replaced-{os.getpid()}")
        if target.exists():
            target.rename(old)
        files.rename(target)
        shutil.rmtree(old, ignore_errors=True)

    def keep_failed(self, files: Path) -> Path:
        """Rename an incomplete run to ``<name>.failed`` and return the path."""
        return self._rename(files, "failed")

    def _rename(self, files: Path, ending: str) -> Path:
        """Rename a folder in staging to the first free name next to the target."""
        name, number = f"{self._target.name}.{ending}", 1
        while os.path.lexists(self._target.with_name(name)):
            number += 1
            name = f"{self._target.name}.{ending}-{number}"
        files.rename(self._target.with_name(name))
        return self.path.with_name(name)

    def discard(self) -> None:
        """Delete what is left in staging: nothing after the run has been moved, else all of it."""
        shutil.rmtree(self.staging, ignore_errors=True)
