"""A benchmark's folder: what was asked, and each run's result as soon as there is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dptrace.errors import DptraceError, UsageError

__all__ = ["PLAN", "Store"]

PLAN = "bench.json"
"""Tells what was asked, and the whole table when all is done."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Store:
    """The folder; every file in it is there whole or not at all."""

    folder: Path

    def begin(self, plan: dict[str, Any], resume: bool, force: bool) -> None:
        """Prepare the folder for a plan.

        Args:
            resume: go on with the results that are there; the plan must be the same.
            force: forget the results that are there.

        Raises:
            UsageError: there are results already and neither was said, or they are of another plan.
        """
        path = self.folder / PLAN
        if path.exists():
            there = self.plan()
            if resume:
                self._check_same_plan(there, plan)
                return
            if not force:
                raise UsageError(
                    f"{self.folder}: holds a benchmark already. --resume goes on with it, --force begins anew, "
                    "-o names another folder."
                )
            for result in self.folder.glob("results/*.json"):
                result.unlink()
        elif resume:
            raise UsageError(f"{self.folder}: there is no benchmark to go on with; leave --resume out.")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder}: holds something else; name another folder with -o.")
        (self.folder / "results").mkdir(parents=True, exist_ok=True)
        write_json(path, {"schema": SCHEMA, "plan": plan})

    def plan(self) -> dict[str, Any]:
        """Read what was asked.

        Raises:
            DptraceError: it can't be read.
        """
        content = read_json(self.folder / PLAN)
        plan = content.get("plan")
        if not isinstance(plan, dict):
            raise DptraceError(f"{self.folder / PLAN}: is no benchmark's: it has no plan.")
        return plan

    def _check_same_plan(self, there: dict[str, Any], plan: dict[str, Any]) -> None:
        asked = msgspec.json.decode(msgspec.json.encode(plan))
        for key in sorted(asked.keys() | there.keys()):
            if there.get(key) != asked.get(key):
                raise UsageError(
                    f"{self.folder}: --resume with another {key.replace('_', ' ')}: {there.get(key)} then, "
                    f"{asked.get(key)} now. Repeat the command as it was, or name another folder with -o."
                )

    def path(self, name: str) -> Path:
        """Give the file of one run's result."""
        return self.folder / "results" / f"{name}.json"

    def result(self, name: str) -> dict[str, Any] | None:
        """Give one run's result, if it has ended."""
        path = self.path(name)
        return read_json(path) if path.exists() else None

    def result_if_readable(self, name: str) -> dict[str, Any] | None:
        """Give one run's result as :meth:`result` does; nothing where its file is damaged: the run is made again."""
        try:
            return self.result(name)
        except DptraceError:
            return None

    def save(self, name: str, result: dict[str, Any]) -> None:
        """Write one run's result."""
        write_json(self.path(name), result)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object.

    Raises:
        DptraceError: there is none.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise DptraceError(f"{path}: can't be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise DptraceError(f"{path}: is no JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DptraceError(f"{path}: holds no JSON object.")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    os.replace(temporary, path)
