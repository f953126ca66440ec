"""Write Chrome trace events: JSON that Perfetto, chrome://tracing, TensorBoard and scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import IO, Any

import msgspec
import numpy as np

from dptrace.core.units import encodable
from dptrace.export.tracks import AlignedRun, Argument, Counter, Process, Track, earliest, processes
from dptrace.run.run import Run
from dptrace.version import __version__

# Arrows between the members of a collective, the only way to link slices in Chrome's format.

_NONE, _START, _STEP, _END = range(4)
_PHASE = {_START: b"s", _STEP: b"t", _END: b"f"}


class Flows:
    """For each collective, arrows from the rank that starts first to the next, and so on to the last.

    A Chrome flow event binds to the slice that runs on its thread at its time, so each is placed at the start of its
    slice. A reader follows them by time: the first must be a start and the last an end.
    """

    def __init__(self, run: Run, aligned_run: AlignedRun) -> None:
        instances, starts, processes = [], [], []
        for number, (timeline, members, shift) in enumerate(
            zip(run.timelines, aligned_run.members, aligned_run.shifts, strict=True), start=1
        ):
            # An arrow cannot bind to a slice of zero length.
            interval = members.interval
            lasting = (members.instance > 0) & (timeline.end_ns[interval] > timeline.start_ns[interval])
            instances.append(members.instance[lasting])
            starts.append(shift(timeline.start_ns[interval[lasting]]))
            processes.append(np.full(np.count_nonzero(lasting), number))
        instance, start, process = (
            np.concatenate([*columns, np.empty(0, np.int64)]) for columns in (instances, starts, processes)
        )
        order = np.lexsort((process, start, instance))
        instance, process = instance[order], process[order]
        first = np.append(True, instance[1:] != instance[:-1])[: len(instance)]
        last = np.append(first[1:], True)[: len(instance)]
        role = np.where(first, _START, np.where(last, _END, _STEP))
        self.roles = np.full((len(run.timelines) + 1, int(instance.max(initial=0)) + 1), _NONE, np.int8)
        self.roles[process, instance] = np.where(first & last, _NONE, role)

    def arrows(self, track: Track, pid: int, tid: int, base: int) -> Iterator[bytes]:
        """Yield the arrows' events on a track, each as one line."""
        if track.link is None or not np.any(track.link):
            return
        index = np.flatnonzero(track.link > 0)
        index = index[track.end_ns[index] > track.start_ns[index]]
        head = b'"name":"collective","cat":"collective","pid":%d,"tid":%d,"bp":"e","ts":' % (pid, tid)
        for number, start in zip(track.link[index].tolist(), (track.start_ns[index] - base).tolist(), strict=True):
            role = int(self.roles[pid, number])
            if role:
                yield b'{"ph":"%b",%b%d.%03d,"id":%d}' % (_PHASE[role], head, *divmod(start, 1000), number)


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
