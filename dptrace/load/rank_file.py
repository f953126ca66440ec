"""One rank's file, read: its timelines and their figures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dptrace.analysis.per_gpu.device import figures_of
from dptrace.core.array_file import CorruptArrayFile, dumps, load
from dptrace.core.files import cache_folder, open_part, stale_parts
from dptrace.core.notes import Note
from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import sanitize
from dptrace.errors import DptraceError, TraceError
from dptrace.load.options import ReadOptions
from dptrace.load.stored_file import RankFile, StoredFile, digest_of
from dptrace.readers.formats import read_trace
from dptrace.readers.source import Source
from dptrace.readers.storage import Identity, file_identity
from dptrace.readers.trace import Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import OPERATOR_CALLS, Result, SecondPass, operator_calls
from dptrace.timeline.step_marks import with_steps

# Cache parsed traces, and the indices of charts: one file per trace or run in the user's cache folder.
#
# An entry is named by a digest of everything it depends on: the trace's path, size and modification time, the options
# it was read with, and dptrace's own code. A trace whose entry is missing, outdated or damaged is read again.

Value = TypeVar("Value")

_LIMIT = 4 << 30
"""Total bytes of the entries; beyond it, the least recently used are removed."""
_FIGURE_PACKAGES = ("core", "readers", "timeline", "model", "analysis", "load")
"""The packages whose code determines the contents of an entry."""
_CHART_PACKAGES = (*_FIGURE_PACKAGES, "run", "viewers")
"""The same for the index of a chart."""
_ANSWER_PACKAGES = (*_FIGURE_PACKAGES, "run", "replay")
"""The same for an answer about a run."""
_FIGURES = ("figures",)
"""What the key of an entry ends with that holds the figures of a file only."""

# The folder may hold other files, so that only files with dptrace's own names are counted and removed.
_ENTRY = re.compile(r"[0-9a-f]{32}\.(rank|figures|tiles|nsight|answer)")
_PAGE = re.compile(r".+-[0-9a-f]{8}\.html")


class CacheSummary(msgspec.Struct, frozen=True):
    """The cache folder, and the number and size of dptrace's files in it."""

    folder: Path
    traces: int = 0
    trace_bytes: int = 0
    """Parsed traces, answers, exports of reports, indices of charts, and what interrupted processes left of them."""
    pages: int = 0
    page_bytes: int = 0
    """Pages that ``dptrace view`` wrote without ``-o``."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return self.trace_bytes + self.page_bytes


def cache_summary(remove: bool = False) -> CacheSummary:
    """Count the cached traces and pages.

    Args:
        remove: also remove them, and abandoned partial files, and count what was removed. Files of other programs in
            the folder stay, and so do files that cannot be removed.
    """
    folder = cache_folder()
    counts = dict.fromkeys((".rank", ".figures", ".tiles", ".nsight", ".answer", ".part", ".html"), 0)
    sizes = dict(counts)
    for path in _own_files(folder):
        with suppress(OSError):
            size = path.stat().st_size
            if remove:
                path.unlink()
            counts[path.suffix] += 1
            sizes[path.suffix] += size
    traces = sum(sizes.values()) - sizes[".html"]
    return CacheSummary(folder, counts[".rank"], traces, counts[".html"], sizes[".html"])


def _own_files(folder: Path) -> Iterator[Path]:
    """Yield dptrace's files in the cache folder: entries, pages, and abandoned partial files of both."""
    for place, kind in ((folder, _ENTRY), (folder / "pages", _PAGE)):
        try:
            files = sorted(path for path in place.iterdir() if path.is_file() and not path.is_symlink())
        except OSError:  # no such folder, or no permission
            continue
        yield from (path for path in files if kind.fullmatch(path.name))
        yield from stale_parts(place)


def fetch(identity: Identity | None, key: Sequence[object], type: type[Value], mapped: bool = True) -> Value | None:
    """Return the value stored for the file of this identity and these options; None without one.

    Args:
        mapped: map its arrays, instead of copying them to memory.
    """
    return None if identity is None else read_entry(_entry(identity, key), type, mapped)


def read_entry(entry: Path, type: type[Value], mapped: bool = True) -> Value | None:
    """Return the value of an entry, which counts as used; None where there is none, or a damaged one, which goes."""
    try:
        value = read(entry, type, mapped)
        os.utime(entry)  # marks it as recently used
        return value
    except CorruptArrayFile:
        with suppress(OSError):
            entry.unlink()
    except OSError:
        pass
    return None


def store(source: Source, key: Sequence[object], value: object, identity: Identity | None) -> Path | None:
    """Store *value* and return its entry; None where it cannot be stored (no space, no permission).

    Args:
        identity: the source's identity before it was read; nothing is stored for a file that has changed since.
    """
    return _store(_unchanged(source, identity), key, value)


def _unchanged(source: Source, identity: Identity | None) -> Identity | None:
    """Return the identity that a file had before it was read; None where it has changed since."""
    return identity if identity is not None and identity == file_identity(source) else None


def _store(identity: Identity | None, key: Sequence[object], value: object) -> Path | None:
    return None if identity is None else store_entry(_entry(identity, key), value)


def store_entry(entry: Path, value: object) -> Path | None:
    """Store *value* as an entry, and return it; None where it cannot be stored."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(value, entry)
        _evict_after(entry)
    except OSError:
        return None
    return entry


def read(entry: Path, type: type[Value], mapped: bool = True) -> Value:
    """Read what :func:`write` wrote.

    Raises:
        CorruptArrayFile: the file was changed, or is a copy of another entry.
        OSError: it cannot be read.
    """
    name, value = load(entry, tuple[str, type], mapped)  # type: ignore[valid-type]
    if name != entry.name:
        raise CorruptArrayFile(f"it is {name}")
    return value


def write(value: object, path: Path) -> None:
    """Write *value* to *path* atomically, with the file's name, so that a renamed or copied entry is not read."""
    temporary, file = open_part(path.parent)
    with file:
        try:
            file.writelines(dumps((path.name, value)))
            file.flush()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _entry(identity: Identity, key: Sequence[object]) -> Path:
    kind = "figures" if tuple(key[-1:]) == _FIGURES else "rank"
    return cache_folder() / f"{_digest((_code(), identity, tuple(key)))}.{kind}"


def index_entry(sources: Sequence[Source], key: Sequence[object]) -> Path | None:
    """Return the file that keeps the index of a run's chart, which may not exist, in a folder that does.

    None where the identity of a source is not known, or the folder can't be created.

    Args:
        sources: all files of the run.
        key: how they were read, and what of them is shown.
    """
    identities = [file_identity(source) for source in sources]
    if None in identities:
        return None
    entry = cache_folder() / f"{_digest((_code(_CHART_PACKAGES), identities, tuple(key)))}.tiles"
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if entry.exists():
            os.utime(entry)  # marks it as recently used
        _evict(entry)
    except OSError:
        return None
    return entry


def answer_entry(identities: Sequence[object], key: Sequence[object]) -> Path:
    """Return the entry that keeps an answer about a run, which may not exist.

    Args:
        identities: those of all files of the run.
        key: how they were read, and all else that the answer depends on.
    """
    return cache_folder() / f"{_digest((_code(_ANSWER_PACKAGES), identities, tuple(key)))}.answer"


def _digest(value: object) -> str:
    return blake2b(repr(value).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _code(rooms: tuple[str, ...] = _FIGURE_PACKAGES) -> tuple[str, ...]:
    """Return digests of the code that computes figures: an entry from other code does not match."""
    return tuple(map(_code_of, rooms))


@cache
def _code_of(room: str) -> str:
    digest = blake2b(digest_size=16)
    root = Path(__file__).resolve().parents[1]
    kinds = ("*.py", "*.csv", "*.md")  # the tables of GPUs and links, and the texts of checklists, too
    for path in sorted(path for kind in kinds for path in (root / room).rglob(kind)):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


_stored_bytes = 0
"""What this process has stored since it last looked for entries to remove."""


def _evict_after(entry: Path) -> None:
    """Remove entries beyond the limit, now and then: those of a thousand ranks take longer to list than to write."""
    global _stored_bytes
    first = not _stored_bytes
    _stored_bytes += entry.stat().st_size
    if first or _stored_bytes > _LIMIT // 64:
        _evict(entry)
        _stored_bytes = 1


def _evict(newest: Path) -> None:
    """Remove the least recently used entries beyond the limit."""
    entries = []
    for path in newest.parent.iterdir():
        with suppress(OSError):
            if _ENTRY.fullmatch(path.name):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
    room = _LIMIT - sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if room >= 0 or path == newest:
            break
        with suppress(OSError):
            path.unlink()
        room += size


@collection_paused()
def load_rank_file(source: Source, read_options: ReadOptions, jobs: int = 1) -> RankFile | DptraceError:
    """Return a file's figures, from the cache or else from the file; or what is wrong with it, and what to do.

    An error is a result, since it does not stop the reading of other files, and a cluster does not try again.
    """
    identity = file_identity(source) if read_options.cache else None
    try:
        file = _cached(source, read_options, identity)
        if file is not None:
            file, trace = file.with_path(source.address), None
        else:
            patterns = read_options.patterns
            trace = read_trace(source, patterns.comm, jobs, operators=read_options.operators)
            trace = with_steps(trace, patterns.step_range)
            devices = tuple(
                map(figures_of, build_timelines(trace, trace.rank or 0, patterns.comm, patterns.phase_labels))
            )
            digest = digest_of(trace)
            file = RankFile(trace.path, trace.rank, trace.world_size or 0, devices, trace.damage, digest)
            identity = _unchanged(source, identity)
            _store_file(source, read_options, file, identity)
        file = replace(file, further=_prefetch(source, read_options, trace, identity))
        if read_options.strict:
            refuse_damage(file.path, file.damage)
    except DptraceError as error:
        return error
    return file.only_communication() if read_options.figures_only else file


def refuse_damage(path: str, damage: Sequence[Note]) -> None:
    """Raise an error for a damaged file, as ``--strict`` demands.

    Raises:
        TraceError: data was truncated, repaired or dropped.
    """
    if damage:
        raise TraceError(f"{path}: damaged, and --strict refuses damaged files: {' '.join(map(str, damage))}")


def _key(source: Source, read_options: ReadOptions, figures_only: bool) -> tuple[object, ...]:
    """Return the key of a file's entry: the whole file, or its figures, which are a fraction of it."""
    return (source.name, read_options.patterns, *(_FIGURES if figures_only else ()))


def _key_of(reading: SecondPass[Any], source: Source, patterns: object) -> tuple[object, ...]:
    """Return the key of the entry that holds what a further reading of a file gives."""
    return (source.name, reading.name, patterns)


def _cached(source: Source, read_options: ReadOptions, identity: Identity | None) -> RankFile | None:
    """Return what the cache holds of a file; figures are copied, since a mapping would keep the whole entry."""
    figures_only = read_options.figures_only
    stored = fetch(identity, _key(source, read_options, figures_only), StoredFile, mapped=not figures_only)
    return None if stored is None else stored.whole()


def _store_file(source: Source, read_options: ReadOptions, file: RankFile, identity: Identity | None) -> None:
    for figures_only, kept in ((False, file), (True, file.only_communication())) if identity is not None else ():
        _store(identity, _key(source, read_options, figures_only), StoredFile.of(kept))


def _prefetch(
    source: Source, read_options: ReadOptions, trace: Trace | None, identity: Identity | None
) -> dict[str, Any]:
    """Store what is read next of a file, unless the cache has it; return what was read of it but can't be stored.

    Args:
        trace: what its figures were computed from; None where the cache had them.
    """
    readings, ready, unstored = [*read_options.prefetch], dict[str, Callable[[], Any]](), dict[str, Any]()
    if trace is not None:
        ready = {one.name: partial(one.of, trace, source) for one in readings if one.of is not None}
        if trace.operators is not None:
            ready[OPERATOR_CALLS.name] = partial(operator_calls, trace)
            readings += [] if OPERATOR_CALLS in readings else [OPERATOR_CALLS]
    for reading in readings:
        key, known = _key_of(reading, source, read_options.patterns), identity
        if known is not None and _entry(known, key).exists():
            continue
        if reading.name in ready:
            result = ready[reading.name]()
        elif known is not None and not reading.if_parsed:
            result = reading.read(source, read_options.patterns)
            known = _unchanged(source, known)
        else:
            continue  # it is read when it is asked for
        is_stored = len(result) <= reading.most_cached and _store(known, key, result) is not None
        if not is_stored and not reading.if_parsed:
            unstored[reading.name] = result
    return unstored


def cached_rank_file(source: Source, read_options: ReadOptions) -> Path | None:
    """Return the entry of the cache that holds a file's figures; None where none does."""
    entry, *_ = entries_of(source, read_options) or (None,)
    return entry if entry is not None and entry.exists() else None


def entries_of(source: Source, read_options: ReadOptions) -> tuple[Path, ...]:
    """Return the entries of all that is wanted of a file, which may not exist; none where it can't be cached."""
    identity = file_identity(source) if read_options.cache else None
    if identity is None:
        return ()
    keys = [_key(source, read_options, read_options.figures_only)]
    wanted = [reading for reading in read_options.prefetch if not reading.if_parsed]
    keys += [_key_of(reading, source, read_options.patterns) for reading in wanted]
    return tuple(_entry(identity, key) for key in keys)


def is_cached(source: Source, read_options: ReadOptions) -> bool:
    """Return whether the cache holds all that is wanted of a file."""
    entries = entries_of(source, read_options)
    return bool(entries) and all(entry.exists() for entry in entries)


# Files that another machine reads: it leaves them in the cache that both have, or sends what it read.


class SentFile(msgspec.Struct, frozen=True):
    """One file as another machine sends it: with its intervals, and what is read of it next."""

    file: RankFile
    also: tuple[Any, ...]
    """The result of each reading of ``ReadOptions.prefetch``; None where the file can't be read again."""


def read_to_send(
    source: Source, entries: Sequence[str], read_options: ReadOptions, mark: str
) -> RankFile | DptraceError | SentFile | None:
    """Read a file for another machine: its figures, its error, or all of it; None where its cache holds all of it.

    Args:
        entries: names of the entries in which the other machine looks for the file.
        mark: name of a file that is in its cache folder now: where it is seen, the folder is one for both.
    """
    file = load_rank_file(source, read_options)
    if isinstance(file, DptraceError) or read_options.figures_only:
        return file
    if entries and all((cache_folder() / name).exists() for name in (mark, *entries)):
        return None
    reread = FileRereader((source,), read_options)
    also = tuple(file.further.get(reading.name) or reread(file.path, reading) for reading in read_options.prefetch)
    return SentFile(replace(file, further={}), also)


def keep_sent(source: Source, read_options: ReadOptions, sent: SentFile | None) -> RankFile | DptraceError:
    """Put what another machine sent into the cache, and map it; what can't be stored stays in memory."""
    identity, further = file_identity(source), dict[str, Any]()
    if sent is not None:
        _store_file(source, read_options, sent.file, identity)
        for reading, result in zip(read_options.prefetch, sent.also, strict=True):
            key, stored = _key_of(reading, source, read_options.patterns), None
            if result is not None and len(result) <= reading.most_cached:
                stored = _store(identity, key, result)
            if stored is None and result is not None:
                further[reading.name] = result
    file = _cached(source, read_options, identity) or (None if sent is None else sent.file)
    if file is None:  # the entry has gone, or this machine does not see it yet
        return load_rank_file(source, read_options)
    return replace(file.with_path(source.address), further=further)


# Read the files of a run again, for what its figures do not need: a rank at a time, on request.

_MOST_HELD = 8_000_000
"""Events of the ranks that are held in memory, except for one that has more."""


class FileRereader(msgspec.Struct, frozen=True):
    """Reads files again; it holds what it read last."""

    files: tuple[Source, ...]
    read_options: ReadOptions
    held: dict[tuple[str, str], Any] = {}
    """Results by path and name of the reading."""

    def __call__(self, path: str, reading: SecondPass[Result]) -> Result | None:
        """Return what the file at *path* holds; None where it can't be read a second time."""
        held, key = self.held, (path, reading.name)
        if key in held:
            known: Result | None = held[key] if reading.held else held.pop(key)
            return known
        source = next((one for one in self.files if sanitize(one.address) == path), None)
        result = None if source is None or source.single_pass else self._read(source, reading)
        if reading.held:
            held[key] = result
            while len(held) > 1 and sum(len(one or ()) for one in held.values()) > _MOST_HELD:
                del held[next(iter(held))]
        return result

    @collection_paused()
    def _read(self, source: Source, reading: SecondPass[Result]) -> Result | None:
        patterns, identity = self.read_options.patterns, file_identity(source) if self.read_options.cache else None
        key = _key_of(reading, source, patterns)
        result = fetch(identity, key, reading.type)
        if result is not None:
            return result
        try:
            result = reading.read(source, patterns)
        except (DptraceError, OSError):  # the file has changed or gone since the run was opened
            return None
        if len(result) <= reading.most_cached:
            store(source, key, result, identity)
        return result
