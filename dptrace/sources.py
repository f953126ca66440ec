"""From what the user names (a run folder, files, a glob) to the trace files of a run and their ranks."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dptrace.errors import DptraceError, UsageError

__all__ = ["RUN_FILE", "Ranked", "Sources", "assign_ranks", "find"]

RUN_FILE = "run.json"
_SUFFIXES = (".json", ".json.gz")
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ .]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of a run."""

    files: tuple[Path, ...]
    named: frozenset[Path]
    """Those that the user named one by one: a fault in one of them is an error, in any other a note."""
    info: dict[str, Any]
    """The contents of ``run.json``, if there is one."""
    notes: tuple[str, ...]


def find(paths: Sequence[str]) -> Sources:
    """Find the trace files that *paths* name.

    Raises:
        UsageError: no path given.
        DptraceError: a path that is not there, or a folder without traces.
    """
    if not paths:
        raise UsageError("Name a run: a run folder, a trace file, several files, or a glob.")
    files: list[Path] = []
    named: set[Path] = set()
    notes: list[str] = []
    info: dict[str, Any] = {}
    for text in paths:
        try:
            found, one = _at(text)
        except (OSError, ValueError, RuntimeError) as error:
            raise DptraceError(f"{text[:200]}: can't be looked at: {error}.") from None
        files += found
        named |= {*found} if one else set()
        info = info or _run_info(_folder_of(text), notes)
    unique = tuple(dict.fromkeys(files))
    return Sources(unique, frozenset(named), info, tuple(notes))


def _at(text: str) -> tuple[list[Path], bool]:
    """Give the files that one argument names, and whether it names them one by one."""
    if not text:
        raise UsageError("An empty path names nothing; for the folder you are in, write a dot.")
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(path), False
    if path.name == RUN_FILE and path.exists():
        # run.json stands for its folder: that is what its reader wants to see.
        return _in_folder(path.parent), False
    if path.exists() or not glob.has_magic(text):
        return [path], True
    found = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if not found:
        raise DptraceError(f"{text}: nothing matches this pattern.")
    return [file for file in found if file.is_file() and file.name != RUN_FILE], False


def _folder_of(text: str) -> Path | None:
    """Give the folder whose run.json tells of the run that an argument names; none for single files."""
    path = Path(text).expanduser()
    return path if path.is_dir() else path.parent if path.name == RUN_FILE else None


def _in_folder(folder: Path) -> list[Path]:
    """List the traces of a folder, or, if it holds none itself, of the folders in it."""
    for pattern in ("*", "*/*"):
        found = sorted(
            file
            for file in folder.glob(pattern)
            if file.name.endswith(_SUFFIXES)
            and file.is_file()
            and file.name != RUN_FILE
            and not file.name.startswith(".")
        )
        if found:
            return found
    raise DptraceError(
        f"{folder}: holds no traces (.json or .json.gz). Was the recording stopped before it wrote any? "
        "Record one with: dptrace record"
    )


def _run_info(folder: Path | None, notes: list[str]) -> dict[str, Any]:
    if folder is None:
        return {}
    file = folder / RUN_FILE
    try:
        info = msgspec.json.decode(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        notes.append(f"{RUN_FILE} can't be read ({error}); the traces are shown without it.")
        return {}
    return info if isinstance(info, dict) else {}


class Ranked(Protocol):
    """A trace file, as far as telling its rank goes."""

    @property
    def path(self) -> str: ...

    @property
    def rank(self) -> int | None: ...


def assign_ranks(traces: Sequence[Ranked]) -> tuple[list[int], list[str]]:
    """Give each trace its rank: from its ``distributedInfo``, else its file's name, else the order.

    Returns:
        The ranks, in the order of the traces, and a sentence on each way of guessing that was used.

    Raises:
        DptraceError: two files claim one rank.
    """
    ranks: dict[int, int] = {}
    owner: dict[int, Ranked] = {}
    notes: list[str] = []
    for index, trace in enumerate(traces):
        rank = trace.rank if trace.rank is not None else _rank_in_name(trace.path)
        if rank is not None:
            ranks[index] = _claim(rank, trace, owner)
    rest = [index for index in range(len(traces)) if index not in ranks]
    free = (rank for rank in range(len(traces)) if rank not in owner)
    for index in rest:
        rank = next(free)
        ranks[index] = _claim(rank, traces[index], owner)
        if len(traces) > 1:
            notes.append(
                f"{Path(traces[index].path).name}: neither the file nor its name says its rank: taken as rank {rank}."
            )
    return [ranks[index] for index in range(len(traces))], notes


def _rank_in_name(path: str) -> int | None:
    found = _RANK_IN_NAME.findall(Path(path).name)
    return int(found[-1]) if found and len(found[-1]) < 7 else None


def _claim(rank: int, trace: Ranked, owner: dict[int, Ranked]) -> int:
    if rank in owner:
        raise DptraceError(
            f"{owner[rank].path} and {trace.path} both claim rank {rank}. Give dptrace the files of one run, "
            "one for each rank; two captures of one rank are two runs."
        )
    owner[rank] = trace
    return rank
