"""The ranks' own files, as they were recorded, in one zip that tells Perfetto how their clocks stand to each other."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any, BinaryIO, cast

from dptrace.errors import DptraceError
from dptrace.export.aligned_run import AlignedRun
from dptrace.run.run import Run

__all__ = ["MANIFEST", "write_bundle"]

MANIFEST = "perfetto_manifest.json"
Opener = Callable[[str], BinaryIO]

_CHUNK = 1 << 20
_LARGEST = (1 << 31) - 1
"""Bytes of one file: beyond, zip needs its 64-bit extension, which Perfetto's reader refuses."""
_LONGEST = 80
"""Letters of a name; Perfetto's page packs files anew as tar, which holds 99."""
# Perfetto reads Chrome's events as they stand, without what Kineto counts them from. In a name quotes are escaped.
_BASE = re.compile(rb'(?<!\\)"baseTimeNanoseconds"\s{0,99}:\s{0,99}(\d{1,19})(?!\d)')
_BASE_ROOM = 256


@dataclass(slots=True)
class _Member:
    """One file of the run."""

    address: str
    machine: str
    shift_ns: int
    """What is added to its times to have them on the common clock."""
    name: str = ""
    base_ns: int = 0
    """What its times count from."""
    packets: bool = False
    """Whether it is Perfetto's own format, whose clock has a name."""


def write_bundle(
    run: Run, aligned_run: AlignedRun, file: IO[bytes], open_file: Opener, progress: Callable[[float], None]
) -> list[str]:
    """Write a zip of the files that *run* was read from, byte for byte but unpacked, and a manifest of their clocks.

    Files are streamed, each read twice at most. The clocks' drift has no place in a manifest: what is added is right
    in the middle of the recording.

    Args:
        open_file: opens the file of a timeline's path anew, compressed or not; the stream can ``peek``.
        progress: called after each file with how many of the run's timelines are done.

    Returns:
        The names of the files in the zip, in the order of ranks, without the manifest's.

    Raises:
        DptraceError: a file can't be read again, or is larger than Perfetto takes from a zip.
        OSError: *file* can't be written.
    """
    members = _members(run, aligned_run)
    for member in members:
        _look(member, open_file)
    # The first file by name gives the merged trace its clock, and what would begin before it is dropped.
    first = min(members, key=lambda member: member.base_ns + member.shift_ns)
    _name(members, first)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive:
        _write(archive, MANIFEST, iter([_manifest(run, members, first)]))
        for number, member in enumerate(members, start=1):
            _write(archive, member.name, _text(member, open_file))
            progress(number * len(run.timelines) / len(members))
    return [member.name for member in members]


def _members(run: Run, aligned_run: AlignedRun) -> list[_Member]:
    """Give each file once, with the ranks and the clock of the GPUs in it."""
    found: dict[str, _Member] = {}
    ranks: dict[str, list[int]] = {}
    for timeline, shift in zip(run.timelines, aligned_run.shifts, strict=True):
        moved = shift.by_ns if shift.move is not None else 0
        member = found.setdefault(timeline.path, _Member(timeline.path, "", moved))
        # The GPUs of one process share its clock; one without collectives can't tell of it.
        member.shift_ns = member.shift_ns or moved
        ranks.setdefault(timeline.path, []).append(timeline.rank)
    for path, member in found.items():
        numbers = list(dict.fromkeys(ranks[path]))
        member.machine = ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
    machines: dict[str, int] = {}
    for member in found.values():
        # Files of one machine would share processes whose numbers mean different things.
        times = machines[member.machine] = machines.get(member.machine, 0) + 1
        member.machine += f" ({times})" if times > 1 else ""
    return list(found.values())


def _look(member: _Member, open_file: Opener) -> None:
    """Find what kind of file it is, and what its times count from."""
    kept = b""
    for chunk in _text(member, open_file):
        if not kept and chunk.lstrip()[:1] not in (b"{", b"["):
            member.packets = True
            return
        kept = kept[-_BASE_ROOM:] + chunk
        if found := _BASE.search(kept):
            member.base_ns = int(found.group(1))
            return


def _text(member: _Member, open_file: Opener) -> Iterator[bytes]:
    """Give the file in pieces, unpacked."""
    with ExitStack() as stack:
        stream: Any = stack.enter_context(open_file(member.address))
        try:
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            while chunk := stream.read(_CHUNK):
                yield cast(bytes, chunk)
        except (OSError, EOFError, zlib.error) as error:
            raise DptraceError(
                f"{member.address}: can't be read to its end ({error}), and Perfetto wants whole files. A merged trace "
                "(-o NAME.pftrace) holds all that could be read."
            ) from None


def _name(members: list[_Member], first: _Member) -> None:
    """Give each file a name of its own that is safe everywhere, and *first* the one that comes before all others."""
    taken: set[str] = set()
    for member in members:
        last = PurePath(re.sub(r"(?<=\.zip)!|(?<=\.tar)!", "/", member.address)).name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", last.removesuffix(".gz")).lstrip("._-")[-_LONGEST:].lstrip("._-")
        # Nothing may stand in for the manifest; a name of letters outside ASCII sets a flag that Perfetto refuses.
        stem = stem or "trace.json"
        number, name = 1, stem
        while name.lower() in taken or name.lower() == MANIFEST:
            number += 1
            name = f"{number}-{stem}"
        taken.add(name.lower())
        member.name = name
    others = [member.name for member in members if member is not first]
    mark = "0-"
    while others and first.name >= min(others):
        first.name = mark + first.name.removeprefix(mark)
        mark += "-"


def _manifest(run: Run, members: list[_Member], first: _Member) -> bytes:
    files: list[dict[str, Any]] = []
    for member in members:
        entry: dict[str, Any] = {"path": member.name, "machine": {"name": member.machine}}
        if member is not first:
            # A clock that has a name is called by it; Chrome's events have none, and are pinned as they stand.
            reference = {"file": first.name, **({"clock": "BOOTTIME"} if first.packets else {})}
            offset = member.base_ns + member.shift_ns - first.base_ns - first.shift_ns
            own = {"clock": "BOOTTIME"} if member.packets else {}
            entry["clocks"] = {**own, "sync_to": reference, "offset_ns": offset}
        files.append(entry)
    # Perfetto knows a manifest by this being its first key.
    return json.dumps({"perfetto_manifest": {"version": 1, "files": files}}, indent=1).encode()


def _write(archive: zipfile.ZipFile, name: str, chunks: Iterator[bytes]) -> None:
    size = 0
    # Named by its text alone, a file is said to be of 1980: the same run gives the same bytes.
    with archive.open(name, "w") as target:
        for chunk in chunks:
            size += len(chunk)
            if size > _LARGEST:
                raise DptraceError(
                    f"{name}: is larger than the 2 GB that Perfetto takes from a zip; export NAME.pftrace instead."
                )
            target.write(chunk)
