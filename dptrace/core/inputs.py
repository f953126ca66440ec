"""The files that a command reads, which none of its outputs may replace."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from dptrace.errors import UsageError

__all__ = ["STANDARD_INPUT", "command_files", "note_inputs", "note_output", "refuse_overwriting"]

STANDARD_INPUT = "/dev/stdin"
"""The path of standard input, which may be a file."""

Paths = Iterable[str | Path]


@dataclass(slots=True)
class _Files:
    """What a command has said so far that it reads and writes."""

    inputs: list[str | Path] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)


_files: ContextVar[_Files | None] = ContextVar("_files", default=None)


@contextmanager
def command_files() -> Iterator[None]:
    """Compare what is noted in the block: an output that is an input is refused, whichever is noted first."""
    token = _files.set(_Files())
    try:
        yield
    finally:
        _files.reset(token)


def note_inputs(paths: Paths) -> None:
    """Note files that the command reads; outside of a command, do nothing.

    Raises:
        UsageError: one of them is an output.
    """
    if (files := _files.get()) is not None:
        files.inputs += (paths := list(paths))
        refuse_overwriting(files.outputs, paths)


def note_output(path: Path) -> None:
    """Note a file or a folder that the command writes; outside of a command, do nothing.

    A folder is compared with the inputs noted so far only, because a command may read again what it has written there.

    Raises:
        UsageError: it is an input, or a folder that holds one.
    """
    if (files := _files.get()) is not None:
        refuse_overwriting([path], files.inputs)
        if os.path.isfile(path):
            files.outputs.append(path)


def refuse_overwriting(outputs: Paths, inputs: Paths) -> None:
    """Refuse outputs that are inputs, by whatever path or link, or folders that hold one.

    Raises:
        UsageError: the message names both.
    """
    places = {place: path for path in outputs if (place := _place(path)) is not None}
    if not places:
        return
    holds_files = any(os.path.isdir(path) for path in places.values())
    parents: set[str] = set()
    for path in inputs:
        if (place := _place(path)) in places:
            raise UsageError(
                f"{places[place]}: the command reads this file{_spelled(path, places[place])}, and never overwrites "
                "what it reads, even with --force. Choose another file."
            )
        if holds_files and (folder := os.path.dirname(os.path.realpath(path))) not in parents:
            parents.add(folder)
            _refuse_folder(places, path, folder)


def _refuse_folder(places: dict[tuple[int, int], str | Path], path: str | Path, folder: str) -> None:
    for parent in (folder, *map(str, Path(folder).parents)):
        if (place := _place(parent)) in places:
            raise UsageError(
                f"{places[place]}: holds {path}, which the command reads and never overwrites, even with --force. "
                "Choose another folder."
            )


def _spelled(path: str | Path, output: str | Path) -> str:
    return "" if str(path) == str(output) else f", as {path}"


def _place(path: str | Path) -> tuple[int, int] | None:
    """Return what identifies a file or a folder under all its names; None for a pipe, a device, and what is missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None
