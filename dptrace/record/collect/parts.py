"""The parts of a run that ``dptrace collect`` gathers: run folders, folders of them, and archives."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dptrace.core.compression import ARCHIVE_DAMAGE
from dptrace.core.inputs import note_inputs
from dptrace.errors import DptraceError
from dptrace.record.run_folder.folder import RUN_FILE
from dptrace.record.run_folder.manifest import overhead

__all__ = ["Part", "find_parts"]

_FILES = re.compile(r"run\.json|rank\d{1,9}\.pt\.trace\.json\.gz|rank\d{1,9}\.log")
_LARGEST_RUN_FILE = 1 << 28
_GROWTH, _ALWAYS_ALLOWED = 20, 1 << 30
"""Traces are compressed already, so that an archive that grows more when unpacked is not one of runs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some ranks of a run: what one machine has recorded."""

    name: str
    """How messages call it."""
    folder: Path
    metadata: dict[str, Any]
    """Its run.json."""

    @property
    def files(self) -> list[Path]:
        """The traces and logs, in order."""
        return sorted(path for path in self.folder.iterdir() if _FILES.fullmatch(path.name) and path.name != RUN_FILE)


def find_parts(source: Path, scratch: Path) -> list[Part]:
    """Return the parts in a run folder, in a folder that holds run folders, or in an archive of either.

    Args:
        scratch: an empty folder to unpack archives to.

    Raises:
        DptraceError: there is none, or one is damaged.
    """
    if not source.exists():
        remote = re.match(r"([^/:]+):(.+)", str(source))
        advice = f" Copy it here first: scp -r {source} ." if remote else ""
        raise DptraceError(f"{source} does not exist.{advice}")
    folder = source
    if not source.is_dir():
        folder = scratch
        _unpack(source, scratch)
    found = [folder] if (folder / RUN_FILE).is_file() else []
    if not found:
        depth = "**" if folder is scratch else "*"
        found = sorted(path.parent for path in folder.glob(f"{depth}/{RUN_FILE}") if path.parent.name[0] != ".")
    if not found:
        raise DptraceError(f"{source} holds no {RUN_FILE}, which dptrace record writes next to the traces.")
    note_inputs([source] if folder is scratch else [file for path in found for file in path.iterdir()])
    return [_part(source, folder, path) for path in found]


def _part(source: Path, top: Path, folder: Path) -> Part:
    inside = folder.relative_to(top)
    name = str(source if inside == Path() else source / inside)
    path = folder / RUN_FILE
    try:
        if path.stat().st_size > _LARGEST_RUN_FILE:
            raise ValueError("it is too large")
        metadata = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(metadata, dict) or not isinstance(metadata.get("ranks"), list):
            raise ValueError("it lists no ranks")
        _check_lists(metadata)
        for entry in metadata["ranks"]:
            _check_rank(entry, folder)
        overhead(metadata["ranks"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DptraceError(f"{name}: {RUN_FILE} is not one of dptrace record, or incomplete: {error}.") from None
    return Part(name, folder, metadata)


def _check_lists(metadata: dict[str, Any]) -> None:
    kinds: dict[str, tuple[type, ...]] = {"losses": (int, float, type(None)), "notes": (str,), "restarts": (dict,)}
    for key, kind in kinds.items():
        values = metadata.get(key) or []
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise ValueError(f"{key} has an unexpected form")
    if not isinstance(metadata.get("failure"), (dict, type(None))):
        raise ValueError("failure has an unexpected form")


def _check_rank(entry: Any, folder: Path) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("rank"), int) or entry["rank"] < 0:
        raise ValueError("an entry of ranks has no number")
    name = entry.get("file")
    if not isinstance(name, str) or not _FILES.fullmatch(name) or not (folder / name).is_file():
        raise ValueError(f"the trace of rank {entry['rank']} is missing; copy the folder again")


def _unpack(archive: Path, to: Path) -> None:
    """Write the files of runs in an archive to a folder, and nothing else.

    Raises:
        DptraceError: it is no archive, or it grows beyond reason.
    """
    left = max(archive.stat().st_size * _GROWTH, _ALWAYS_ALLOWED)
    try:
        for name, file in _members(archive):
            # Only the names of folders are kept, so that no file can be written outside.
            folders = [part for part in PurePosixPath(name).parts[:-1] if part not in ("/", "..", ".")]
            target = to.joinpath(*folders, PurePosixPath(name).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while block := file.read(1 << 20):
                    left -= len(block)
                    if left < 0:
                        raise DptraceError(
                            f"{archive}: grows more than {_GROWTH} times when unpacked; unpack it yourself."
                        )
                    out.write(block)
    except ARCHIVE_DAMAGE as error:
        shutil.rmtree(to, ignore_errors=True)
        reason = str(error).partition("\n")[0].removesuffix(":")
        raise DptraceError(
            f"{archive}: is neither a folder nor a tar or zip archive that can be read: {reason}."
        ) from None


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of each file of a run in an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                if not entry.is_dir() and _FILES.fullmatch(PurePosixPath(entry.filename).name):
                    with packed.open(entry) as file:
                        yield entry.filename, file
        return
    with tarfile.open(archive) as tape:
        for member in tape:
            if member.isfile() and _FILES.fullmatch(PurePosixPath(member.name).name):
                content = tape.extractfile(member)
                assert content is not None
                yield member.name, content
