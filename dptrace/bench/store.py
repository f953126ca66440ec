"""The folder of a benchmark: its plan, and the result of each run as soon as it ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dptrace.core.files import atomic_write, note_output
from dptrace.errors import DptraceError, UsageError
from dptrace.record.checkpoints.folder import delete_checkpoint

__all__ = ["PLAN", "Store"]

PLAN = "bench.json"
"""Holds the plan, and the table once all runs have ended."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Store:
    """The folder; its files are written atomically."""

    folder: Path

    def begin(self, plan: dict[str, Any], resume: bool, force: bool) -> None:
        """Prepare the folder for a plan.

        Args:
            resume: keep the existing results; the plan must be the same.
            force: delete the existing results.

        Raises:
            UsageError: there are results and neither option is given, their plan is another one, or the folder holds
                a file that the command reads.
        """
        note_output(self.folder)
        path = self.folder / PLAN
        if path.exists():
            there = self.plan()
            if resume:
                self._check_same_plan(there, plan)
                return
            if not force:
                raise UsageError(
                    f"{self.folder}: already contains a benchmark. Use --resume to continue it, --force to overwrite "
                    "it, or -o to choose another folder."
                )
            for result in self.folder.glob("results/*.json"):
                result.unlink()
            for checkpoint in self.folder.glob("checkpoints/*/step-*"):
                delete_checkpoint(checkpoint)
        elif resume:
            raise UsageError(f"{self.folder}: no benchmark to resume; leave --resume out.")
        elif self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder}: exists and is not a folder; choose another one with -o.")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder}: contains other files; choose another folder with -o.")
        try:
            (self.folder / "results").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder}: can't be created: {error.strerror}.") from None
        write_json(path, {"schema": SCHEMA, "plan": plan})

    def plan(self) -> dict[str, Any]:
        """Read the plan.

        Raises:
            DptraceError: the file can't be read.
        """
        content = read_json(self.folder / PLAN)
        plan = content.get("plan")
        if not isinstance(plan, dict):
            raise DptraceError(f"{self.folder / PLAN}: not a file of dptrace bench: it has no plan.")
        return plan

    def _check_same_plan(self, there: dict[str, Any], plan: dict[str, Any]) -> None:
        asked = msgspec.json.decode(msgspec.json.encode(plan))
        for key in sorted(asked.keys() | there.keys()):
            if there.get(key) != asked.get(key):
                raise UsageError(
                    f"{self.folder}: --resume needs the same {key.replace('_', ' ')}: {there.get(key)} then, "
                    f"{asked.get(key)} now. Repeat the same command, or choose another folder with -o."
                )

    def path(self, name: str) -> Path:
        """Return the path of one run's result."""
        return self.folder / "results" / f"{name}.json"

    def result(self, name: str) -> dict[str, Any] | None:
        """Read one run's result; None where it has not ended."""
        path = self.path(name)
        return read_json(path) if path.exists() else None

    def result_if_readable(self, name: str) -> dict[str, Any] | None:
        """Read one run's result; None where it has not ended, or its file is damaged: then the run is repeated."""
        try:
            return self.result(name)
        except DptraceError:
            return None

    def save(self, name: str, result: dict[str, Any]) -> None:
        """Write one run's result."""
        write_json(self.path(name), result)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DptraceError: the file can't be read, or is not a JSON object.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise DptraceError(f"{path}: no such file.") from None
    except OSError as error:
        raise DptraceError(f"{path}: can't be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise DptraceError(f"{path}: not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DptraceError(f"{path}: not a JSON object.")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
