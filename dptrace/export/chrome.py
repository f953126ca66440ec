"""Write Chrome trace events: JSON that Perfetto, chrome://tracing, TensorBoard and scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import IO, Any

import msgspec

from dptrace.core.units import encodable
from dptrace.export.aligned_run import AlignedRun
from dptrace.export.counters import Counter
from dptrace.export.flow_events import Flows
from dptrace.export.tracks import Argument, Process, Track, earliest, processes
from dptrace.run.run import Run
from dptrace.version import __version__

__all__ = ["write_chrome"]

_encode = msgspec.json.Encoder().encode


def write_chrome(run: Run, aligned_run: AlignedRun, file: IO[bytes], progress: Callable[[float], None]) -> int:
    """Write *run* as a JSON object of trace events, a process per GPU and a thread per track.

    ``ts`` and ``dur`` are microseconds with three decimals, exact to the nanosecond; the absolute time is ``ts`` plus
    ``baseTimeNanoseconds``, as in Kineto's files. Slices of one thread never overlap.

    Returns:
        The number of slices written.
    """
    # Times are relative to the earliest one, so that a reader which stores ts as a double keeps every digit.
    base = earliest(run, aligned_run)
    file.write(_head(run, aligned_run, base))
    flows = Flows(run, aligned_run)
    # Thread numbers continue across processes and start after the last process number: Perfetto treats a thread with
    # its process's number as the main thread, and 0 as the idle thread.
    threads = count(len(run.timelines) + 1)
    written = 0
    for pid, process in enumerate(processes(run, aligned_run), start=1):
        tids = [next(threads) for _ in process.tracks]
        file.write((b",\n" if pid > 1 else b"\n") + b",\n".join(map(_encode, _metadata(process, pid, tids))))
        done = 0
        for tid, track in zip(tids, process.tracks, strict=True):
            for chunk in track.chunks():
                file.write(b",\n" + b",\n".join(_slices(chunk, pid, tid, base)))
                file.write(b"".join(b",\n" + arrow for arrow in flows.arrows(chunk, pid, tid, base)))
                done += len(chunk)
                progress(pid - 1 + done / len(process))
        for counter in process.counters:
            for points in counter.chunks():
                file.write(b",\n" + b",\n".join(_points(points, pid, base)))
        written += done
    file.write(b"\n]}\n")
    return written


def _head(run: Run, aligned_run: AlignedRun, base: int) -> bytes:
    # The unit comes first and is never "ns": Perfetto looks for it in the first bytes only, and with "ns" some
    # versions read ts itself as nanoseconds (google/perfetto issue 274).
    head = {
        "displayTimeUnit": "ms",
        "schemaVersion": 1,
        "baseTimeNanoseconds": base,
        "otherData": {
            "writer": f"dptrace {__version__}",
            "source": encodable(run.path),
            "clocks": aligned_run.clock_summary,
            "notes": [encodable(note) for note in (*run.notes, *aligned_run.notes)],
        },
        "traceEvents": [],
    }
    return _encode(head)[: -len("]}")]


def _metadata(process: Process, pid: int, tids: list[int]) -> Iterator[dict[str, Any]]:
    """Name and order the process and its threads."""

    def event(name: str, tid: int, args: dict[str, str | int]) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}

    yield event("process_name", tids[0] if tids else 0, {"name": process.name})
    yield event("process_sort_index", tids[0] if tids else 0, {"sort_index": pid})
    for number, (tid, track) in enumerate(zip(tids, process.tracks, strict=True)):
        name = track.name + (f" [{track.lane + 1}]" if track.lane else "")
        yield event("thread_name", tid, {"name": name})
        yield event("thread_sort_index", tid, {"sort_index": number})


def _slices(track: Track, pid: int, tid: int, base: int) -> Iterator[bytes]:
    """Write each slice as one line; names are encoded once, times come from integers."""
    thread = b',"pid":%d,"tid":%d,"ts":' % (pid, tid)
    names = {
        number: b'{"ph":"X","name":' + _encode(track.labels[number]) + thread for number in set(track.label.tolist())
    }
    starts, durations = (track.start_ns - base).tolist(), (track.end_ns - track.start_ns).tolist()
    columns = [_fragments(argument) for argument in track.arguments if not argument.empty]
    details: Iterable[tuple[bytes, ...]] = zip(*columns, strict=True) if columns else ((),) * len(track)
    previous: tuple[bytes, ...] = ()
    detail = b""
    for start, duration, label, parts in zip(starts, durations, track.label.tolist(), details, strict=True):
        # Most slices have the phase and step of the one before.
        if parts != previous:
            previous, detail = parts, b",".join(filter(None, parts))
        yield b'%b%d.%03d,"dur":%d.%03d,"args":{%b}}' % (
            names[label],
            *divmod(start, 1000),
            *divmod(duration, 1000),
            detail,
        )


def _fragments(argument: Argument) -> list[bytes]:
    """Return ``"name":value`` for each slice, empty where it has no value."""
    key, values = _encode(argument.name) + b":", argument.values.tolist()
    if argument.texts is not None:
        encoded = [*(key + _encode(text) for text in argument.texts), b""]
        return [encoded[value] for value in values]
    if argument.values.dtype.kind == "f":
        return [key + _encode(value) if value >= 0 else b"" for value in values]
    return [key + b"%d" % value if value >= 0 else b"" for value in values]


def _points(counter: Counter, pid: int, base: int) -> Iterator[bytes]:
    """Write each point of a counter as one line."""
    # Perfetto shows a counter under the names of the event and of the series.
    name, _, series = counter.name.rpartition(" ")
    head, key = b'{"ph":"C","name":%b,"pid":%d,"ts":' % (_encode(name), pid), _encode(series)
    for moment, value in zip((counter.time_ns - base).tolist(), counter.value.tolist(), strict=True):
        yield b'%b%d.%03d,"args":{%b:%d}}' % (head, *divmod(moment, 1000), key, value)
