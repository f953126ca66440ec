"""The tables of an export of Nsight Systems (``nsys export --type sqlite``), and what they say of the machine.

The schema grows with each release, and tables without rows are not written, so that any table and column may be
missing: what is, is reported. NVIDIA describes it in Nsight Systems' user guide, under "SQLite Schema Reference".

- Times are ns since the capture began, and TARGET_INFO_SESSION_START_TIME has its epoch.
- ``globalTid`` packs hardware, process and thread: the last 24 bits are the thread's, those before the process's.
  ``globalPid`` is the same without the thread.
- Texts are ids of StringIds, or inline where NVTX's ranges were not registered.
- A process is a rank; a process that alone uses several GPUs is one for each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from dptrace.core.files import cache_folder
from dptrace.core.gpu import GpuProperties
from dptrace.core.intervals import Int64, unique
from dptrace.core.launchers import RANK_VARIABLES, SIZE_VARIABLES
from dptrace.core.units import sanitize
from dptrace.errors import TraceError
from dptrace.readers.formats import export_command, is_database
from dptrace.readers.source import Source
from dptrace.readers.storage import container, file_identity

if TYPE_CHECKING:
    import sqlite3

KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS, RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
SYNCS, EVENTS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_TEXTS, _CAPTURE, _ENVIRONMENT = "StringIds", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"
_DEVICES = "TARGET_INFO_CUDA_DEVICE"
_OWN_TABLES = (KERNELS, GRAPHS, COPIES, SETS, CALLS, RANGES, "META_DATA_EXPORT")
"""A database with one of these is an export."""

_CHUNK = 1 << 20
"""Rows read at a time."""
_BETWEEN = "\x1f"
"""Separates texts: ASCII's unit separator."""
THREAD_BITS = 24
THREAD = (1 << THREAD_BITS) - 1
"""Mask of a thread in ``globalTid``, and of a process in it without its thread."""


def is_export(path: Path) -> bool:
    """Return whether a file is a database of ``nsys export``, by its first bytes and the names of its tables."""
    source = Source(str(path))
    try:
        with opened(source) as export:
            return not export.tables.keys().isdisjoint(_OWN_TABLES)
    except TraceError:
        return False


def sources_of(source: Source) -> list[Source]:
    """Return a source for each rank in an export, in the order of the GPUs; the file itself where it holds one.

    Raises:
        TraceError: the file can't be read.
    """
    with opened(source) as export:
        used = export.ranks()
    if len(used) < 2:
        return [source]
    named = [f"process {process}" + (f" on GPU {gpu}" if gpu >= 0 else "") for process, gpu in used]
    return [source.archive_member(name) for name in named]


class Work(NamedTuple):
    """When the GPUs of an export worked, on which machine."""

    host: str
    begin_ns: int
    """Since the Unix epoch, as is the end."""
    end_ns: int


def work_in(source: Source) -> Work | None:
    """Return when the GPUs of an export worked; None where it does not say, or can't be read, which reading tells."""
    try:
        return _work_in(source.container, container(source).identity())
    except TraceError:
        return None


@lru_cache(maxsize=64)
def _work_in(path: str, identity: object) -> Work | None:
    with opened(Source(path)) as export:
        times = [
            times
            for table in (KERNELS, GRAPHS, COPIES)
            if {"start", "end"} <= export.tables.get(table, set())
            for times in export.database.execute(f'SELECT min("start"), max("end") FROM "{table}"')
            if isinstance(times[0], int) and isinstance(times[1], int)
        ]
        base, host = export.epoch_ns(), export.host_name()
    if not (base and times):
        return None
    return Work(host, base + min(start for start, _ in times), base + max(end for _, end in times))


def exported(report: Source) -> Source | None:
    """Export a report to the cache folder, once; None where nsys is not on the path, or the report not on this machine.

    Raises:
        TraceError: nsys can't export it.
    """
    identity = file_identity(report)
    if report.member or report.remote or identity is None or shutil.which("nsys") is None:
        return None
    entry = cache_folder() / f"{blake2b(repr(identity).encode(), digest_size=16).hexdigest()}.nsight"
    if not entry.exists():
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryDirectory(prefix="dptrace.", dir=entry.parent) as folder:
            output = Path(folder, "export.sqlite")
            command = export_command(os.path.abspath(report.address), str(output))
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, errors="replace")
            if done.returncode or not output.exists():
                reason = sanitize(" ".join((done.stderr or done.stdout).split())[-300:])
                raise TraceError(f"{report.address}: nsys export failed: {reason}")
            output.replace(entry)
    os.utime(entry)  # marks it as recently used
    return Source(report.address, str(entry))


@contextmanager
def opened(source: Source) -> Iterator[Export]:
    """Open an export read-only; what a stranger's file defines, such as views and triggers, is not used."""
    if not is_database(source):
        raise TraceError(f"{source.address}: is no SQLite database on this machine; download or unpack it first.")
    import sqlite3  # few runs need it

    try:
        uri = f"file:{quote(str(Path(source.container).absolute()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            database.execute("PRAGMA trusted_schema = OFF")
            yield Export(database, source)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise TraceError(
            f"{source.address}: can't be read ({error}). Was the file copied completely? Export it again: "
            "nsys export --type sqlite REPORT.nsys-rep"
        ) from None


class Export:
    """The tables of an export."""

    def __init__(self, database: sqlite3.Connection, source: Source) -> None:
        self.database, self.source = database, source
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        names = [str(name) for (name,) in database.execute(query)]
        quoted = {name: name.replace('"', '""') for name in names}
        self.tables = {
            name: {str(row[1]) for row in database.execute(f'PRAGMA table_info("{quoted[name]}")')} for name in names
        }
        self.missing: dict[str, None] = {}
        """Tables and columns that were asked for and are not there."""
        self.has_texts = {"id", "value"} <= self.tables.get(_TEXTS, set())
        if not self.has_texts:
            self.missing[_TEXTS] = None

    def require_times(self) -> None:
        """Refuse an export whose device work can't be placed or named; leave calls and ranges without times out.

        Raises:
            TraceError: it says what is missing.
        """
        again = "Export the report again, with the nsys that wrote it: nsys export --type sqlite REPORT.nsys-rep"
        for table in (KERNELS, GRAPHS, COPIES, SETS, CALLS, RANGES):
            lacking = sorted({"start", "end"} - self.tables.get(table, {"start", "end"}))
            if lacking and table in (CALLS, RANGES):
                self.missing[table] = None
                del self.tables[table]
            elif lacking:
                raise TraceError(
                    f"{self.source.address}: {table} has no column {lacking[0]}, so that its work can't be placed in "
                    f"time. {again}"
                )
        if KERNELS in self.tables and not self.has_texts:
            raise TraceError(
                f"{self.source.address}: has no {_TEXTS}, which hold the names of kernels: communication can't be told "
                f"from compute. {again}"
            )

    def column(self, table: str, *names: str, default: str = "-1") -> str:
        """Return SQL for the first of several columns that a table has, or the default."""
        found = next((name for name in names if name in self.tables.get(table, ())), None)
        if found is None:
            self.missing[f"{table}.{names[0]}"] = None
            return default
        return f'CAST(coalesce("{found}", {default}) AS INTEGER)'

    def rows(
        self, table: str, numbers: Sequence[str], where: str = "1", texts: Sequence[str] = (), of: str = ""
    ) -> tuple[list[Int64], list[list[str]]]:
        """Return columns of numbers and of texts, one list per SQL expression.

        sqlite3 would make a Python object of each value. SQLite joins a column to one text instead, which NumPy parses:
        benchmarks/nsight.py compares both.

        Args:
            of: columns that are computed once for each row, for the expressions; empty for those of the table.
        """
        parts: list[tuple[Int64, ...]] = []
        words: list[list[str]] = [[] for _ in texts]
        joined = [f"group_concat({number})" for number in numbers]
        joined += [f"group_concat(replace({text}, char(31), ' '), char(31))" for text in texts]
        chosen = f'"{table}" WHERE rowid BETWEEN ? AND ? AND ({where})'
        # The limit keeps SQLite from computing what is inside again for each use.
        inner = f"(SELECT {of} FROM {chosen} LIMIT -1)"
        for first, last in self._chunks(table):
            count, *values = self.database.execute(
                f"SELECT count(*), {', '.join(joined)} FROM {inner if of else chosen}",
                (first, last),
            ).fetchone()
            if not count:
                continue
            parts.append(tuple(np.fromstring(value, np.int64, sep=",") for value in values[: len(numbers)]))
            for into, value in zip(words, values[len(numbers) :], strict=True):
                into += value.split(_BETWEEN)
        empty = (np.empty(0, np.int64),) * len(numbers)
        return [np.concatenate(column) for column in zip(*(parts or [empty]), strict=True)], words

    def _chunks(self, table: str) -> Iterator[tuple[int, int]]:
        """Yield the first and last rowid of each chunk of a table; nothing for one that is not there."""
        if table not in self.tables:
            self.missing[table] = None
            return
        first = -(1 << 63)
        query = f'SELECT max(rowid) FROM (SELECT rowid FROM "{table}" WHERE rowid >= ? ORDER BY rowid LIMIT ?)'
        while (last := self.database.execute(query, (first, _CHUNK)).fetchone()[0]) is not None:
            yield first, last
            if last == (1 << 63) - 1:
                return
            first = last + 1

    def texts(self, ids: Int64) -> dict[int, str]:
        """Return the texts of ids of StringIds."""
        found: dict[int, str] = {}
        wanted = unique(ids).tolist()
        for place in range(0, len(wanted) if self.has_texts else 0, 500):
            some = ",".join(map(str, wanted[place : place + 500]))
            found.update(self.database.execute(f"SELECT id, value FROM {_TEXTS} WHERE id IN ({some})"))
        return {number: str(found.get(number, f"name {number}")) for number in wanted}

    def range_text(self) -> str:
        """Return SQL for the text of a range, which is inline or registered."""
        texts = ['"text"'] if "text" in self.tables[RANGES] else []
        if "textId" in self.tables[RANGES] and self.has_texts:
            texts.append(f'(SELECT value FROM {_TEXTS} WHERE id = "textId")')
        return f"coalesce({', '.join([*texts, chr(39) * 2])}, '')"

    def few(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of a small table; None for a column that it lacks, no rows where there is no table."""
        known = self.tables.get(table, set())
        wanted = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        return self.database.execute(f'SELECT {wanted} FROM "{table}"').fetchall() if known else []

    def ranks(self) -> list[tuple[int, int]]:
        """Return the process and the GPU of each rank, in the order of the GPUs; -1 for all GPUs of the process."""
        count: dict[tuple[int, int], int] = {}
        for table in (KERNELS, GRAPHS):
            if {"globalPid", "deviceId"} <= self.tables.get(table, set()):
                query = f'SELECT globalPid, deviceId, count(*) FROM "{table}" GROUP BY 1, 2'
                for process, device, rows in self.database.execute(query):
                    if isinstance(process, int) and isinstance(device, int):
                        key = process >> THREAD_BITS & THREAD, device
                        count[key] = count.get(key, 0) + rows
        physical = {(pid, cuda): gpu for pid, cuda, gpu in self.few(_DEVICES, "pid", "cudaId", "gpuId")}
        processes = {process for process, _ in count}

        def place(rank: tuple[int, int]) -> tuple[int, int, int]:
            gpu = physical.get(rank, rank[1])
            return (gpu if isinstance(gpu, int) else rank[1], rank[1], rank[0])

        if len(processes) == 1:
            return sorted(count, key=place)
        # A process may also have touched the GPU of another: the one that it used most counts.
        main = {p: max((key for key in count if key[0] == p), key=lambda key: (count[key], -key[1])) for p in processes}
        return [(process, -1) for process, _ in sorted(main.values(), key=place)]

    def epoch_ns(self) -> int:
        """Return the time at which the capture began, in ns since the epoch; 0 where the file does not say."""
        base = next((value for (value,) in self.few("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), 0)
        return base if isinstance(base, int) and 0 <= base < 1 << 62 else 0

    def host_name(self) -> str:
        """Return the name of the machine that recorded it; empty where the file does not say."""
        rows = self.few(_ENVIRONMENT, "name", "value")
        return next((str(value) for name, value in rows if name == "Hostname"), "")

    def environment_rank(self) -> tuple[int | None, int | None]:
        """Return the rank and the number of ranks that the environment of the process says that nsys started."""
        rows = self.few(_CAPTURE, "name", "value")
        texts = [str(value) for name, value in rows if "ENVIRONMENT_VARIABLE" in str(name)]
        for name, value in self.few(_ENVIRONMENT, "name", "value"):
            texts += str(value).split(";") if name == "DeviceEnvironment" else []
        found = (re.fullmatch(r'(\w+)="?(\d{1,7})"?', text) for text in texts)
        values = {match[1]: int(match[2]) for match in found if match}
        lists = (RANK_VARIABLES, SIZE_VARIABLES)
        rank, size = (next((values[name] for name in names if name in values), None) for names in lists)
        return (rank, size) if rank is not None and (size is None or rank < size) else (None, None)

    def gpus(self, process: int | None) -> dict[int, GpuProperties]:
        """Return the GPUs of a process, or of the only one, by their CUDA device."""
        columns = ("id", "name", "smCount", "computeMajor", "computeMinor", "threadsPerWarp", "totalMemory")
        known = {row[0]: row[1:] for row in self.few("TARGET_INFO_GPU", *columns)}
        mapped = {
            cuda: gpu for pid, cuda, gpu in self.few(_DEVICES, "pid", "cudaId", "gpuId") if process in (None, pid)
        }
        found = {}
        for device, gpu in (mapped or {number: number for number in known}).items():
            if isinstance(device, int) and gpu in known:
                name, *numbers = known[gpu]
                sms, major, minor, warp, memory = (n if isinstance(n, int) and n > 0 else 0 for n in numbers)
                found[device] = GpuProperties(str(name or "GPU"), sms, (major, minor), warp, memory)
        return found
