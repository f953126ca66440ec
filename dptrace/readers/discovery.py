"""Find the trace files of a run, and their ranks, from folders, files, globs, archives and URLs."""

from __future__ import annotations

import glob
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from dptrace.core.files import STANDARD_INPUT, note_inputs, unreadable
from dptrace.core.units import listed
from dptrace.errors import DptraceError, TraceError, UsageError
from dptrace.readers.formats import (
    DATABASE_SUFFIXES,
    FORMATS,
    REPORT_SUFFIXES,
    TRACE_SUFFIXES,
    is_database,
    is_flight_dump,
    is_watched,
)
from dptrace.readers.nsight_export import exported, is_export, sources_of, work_in
from dptrace.readers.run_file import RUN_FILE, join_run_files, read_run_file
from dptrace.readers.source import STDIN, Source, from_file_url, is_url, last_part, rank_in_name, redact
from dptrace.readers.storage import COMPRESSED_TARS, SEEKABLE_ARCHIVES, is_archive, members

_KINDS = (*(known.suffixes for known in FORMATS), DATABASE_SUFFIXES, REPORT_SUFFIXES, SEEKABLE_ARCHIVES)
"""Ends of the names of files that hold traces, by kind, in lower case."""
_REFUSED = (
    *COMPRESSED_TARS,
    *(extension + end for known in FORMATS for extension in known.extensions for end in (".zst", ".bz2", ".xz")),
)
"""Ends of the names of files that users take for traces: reading one says what to do."""
_MAX_DUMPS = 100
"""Files of a folder without traces that are looked at for dumps."""
_DUMP_START = 1 << 16
"""Bytes that tell a dump of torch's flight recorder: they hold its list of groups, also of many ranks."""
MAX_LEVELS = 3
"""Levels of a folder that are searched: its own files, and those of folders and their folders in it."""
_EXTENSIONS = ", ".join([*(extension for known in FORMATS for extension in known.extensions), *DATABASE_SUFFIXES])


class Sources(msgspec.Struct, frozen=True):
    """The files of a run."""

    files: tuple[Source, ...]
    named: frozenset[Source]
    """Files that the user named individually: a fault in one of them is an error, in others a note."""
    metadata: dict[str, Any]
    """The contents of ``run.json``; empty without one."""
    notes: tuple[str, ...]
    run_file: Source | None = None
    """Where the metadata is from."""
    windows: tuple[tuple[str, ...], ...] = ()
    """Addresses of the files of each window, in the order of time, where each process has several; else empty."""

    def local_files(self) -> list[str]:
        """Return what holds the run on this machine: its files or their archives, and ``run.json``."""
        sources = self.files if self.run_file is None else (*self.files, self.run_file)
        containers = dict.fromkeys(source.container for source in sources if not source.remote)
        paths = [STANDARD_INPUT if path == STDIN else path for path in containers]
        # It belongs to the run where a file is named individually, too.
        return [*paths, *dict.fromkeys(os.path.join(os.path.dirname(path), RUN_FILE) for path in paths)]


class _ArgumentFiles(msgspec.Struct, frozen=True):
    """The files that one argument names."""

    files: list[Source]
    named_individually: bool = False
    run_file: Source | None = None
    notes: tuple[str, ...] = ()


def find(paths: Sequence[str]) -> Sources:
    """Find the trace files that *paths* name.

    Raises:
        UsageError: no path, standard input together with others, or a file that is also the command's output.
        DptraceError: a path does not exist, a folder, an archive or a URL holds no traces, or exports of Nsight Systems
            are of several runs.
        MissingExtraError: the package for such URLs is not installed.
    """
    if not paths:
        raise UsageError("Name a run: a run folder, a trace file, several files, or a glob.")
    if STDIN in paths and len(paths) > 1:
        raise UsageError("Standard input (-) holds one trace; name no other files with it.")
    files: list[Source] = []
    named: set[Source] = set()
    reports: list[str] = []
    notes: list[str] = []
    infos: list[dict[str, Any]] = []
    exports: list[Source] = []
    run_file: Source | None = None
    for text in paths:
        try:
            found = _files_of_argument(text)
        except (OSError, ValueError, RuntimeError) as error:
            raise DptraceError(unreadable(redact(text)[:200], error)) from None
        ranks = [rank for file in found.files for rank in _ranks_in(file, exports)]
        files += ranks
        named |= {*ranks} if found.named_individually else set()
        reports += [file.address for file in found.files if file.name.lower().endswith(REPORT_SUFFIXES)]
        notes += found.notes
        if found.run_file is not None:
            run_file = run_file or found.run_file
            metadata, remarks = read_run_file(found.run_file)
            infos.append(metadata)
            notes += remarks
    _refuse_other_runs(dict.fromkeys(exports))
    if again := [file.name for file, times in Counter(files).items() if times > 1]:
        which = again[0] if len(again) == 1 else f"{len(again):,} files"
        notes.append(f"{which} {'was' if len(again) == 1 else 'were'} named more than once: read once.")
    sources = Sources(tuple(dict.fromkeys(files)), frozenset(named), join_run_files(infos), tuple(notes), run_file)
    note_inputs([*sources.local_files(), *reports])
    return sources


def _ranks_in(file: Source, exports: list[Source]) -> list[Source]:
    """Return a source for each rank in a file; a report of Nsight Systems is exported first, where nsys is here.

    Args:
        exports: the file is added to it if it is an export of Nsight Systems that can be read.
    """
    if file.name.lower().endswith(REPORT_SUFFIXES):
        file = exported(file) or file
    try:
        if not is_database(file):
            return [file]
        ranks = sources_of(file)
    except TraceError:  # reading it says why
        return [file]
    exports.append(file)
    return ranks


_CLOCKS_AGREE = 60 * 10**9
"""ns by which the clocks of two machines may differ."""
_SAME_CLOCK = 10**9
"""ns between the work of two processes of one run on one machine; another run takes longer to start."""


def _refuse_other_runs(exports: Collection[Source]) -> None:
    """Raise an error where the GPUs of one export of Nsight Systems worked before those of another: no run does that.

    Raises:
        DptraceError: it names both.
    """
    works = [(work_in(file), file) for file in exports] if len(exports) > 1 else []
    found = [(work, file) for work, file in works if work is not None]
    for host in dict.fromkeys(work.host for work, _ in found):
        on_host = [pair for pair in found if pair[0].host == host]
        for pairs, apart in ((on_host, _SAME_CLOCK if host else _CLOCKS_AGREE), (found, _CLOCKS_AGREE)):
            first, last = min(pairs, key=lambda pair: pair[0].end_ns), max(pairs, key=lambda pair: pair[0].begin_ns)
            if last[0].begin_ns - first[0].end_ns > apart:
                names = first[1].address, last[1].address
                raise DptraceError(
                    f"{names[0]} and {names[1]}: are of two runs, since the GPUs of the first worked until "
                    f"{_utc(first[0].end_ns)} and those of the second from {_utc(last[0].begin_ns)}. Name the exports "
                    f"of one run, or compare two: {shlex.join(['dptrace', 'diff', *names])}"
                )


def _utc(ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ns // 10**9))


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as a user would type it: a path object has lost the ``./`` that lets a name begin with a tilde."""
    text = str(path)
    is_a_name = not isinstance(path, str) and text.startswith("~") and os.path.lexists(PurePath(text).parts[0])
    return os.path.join(os.curdir, text) if is_a_name else text


_confined_to: str = ""


def confine(folder: Path | None) -> None:
    """Read from now on, in this process, only what lies below a folder, wherever links lead; None ends that."""
    global _confined_to
    _confined_to = "" if folder is None else os.path.realpath(folder)


def is_confined(path: Path) -> bool:
    """Return whether a path may be read: always, unless reading is confined to a folder."""
    return not _confined_to or os.path.commonpath([_confined_to, os.path.realpath(path)]) == _confined_to


def _files_of_argument(text: str) -> _ArgumentFiles:
    """Find the files that one argument names."""
    if not text:
        raise UsageError("A path is empty; for the current folder, write a dot.")
    if text == STDIN:
        return _ArgumentFiles([Source.of(STDIN)], named_individually=True)
    if is_url(text):
        local = from_file_url(text)
        if local is None:
            return _at_url(text)
        text = local
    else:
        text = os.path.expanduser(text)
    path = Path(text)
    if path.is_dir():
        return _in_folder(path)
    if path.name == RUN_FILE and path.exists():
        # run.json stands for its folder.
        return _in_folder(path.parent)
    if path.is_file() and _is_archive(path):
        return _in_archive(Source(str(path)))
    if path.exists() or not glob.has_magic(text):
        return _member(text) or _ArgumentFiles([Source(str(path))], named_individually=True)
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if not matches:
        raise DptraceError(f"{text}: nothing matches this pattern.")
    notes: list[str] = []
    found = _expand_archives([Source(str(file)) for file in _regular_files(matches, notes) if file.name != RUN_FILE])
    return replace(found, notes=(*notes, *found.notes))


def _is_archive(path: Path) -> bool:
    """Return whether a file is an archive by its name, or a zip archive by its first bytes."""
    if is_archive(path.name):
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _member(text: str) -> _ArgumentFiles | None:
    """Return the file of an address such as ``all.zip!rank0.json``; None for other addresses."""
    archive, bang, member = text.rpartition("!")
    if not bang or not is_archive(last_part(archive)) or (not is_url(text) and Path(text).exists()):
        return None
    return _ArgumentFiles([Source.of(archive).archive_member(member)], named_individually=True)


def _at_url(url: str) -> _ArgumentFiles:
    from dptrace.readers import remote

    where, name = redact(url), last_part(url)
    if found := _member(url):
        return found
    if name == RUN_FILE:
        return _in_remote_folder(url.rpartition("/")[0])
    if re.search(r"[*\[]", name) or "**" in url or ("?" in name and not url.lower().startswith("http")):
        matches = [Source.of(match) for match in remote.glob_files(url)]
        if not matches:
            raise DptraceError(f"{where}: nothing matches this pattern.")
        return _expand_archives([file for file in matches if file.name != RUN_FILE])
    if is_archive(name):
        return _in_archive(Source.of(url))
    # The request costs time, and a server may refuse to list files that it lets you read.
    if not name.lower().endswith(TRACE_SUFFIXES) and remote.is_folder(url):
        return _in_remote_folder(url)
    return _ArgumentFiles([Source.of(url)], named_individually=True)


def _in_remote_folder(url: str) -> _ArgumentFiles:
    from dptrace.readers import remote

    listed: list[Source] = []
    for deeper in (False, True):
        files = [Source.of(child) for child in remote.list_files(url, deeper)]
        listed = listed or files
        if found := _traces_among(files, next((file for file in listed if file.name == RUN_FILE), None)):
            return found
    raise _no_traces(redact(url))


def _in_folder(folder: Path) -> _ArgumentFiles:
    """Find the traces in a folder and below it."""
    os.scandir(folder).close()  # glob passes over a folder that can't be read
    if is_watched(folder):
        raise _watched(folder)
    run_file = folder / RUN_FILE
    notes: list[str] = []
    if run_file.exists() and not is_confined(run_file):
        notes.append(_LEADS_OUT.format(run_file))
    patterns = [os.path.join(glob.escape(str(folder)), *"*" * level) for level in range(1, MAX_LEVELS + 1)]
    paths = (Path(path) for pattern in patterns for path in sorted(glob.glob(pattern)))
    found_there = [path for path in paths if kind_of(path.name) is not None]
    # Of a watched run below, the recordings are traces; what lies beside them is not.
    watches = {parent for parent in {path.parent for path in found_there} if is_watched(parent)}
    plain = _regular_files([path for path in found_there if path.parent not in watches], notes)
    files = [Source(str(file)) for file in plain if may_be_trace(file)]
    if found := _traces_among(
        files, Source(str(run_file)) if run_file.exists() and is_confined(run_file) else None, notes
    ):
        return found
    if dump := next(filter(_is_dump, sorted(folder.iterdir())[:_MAX_DUMPS]), None):
        raise DptraceError(
            f"{folder}: holds no traces, but dumps of torch's flight recorder ({dump.name}); find out what hangs with: "
            + shlex.join(["dptrace", "flight", str(folder)])
        )
    raise _no_traces(str(folder), notes)


def _watched(folder: Path) -> DptraceError:
    captures = sorted(str(path.parent) for path in folder.glob(f"capture*/{RUN_FILE}"))
    of_them = f" Its captures are recordings: {listed(captures, 3)}." if captures else ""
    command = shlex.join(["dptrace", "watch", str(folder)])
    return DptraceError(f"{folder}: is a watched run, not a recording. Read it with: {command}.{of_them}")


def _is_dump(file: Path) -> bool:
    with suppress(OSError):
        if file.is_file():
            with file.open("rb") as stream:
                return is_flight_dump(file.name, stream.read(_DUMP_START))
    return False


def may_be_trace(file: Path) -> bool:
    """Return whether a file of a folder may be a trace: not a foreign database, nor a report beside its export."""
    name = file.name.lower()
    if name.endswith(REPORT_SUFFIXES):
        return not any(file.with_suffix(suffix).exists() for suffix in DATABASE_SUFFIXES)
    return not name.endswith(DATABASE_SUFFIXES) or is_export(file)


def _in_archive(archive: Source) -> _ArgumentFiles:
    names = members(archive)
    inner = [name for name in names if is_archive(name)]
    traces = [name for name in names if not is_archive(name) and not name.startswith("__MACOSX/")]
    run_files = sorted((name for name in names if Source.of(name).name == RUN_FILE), key=lambda name: name.count("/"))
    notes = [f"Left out: {listed(inner)} in {archive.address}: to read archives in an archive, unpack it."]
    if found := _traces_among(
        [archive.archive_member(name) for name in traces],
        archive.archive_member(run_files[0]) if run_files else None,
        notes if inner else (),
    ):
        return found
    if inner:
        raise TraceError(f"{archive.address}: holds an archive ({inner[0]}) but no traces; unpack the outer archive.")
    raise TraceError(
        f"{archive.address}: holds no traces ({_EXTENSIONS}, gzipped or not) but {listed(names) or 'nothing'}."
    )


def _regular_files(paths: Sequence[Path], notes: list[str]) -> list[Path]:
    """Keep the files, with a note on anything else that is named like a trace."""
    for path in paths:
        if path.name.lower().endswith(TRACE_SUFFIXES) and not path.is_file() and not path.is_dir():
            what = "is a pipe or a device; name it to read it" if path.exists() else "is a dead link"
            notes.append(f"Left out: {path}: {what}.")
    outside = [path for path in paths if not is_confined(path)]
    # Of a link to a folder, what is in it is not told.
    notes += dict.fromkeys(_LEADS_OUT.format(_link_of(path)) for path in outside)
    return [path for path in paths if path.is_file() and path not in outside]


_LEADS_OUT = "Left out: {}: leads out of the folder that may be read."


def _link_of(path: Path) -> Path:
    """Return the first part of a path that leads out."""
    return next(part for part in (*reversed(path.parents), path) if part.is_symlink() and not is_confined(part))


def _traces_among(files: Sequence[Source], run_file: Source | None, notes: Sequence[str] = ()) -> _ArgumentFiles | None:
    """Choose the traces of one run by their names; return None if there are none.

    They are the files of the first kind at the highest level. Others, of another format or deeper, may be ranks of the
    run, or copies, exports and other runs: those of a folder are read if all their ranks are still missing.
    """
    groups: dict[tuple[bool, int, int, str], list[Source]] = {}
    for file in files:
        kind = kind_of(file.name)
        if kind is not None and file.name != RUN_FILE and not file.name.startswith("."):
            parts = () if file.member else PurePath(file.address).parts[:-1]
            groups.setdefault((kind == len(_KINDS), len(parts), kind, "/".join(parts)), []).append(file)
    if not groups:
        return None
    first = min(groups)[:3]
    chosen = _expand_archives([file for key in sorted(groups) if key[:3] == first for file in groups[key]], run_file)
    owner = {rank_in_name(file.address): file.address for file in chosen.files}
    added: list[Source] = []
    left_out: list[str] = []
    notes = [*notes, *chosen.notes]
    for group in (groups[key] for key in sorted(groups) if key[:3] != first):
        others = _expand_archives(group, optional=True)
        notes += others.notes
        ranked = [(rank_in_name(file.address), file) for file in others.files]
        known = [(rank, file) for rank, file in ranked if rank is not None]
        if None in owner or len(owner.keys() | dict(known).keys()) < len(owner) + len(known):
            known = []
        for rank, file in ranked:
            if (rank, file) not in known:
                why = f"rank {rank} is read from {owner[rank]}" if rank in owner else "its name does not show its run"
                left_out.append(f"{file.address} ({why})")
        added += [file for _, file in known]
        owner |= {rank: file.address for rank, file in known}
    if added:
        notes.append(f"Taken for further ranks, by their names: {listed([file.address for file in added])}.")
    if left_out:
        notes.append(f"Left out: {listed(left_out)}. To read other files together, name them.")
    return _ArgumentFiles([*chosen.files, *added], run_file=chosen.run_file, notes=tuple(notes))


def kind_of(name: str) -> int | None:
    """Return the index in ``_KINDS`` of a file's name, or the next one for one that is refused; None for any other."""
    return next((kind for kind, ends in enumerate((*_KINDS, _REFUSED)) if name.lower().endswith(ends)), None)


def _expand_archives(files: Sequence[Source], run_file: Source | None = None, optional: bool = False) -> _ArgumentFiles:
    """Replace archives by the traces in them; one that has none is left out, unless all have none.

    Raises:
        TraceError: no archive holds traces, and the files are not *optional*.
    """
    found: list[Source] = []
    notes: list[str] = []
    errors: list[TraceError] = []
    for file in files:
        try:
            inner = _in_archive(file) if not file.member and is_archive(file.name) else _ArgumentFiles([file])
        except TraceError as error:
            errors.append(error)
        else:
            found += inner.files
            notes += inner.notes
            run_file = run_file or inner.run_file
    if errors and not found and not optional:
        raise errors[0]
    notes += [f"Left out: {error}" for error in errors]
    return _ArgumentFiles(found, run_file=run_file, notes=tuple(notes))


def _no_traces(where: str, notes: Sequence[str] = ()) -> DptraceError:
    advice = (
        f"{where}: holds no traces ({_EXTENSIONS}, gzipped or not, or an archive of them). Was the recording "
        "stopped before it wrote any? Record one with: dptrace record"
    )
    return DptraceError(" ".join([advice, *notes]))
