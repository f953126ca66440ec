"""Write the ranks' original files to one zip, with a manifest of their clock offsets for Perfetto."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any, cast

from dptrace.errors import DptraceError
from dptrace.export.tracks import AlignedRun
from dptrace.run.run import Run

__all__ = ["MANIFEST", "write_bundle"]

MANIFEST = "perfetto_manifest.json"
Opener = Callable[[str], AbstractContextManager[Any]]

_CHUNK = 1 << 20
_LARGEST = (1 << 31) - 1
"""Largest file in bytes: beyond it, zip needs its 64-bit extension, which Perfetto's reader refuses."""
_LONGEST = 80
"""Longest file name; Perfetto's page repacks files as tar, which allows 99 characters."""
# Perfetto ignores the base time that Kineto's timestamps are relative to. In a name, quotes are escaped.
_BASE = re.compile(rb'(?<!\\)"baseTimeNanoseconds"\s{0,99}:\s{0,99}(\d{1,19})(?!\d)')
_BASE_ROOM = 256


@dataclass(slots=True)
class _Member:
    """One file of the run."""

    address: str
    machine: str
    shift_ns: int
    """Offset to add to its times to place them on the common clock."""
    name: str = ""
    base_ns: int = 0
    """Base time that its timestamps are relative to."""
    packets: bool = False
    """Whether it is in Perfetto's own format, whose clock has a name."""


def write_bundle(
    run: Run, aligned_run: AlignedRun, file: IO[bytes], open_file: Opener, progress: Callable[[float], None]
) -> list[str]:
    """Write a zip of the files that *run* was read from, decompressed but otherwise unchanged, and a clock manifest.

    Files are streamed; each is read at most twice. A manifest cannot express drift: the offset is exact in the middle
    of the recording.

    Args:
        open_file: opens the file of a timeline's path again, compressed or not; the stream has ``peek``.
        progress: called after each file with the number of the run's timelines that are done.

    Returns:
        The names of the files in the zip, in rank order, without the manifest.

    Raises:
        DptraceError: a file cannot be read again, or is larger than Perfetto accepts in a zip.
        OSError: *file* cannot be written.
    """
    members = _members(run, aligned_run)
    for member in members:
        _detect_format(member, open_file)
    # Perfetto uses the clock of the first file by name, and drops everything before that file's start.
    first = min(members, key=lambda member: member.base_ns + member.shift_ns)
    _name(members, first)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive:
        _write(archive, MANIFEST, iter([_manifest(run, members, first)]))
        for number, member in enumerate(members, start=1):
            _write(archive, member.name, _chunks(member, open_file))
            progress(number * len(run.timelines) / len(members))
    return [member.name for member in members]


def _members(run: Run, aligned_run: AlignedRun) -> list[_Member]:
    """Return each file once, with the ranks and the clock shift of the GPUs in it."""
    members: dict[str, _Member] = {}
    ranks: dict[str, list[int]] = {}
    for timeline, shift in zip(run.timelines, aligned_run.shifts, strict=True):
        shift_ns = shift.by_ns if shift.move is not None else 0
        member = members.setdefault(timeline.path, _Member(timeline.path, "", shift_ns))
        # The GPUs of one process share its clock; a GPU without collectives does not show its offset.
        member.shift_ns = member.shift_ns or shift_ns
        ranks.setdefault(timeline.path, []).append(timeline.rank)
    for path, member in members.items():
        numbers = list(dict.fromkeys(ranks[path]))
        member.machine = ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
    machines: dict[str, int] = {}
    for member in members.values():
        # Perfetto merges processes with equal numbers of one machine, so each file is a machine of its own.
        times = machines[member.machine] = machines.get(member.machine, 0) + 1
        member.machine += f" ({times})" if times > 1 else ""
    return list(members.values())


def _detect_format(member: _Member, open_file: Opener) -> None:
    """Detect the format of a file, and read its base time."""
    kept = b""
    for chunk in _chunks(member, open_file):
        if not kept and chunk.lstrip()[:1] not in (b"{", b"["):
            member.packets = True
            return
        kept = kept[-_BASE_ROOM:] + chunk
        if match := _BASE.search(kept):
            member.base_ns = int(match.group(1))
            return


def _chunks(member: _Member, open_file: Opener) -> Iterator[bytes]:
    """Yield the file in chunks, decompressed."""
    with ExitStack() as stack:
        stream = stack.enter_context(open_file(member.address))
        try:
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            while chunk := stream.read(_CHUNK):
                yield cast(bytes, chunk)
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise DptraceError(
                f"{member.address}: cannot be read to its end ({error}), and Perfetto needs complete files. Export a "
                "merged trace instead, which contains everything that could be read: -o NAME.pftrace."
            ) from None


def _name(members: list[_Member], first: _Member) -> None:
    """Choose a unique file name for each file that is safe everywhere; *first* comes first in sorted order."""
    taken: set[str] = set()
    for member in members:
        last = PurePath(re.sub(r"(?<=\.zip)!|(?<=\.tar)!", "/", member.address)).name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", last.removesuffix(".gz")).lstrip("._-")[-_LONGEST:].lstrip("._-")
        # No file may replace the manifest; a name with non-ASCII letters sets a flag that Perfetto refuses.
        stem = stem or "trace.json"
        number, name = 1, stem
        while name.lower() in taken or name.lower() == MANIFEST:
            number += 1
            name = f"{number}-{stem}"
        taken.add(name.lower())
        member.name = name
    others = [member.name for member in members if member is not first]
    prefix = "0-"
    while others and first.name >= min(others):
        first.name = prefix + first.name.removeprefix(prefix)
        prefix += "-"


def _manifest(run: Run, members: list[_Member], first: _Member) -> bytes:
    files: list[dict[str, Any]] = []
    for member in members:
        entry: dict[str, Any] = {"path": member.name, "machine": {"name": member.machine}}
        if member is not first:
            # Only Perfetto's own format names its clock; the times of Chrome's events are used as they are.
            reference = {"file": first.name, **({"clock": "BOOTTIME"} if first.packets else {})}
            offset = member.base_ns + member.shift_ns - first.base_ns - first.shift_ns
            clock = {"clock": "BOOTTIME"} if member.packets else {}
            entry["clocks"] = {**clock, "sync_to": reference, "offset_ns": offset}
        files.append(entry)
    # Perfetto recognizes a manifest by its first key.
    return json.dumps({"perfetto_manifest": {"version": 1, "files": files}}, indent=1).encode()


def _write(archive: zipfile.ZipFile, name: str, chunks: Iterator[bytes]) -> None:
    size = 0
    # Opened by name only, a file is dated 1980, so that the same run produces the same bytes.
    with archive.open(name, "w") as target:
        for chunk in chunks:
            size += len(chunk)
            if size > _LARGEST:
                raise DptraceError(
                    f"{name}: larger than 2 GB, the most Perfetto reads from a zip. Export NAME.pftrace instead."
                )
            target.write(chunk)
