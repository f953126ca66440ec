"""Find the trace files of a run, and their ranks, from folders, files, globs, archives and URLs."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dptrace.core.files import STANDARD_INPUT, note_inputs, unreadable
from dptrace.core.notes import Note
from dptrace.core.units import listed, plural, sanitize
from dptrace.errors import DptraceError, SeveralRanksError, TraceError, UsageError
from dptrace.readers.formats import (
    DATABASE_SUFFIXES,
    FORMATS,
    REPORT_SUFFIXES,
    TRACE_SUFFIXES,
    is_database,
    is_flight_dump,
)
from dptrace.readers.nsight_export import exported, is_export, sources_of, work_in
from dptrace.readers.source import STDIN, Source, from_file_url, is_url, last_part, redact
from dptrace.readers.storage import ARCHIVE_DAMAGE, COMPRESSED_TARS, SEEKABLE_ARCHIVES, is_archive, members, open_source

# Read ``run.json``, which people edit and other tools write: what figures read of it has the types they expect.

RUN_FILE = "run.json"
_UNREADABLE: tuple[type[Exception], ...] = (*ARCHIVE_DAMAGE, DptraceError, RecursionError)

_NUMBER = (int, float)
_RANK: dict[str, Any] = {
    **dict.fromkeys(("rank", "node", "local_rank", "threads", "recorded_steps"), int),
    **dict.fromkeys(("host", "device", "file"), str),
    **dict.fromkeys(("memory", "coordinates", "pipeline", "experts", "ddp"), dict),
    "flops": {"hardware": _NUMBER, "model": _NUMBER, "dtype": str},
    "unprofiled_ns": [_NUMBER],
    "profiled_ns": [_NUMBER],
    "core_wait_ns": [_NUMBER],
    "overhead_windows": [dict],
}
_RUN: dict[str, Any] = {
    **dict.fromkeys(("status", "created", "mode", "script", "model", "backend"), str),
    **dict.fromkeys(("schema", "nnodes", "world_size", "parameters"), int),
    **dict.fromkeys(("versions", "ddp", "schedule", "failure"), dict),
    "profiler_overhead": _NUMBER,
    "options": {"batch_size": _NUMBER, "tokens_per_sample": _NUMBER},
    "links": {"busbw_gbps": _NUMBER, "busbw_gbps_by_kind": dict},
    "command": [str],
    "losses": [_NUMBER],
    "notes": [str],
    "restarts": [dict],
    "ranks": [_RANK],
}
"""The types of docs/reference/run-folder.md: a list is one of such values, an object may have further keys; each may be
null."""
_MAX_SHOWN = 100
"""Characters of a value that a note shows."""
_NAMES = {int: "a whole number", str: "a text", dict: "an object", list: "a list", _NUMBER: "a number"}


def read_run_file(file: Source) -> tuple[dict[str, Any], list[str]]:
    """Return the contents of a ``run.json``, without values of a wrong type, and a sentence on what is wrong in it."""
    infinite: dict[str, None] = {}

    def number(text: str) -> int | float | None:
        value = float(text)
        if not math.isfinite(value):
            return infinite.setdefault(text)
        return int(text) if text.lstrip("-").isdigit() and abs(value) < 1 << 63 else value

    try:
        with open_source(file) as stream:
            text = stream.read().decode("utf-8-sig")
        content = json.loads(text, parse_constant=infinite.setdefault, parse_float=number, parse_int=number)
    except _UNREADABLE as error:
        reason = str(error).removeprefix(f"{file.address}: can't be read: ").rstrip(".")
        return {}, [f"{RUN_FILE} can't be read ({reason}); the traces are shown without it."]
    if not isinstance(content, dict):
        return {}, [f"{RUN_FILE} holds no object, but {_shown(content)}; the traces are shown without it."]
    notes, wrong = [], list[str]()
    if infinite:
        notes.append(f"{RUN_FILE} holds {listed([*map(_short, infinite)])}, which JSON does not have; read as null.")
    _drop_wrong(content, _RUN, "", wrong)
    if wrong:
        notes.append(f"{RUN_FILE}: left out, since its type is wrong: {listed([*map(_short, wrong)], separator='; ')}.")
    return content, notes


def _drop_wrong(values: dict[str, Any], kinds: dict[str, Any], place: str, wrong: list[str]) -> None:
    """Remove the values of a wrong type from an object, and describe each."""
    for key, kind in kinds.items():
        value, name = values.get(key), f"{place}{key}"
        outer = list if isinstance(kind, list) else dict if isinstance(kind, dict) else kind
        if value is None:
            continue
        if not _is(value, outer):
            wrong.append(f"{name} is {_shown(value)}, not {_NAMES[outer]}")
            del values[key]
        elif isinstance(kind, dict):
            _drop_wrong(value, kind, f"{name}.", wrong)
        elif isinstance(kind, list):
            inner = dict if isinstance(kind[0], dict) else kind[0]
            for number, element in enumerate(value):
                if element is not None and not _is(element, inner):
                    wrong.append(f"{name}[{number}] is {_shown(element)}, not {_NAMES[inner]}")
                elif isinstance(kind[0], dict) and element is not None:
                    _drop_wrong(element, kind[0], f"{name}[{number}].", wrong)
            values[key] = [element for element in value if element is None or _is(element, inner)]


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return _NAMES[type(value)] if isinstance(value, (dict, list)) else _short(json.dumps(value))


def _short(text: str) -> str:
    return sanitize(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


Value = TypeVar("Value")

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
_MAX_ERRORS = 5
"""Unreadable files whose errors are listed."""
MAX_LEVELS = 3
"""Levels of a folder that are searched: its own files, and those of folders and their folders in it."""
_EXTENSIONS = ", ".join([*(extension for known in FORMATS for extension in known.extensions), *DATABASE_SUFFIXES])
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ .]?(\d+)", re.IGNORECASE)


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
    sources = Sources(tuple(dict.fromkeys(files)), frozenset(named), _joined(infos), tuple(notes), run_file)
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
    found = [(work, file) for file in exports if len(exports) > 1 and (work := work_in(file)) is not None]
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


def _joined(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run.json, with the ranks that the job's other machines kept because they share no folder."""
    joined, *others = infos or [{}]
    for other in others:
        known, more = _ranks_of(joined), _ranks_of(other)
        same = all(joined.get(key) == other.get(key) for key in ("world_size", "nnodes", "mode", "model", "schedule"))
        if not same or not more or known.keys() & more.keys():
            continue
        joined = joined | {
            "ranks": [entry for _, entry in sorted((known | more).items())],
            "notes": [
                *dict.fromkeys(
                    note for info in (joined, other) for note in info.get("notes") or () if isinstance(note, str)
                )
            ],
            "losses": [],  # the means over the ranks of one machine
        }
        if other.get("status") == "failed":
            joined |= {"status": "failed", "failure": other.get("failure")}
    return joined


def _ranks_of(info: dict[str, Any]) -> dict[int, dict[str, Any]]:
    entries = info.get("ranks")
    return {
        entry["rank"]: entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and type(entry.get("rank")) is int
    }


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
    found = _expanded([Source(str(file)) for file in _plain(matches, notes) if file.name != RUN_FILE])
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
        return _expanded([file for file in matches if file.name != RUN_FILE])
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
    run_file = folder / RUN_FILE
    notes: list[str] = []
    if run_file.exists() and not is_confined(run_file):
        notes.append(_LEADS_OUT.format(run_file))
    patterns = [os.path.join(glob.escape(str(folder)), *"*" * level) for level in range(1, MAX_LEVELS + 1)]
    paths = (Path(path) for pattern in patterns for path in sorted(glob.glob(pattern)))
    plain = _plain([path for path in paths if kind_of(path.name) is not None], notes)
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


def _plain(paths: Sequence[Path], notes: list[str]) -> list[Path]:
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
    chosen = _expanded([file for key in sorted(groups) if key[:3] == first for file in groups[key]], run_file)
    owner = {rank_in_name(file.address): file.address for file in chosen.files}
    added: list[Source] = []
    left_out: list[str] = []
    notes = [*notes, *chosen.notes]
    for group in (groups[key] for key in sorted(groups) if key[:3] != first):
        others = _expanded(group, optional=True)
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


def _expanded(files: Sequence[Source], run_file: Source | None = None, optional: bool = False) -> _ArgumentFiles:
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


def raise_unless_left_out(sources: Sources, index: int, error: DptraceError, strict: bool) -> None:
    """Raise why a file can't be read if it is the only one or the user named it, or where *strict* allows no gap."""
    if isinstance(error, SeveralRanksError):  # split_ranks lets them be read one by one
        return
    alone = len(sources.files) == 1 or sources.files[index] in sources.named
    if strict or alone or error.exit_code != DptraceError.exit_code:
        raise error


def split_ranks(
    sources: Sources, found: Mapping[int, Value | DptraceError]
) -> tuple[Sources, dict[int, Value | DptraceError]]:
    """Replace each file that turned out to hold several ranks by a source for each of them, with a note.

    Args:
        found: what each file holds, by its index, or why it can't be read.

    Returns:
        The sources, and what was read of them, by their new index; the ranks of those files are not read yet.
    """
    files, named, notes = list[Source](), set(sources.named), list(sources.notes)
    read = dict[int, Value | DptraceError]()
    for index, file in enumerate(sources.files):
        result = found[index]
        if not isinstance(result, SeveralRanksError):
            read[len(files)] = result
            files.append(file)
            continue
        ranks = [file.of_rank(part) for part in result.parts]
        files += ranks
        named |= {*ranks} if file in named else set()
        notes.append(str(result))
    return replace(sources, files=tuple(files), named=frozenset(named), notes=tuple(notes)), read


def without_errors(sources: Sources, found: Mapping[int, Value | DptraceError]) -> tuple[list[Value], list[str]]:
    """Return what was read, in the order of the files, and the notes on them.

    Args:
        found: what each file holds, by its index, or why it can't be read.

    Raises:
        DptraceError: no file can be read.
    """
    ordered = [found[index] for index in range(len(sources.files))]
    errors = [f"Left out: {error}" for error in _by_reason(sources, ordered)]
    if len(errors) > _MAX_ERRORS + 1:
        errors[_MAX_ERRORS:] = [f"Left out: {len(errors) - _MAX_ERRORS:,} more files that can't be read."]
    notes = [*sources.notes, *errors]
    values = [result for result in ordered if not isinstance(result, DptraceError)]
    if not values:
        raise DptraceError("No file is a readable trace:\n" + "\n".join(notes))
    return values, notes


def _by_reason(sources: Sources, results: Sequence[object]) -> list[str]:
    """Describe the files that can't be read, those with the same reason together: workers may all lack credentials."""
    files: dict[str, list[str]] = {}
    for source, result in zip(sources.files, results, strict=True):
        if isinstance(result, DptraceError):
            address = f"{source.address}: "
            named = address if str(result).startswith(address) else ""
            files.setdefault(str(result).removeprefix(named), []).append(named)
    more = {reason: plural(len(named) - 1, "more file") for reason, named in files.items()}
    return [
        named[0] + reason if len(named) == 1 else f"{named[0].removesuffix(': ')} and {more[reason]}: {reason}"
        for reason, named in files.items()
    ]


def refuse_damage(path: str, damage: Sequence[Note]) -> None:
    """Raise an error for a damaged file, as ``--strict`` demands.

    Raises:
        TraceError: data was truncated, repaired or dropped.
    """
    if damage:
        raise TraceError(f"{path}: damaged, and --strict refuses damaged files: {' '.join(map(str, damage))}")


def assign_ranks(files: Sequence[tuple[str, int | None]]) -> tuple[list[int], list[Note]]:
    """Assign a rank to each file: from its ``distributedInfo``, else the file's name, else the order.

    Args:
        files: the path of each, and the rank that it knows.

    Returns:
        The ranks, in the order of the files, and a sentence on each rank that was guessed.

    Raises:
        DptraceError: two files claim one rank.
    """
    known = [rank if rank is not None else rank_in_name(path) for path, rank in files]
    owner: dict[int, str] = {}
    for rank, (path, _) in zip(known, files, strict=True):
        if rank in owner:
            raise DptraceError(
                f"{owner[rank]} and {path} both claim rank {rank}. Name the files of one run, one per rank; two "
                "captures of one rank are two runs."
            )
        if rank is not None:
            owner[rank] = path
    free = (rank for rank in range(len(files)) if rank not in owner)
    ranks = [next(free) if rank is None else rank for rank in known]
    text = "neither the file nor its name has a rank: assumed rank {}."
    return ranks, [
        Note(text, (str(rank),), _name_of(path))
        for (path, _), rank, of_file in zip(files, ranks, known, strict=True)
        if of_file is None and len(files) > 1
    ]


def rank_in_name(path: str) -> int | None:
    found = _RANK_IN_NAME.findall(_name_of(path))
    return int(found[-1]) if found and len(found[-1]) < 7 else None


def _name_of(path: str) -> str:
    """Return the last part of a trace's address, or of its name in an archive."""
    return last_part(path).rpartition("!")[2]
