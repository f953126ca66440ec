"""The formats of trace files: their suffixes, their first bytes, and the choice of the module that reads a file.

To add a format, write a module with ``pieces(source, start, chunks)``, which turns a file's bytes into
:class:`~dptrace.readers.stream.EventPiece` objects of Kineto's event text, and add a line to ``FORMATS``; what the text
says of ranks, cuts and rows that can't be read is in docs/architecture.md, under "an input format".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dptrace.errors import TraceError
from dptrace.readers.packets import begins_with_packets
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, EventPiece, open_decompressed

if TYPE_CHECKING:
    from dptrace.readers.trace import Trace


class Format(NamedTuple):
    """One line of the table of formats."""

    extensions: tuple[str, ...]
    """Extensions of such files; each may be followed by ``.gz``."""
    recognizes: Callable[[bytes], bool]
    """Whether a file with these first bytes (decompressed) has the format."""
    module: str
    """Module with the function ``pieces``; imported when the first such file is read."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of such files' names."""
        return tuple(extension + packed for extension in self.extensions for packed in ("", ".gz"))


# In a folder, files of the first format that is found are read; a file is read by the last format that recognizes it.
FORMATS = (
    # This reader takes any file: it names what a file holds that is not a trace.
    Format((".json",), lambda start: True, "dptrace.readers.kineto.json_stream"),
    Format((".pftrace", ".perfetto-trace", ".perfetto"), begins_with_packets, "dptrace.readers.perfetto"),
)
TRACE_SUFFIXES = tuple(suffix for known in FORMATS for suffix in known.suffixes)
"""Ends of the names of trace files of any format."""

DATABASE_SUFFIXES = (".sqlite",)
"""Ends of the names of exports of Nsight Systems, which ``dptrace.readers.nsight`` reads."""
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""Ends of the names of its reports, which ``nsys`` exports to such a file first."""

BASELINE = b'{"dptrace_baseline":'
"""How a file of ``dptrace baseline save`` begins."""


def is_watched(folder: str | Path) -> bool:
    """Return whether a folder is that of a watched run, which holds the records of steps that dptrace watch writes."""
    return next(Path(folder).glob("rank*.steps"), None) is not None


_DUMP_NAME = re.compile(r"trace_rank_?\d+$")
_DUMP_KEYS = re.compile(rb"pg_status|profiling_name")


def is_flight_dump(name: str, start: bytes) -> bool:
    """Return whether a file that is no trace is a dump of torch's flight recorder, by its name or first bytes."""
    return bool(_DUMP_NAME.search(name) or _DUMP_KEYS.search(start))


_STAGE_OPERATION = re.compile(rb'"(?:forward|backward)-(?:compute|send|recv)"')


def is_stage_timeline(start: bytes) -> bool:
    """Return whether a file with these first bytes (decompressed) lists operations of pipeline stages."""
    return start.lstrip()[:1] == b"[" and b'"seq_id"' in start and bool(_STAGE_OPERATION.search(start))


_DATABASE_START = b"SQLite format 3\0"


def is_database(source: Source) -> bool:
    """Return whether a source is an SQLite file on this machine, or a rank in one."""
    try:
        if source.remote or not Path(source.container).is_file():
            return False
        with Path(source.container).open("rb") as file:
            return file.read(len(_DATABASE_START)) == _DATABASE_START
    except (OSError, ValueError):
        return False


def export_command(report: str, output: str = "") -> list[str]:
    """Return the command that exports a report of Nsight Systems, beside it unless an output is named."""
    to = output or re.sub(r"\.[\w-]+$", ".sqlite", report)
    return ["nsys", "export", "--type", "sqlite", "--include-blobs", "true", "--output", to, report]


def read_trace(
    source: Source,
    comm_patterns: Sequence[str] = (),
    jobs: int = 1,
    detailed: bool = False,
    operators: bool = False,
    memory: bool = False,
) -> Trace:
    """Read one rank's trace, of any format.

    Args:
        comm_patterns: regular expressions of further communication kernels.
        jobs: maximum number of processes that decode a huge file.
        detailed: also read the details of each event.
        operators: also read the inputs and sequence numbers of operators and short modules.
        memory: also read the memory events, which an export of Nsight Systems has none of; without the details.

    Raises:
        TraceError: the file is of no known format, or no event in it can be read.
        SeveralRanksError: it holds the events of several ranks.
        UsageError: a pattern is not a regular expression, or matches every name.
        DptraceError: one of the processes died.
    """
    trace: Trace
    if source.windows:
        windows = [read_trace(one, comm_patterns, jobs, detailed, operators, memory) for one in source.windows]
        joined: Trace = import_module("dptrace.readers.joined_trace").joined_trace(windows)
        return joined
    if is_database(source):
        nsight = import_module("dptrace.readers.nsight")
        trace = nsight.read_export(source, comm_patterns, detailed, operators)
    else:
        kineto = import_module("dptrace.readers.kineto.reader")
        trace = kineto.read_trace(source, jobs, comm_patterns, detailed, operators, memory)
    return trace


def pieces(file: Source | Path) -> Iterator[EventPiece]:
    """Read a trace file of any format but a database, gzipped or not, as pieces of event text.

    Each ends between two events.

    Raises:
        TraceError: the file is missing, empty, of no known format, or without a list of events.
    """
    source = Source.of(file)
    if is_database(source):
        raise TraceError(f"{source.address}: is an export of Nsight Systems, whose tables hold no events of Kineto's.")
    _keep_freed_memory()
    with open_decompressed(source) as stream:
        chunks = ChunkedStream(stream)
        start = chunks.read_chunk()
        if start.startswith(_DATABASE_START):
            raise TraceError(
                f"{source.address}: is an export of Nsight Systems, which is read from a plain file on disk only: "
                "download it, or unpack it."
            )
        if source.name.lower().endswith(REPORT_SUFFIXES):
            raise TraceError(
                f"{source.address}: is a report of Nsight Systems, which only its own nsys reads: from a file on disk, "
                f"where nsys is on the path. Export it there: {shlex.join(export_command(source.address))}"
            )
        if is_stage_timeline(start):
            advice = shlex.join(["dptrace", "whatif", source.address])
            raise TraceError(
                f"{source.address}: is a timeline of pipeline stages, no trace of kernels; what slows its steps down: "
                f"{advice}"
            )
        if start.startswith(BASELINE):
            advice = shlex.join(["dptrace", "diff", "--baseline", source.address, "RUN"])
            raise TraceError(f"{source.address}: is a baseline; compare a run with it: {advice}")
        if source.name.lower().endswith(DATABASE_SUFFIXES):
            raise TraceError(
                f"{source.address}: is no SQLite database, which an export of Nsight Systems is. Export the report "
                "again: nsys export --type sqlite REPORT.nsys-rep"
            )
        known = next(known for known in reversed(FORMATS) if known.recognizes(start))
        read: Callable[[Source, bytes, ChunkedStream], Iterator[EventPiece]] = import_module(known.module).pieces
        yield from read(source, start, chunks)


@cache
def _keep_freed_memory() -> None:
    """Let chunks reuse memory, once per process.

    glibc returns freed memory to the system, and clears what it takes again, above a limit that grows with the largest
    block ever freed. A chunk is above the initial limit: a tenth of all time was spent there.
    """
    bytes(16 << 20)
