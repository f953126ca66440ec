"""Timelines of pipeline stages: a list of operations of each worker, in the trace-event format, without kernels.

Written by ByteDance's StragglerAnalysis (OSDI 2025) from Megatron's timers: ``ph`` "X", ``pid`` the data-parallel rank
(in a ``process_name``: "DP rank [3]"), ``tid`` a stream of a stage ("PP rank 1, TP rank 0, pp-comm"), ``ts`` and
``dur`` in µs, ``args``: ``step``, ``seq_id`` (the number of the operation among those of its kind), ``model_chunk``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dptrace.errors import TraceError
from dptrace.readers.formats import is_stage_timeline
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, open_decompressed

COMPUTE = ("forward-compute", "backward-compute")
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
OF_REPLICAS = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
OF_STAGES = "embedding-grads-all-reduce"
OF_ALL = "optimizer-clip-main-grad"
ALONE = ("optimizer", "gc")
KINDS = (*COMPUTE, *MESSAGES, *OF_REPLICAS, OF_STAGES, OF_ALL, *ALONE, "layernorm-grads-all-reduce")
"""Operations that a timeline may hold: an unknown one may wait for anything."""

_DP, _PP = re.compile(r"DP rank \[?(\d+)"), re.compile(r"PP rank (\d+)")


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """The operations of a job in which each stage has the same replicas; operation i has row i of the times."""

    operations: tuple[tuple[str, int, int], ...]
    """Kind, number among those of its kind in a step, and stage of each."""
    starts_ns: npt.NDArray[np.float64]
    """[operations, steps, replicas], from the start of the step."""
    ends_ns: npt.NDArray[np.float64]
    replicas: tuple[int, ...]
    """Their data-parallel ranks."""
    notes: tuple[str, ...]

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return 1 + max(stage for _, _, stage in self.operations)


def holds_stage_timeline(path: str) -> bool:
    """Return whether a file that can be read is a timeline of stages."""
    try:
        with open_decompressed(Source.of(path)) as stream:
            return is_stage_timeline(ChunkedStream(stream).read_chunk())
    except TraceError:
        return False


def read_stage_timeline(source: Source) -> StageTimeline:
    """Read the operations of all steps that are whole.

    Raises:
        TraceError: the file is damaged or no timeline of stages; it has interleaved chunks, operations of unknown kinds
            or without a place; or no step in which every worker has every operation.
    """
    with open_decompressed(source) as stream:
        chunks = ChunkedStream(stream)
        parts = [chunks.read_chunk()]
        if not is_stage_timeline(parts[0]):
            raise TraceError(f"{source.address}: is no timeline of pipeline stages.")
        while not chunks.ended:
            parts.append(chunks.read_chunk())
    if chunks.damage:
        raise TraceError(f"{source.address}: {chunks.damage}. A timeline is read whole or not at all: copy it again.")
    try:
        events = msgspec.json.decode(b"".join(parts), type=list[_Event])
    except msgspec.MsgspecError as error:
        raise TraceError(f"{source.address}: can't be read as a timeline of stages ({error}): copy it again.") from None
    return _timeline(events, source.address)


def _timeline(events: list[_Event], address: str) -> StageTimeline:
    names = [(event, str(event.args.get("name", ""))) for event in events if event.ph == "M"]
    replicas = {event.pid: int(match[1]) for event, name in names if (match := _DP.match(name))}
    stages = {(event.pid, event.tid): int(match[1]) for event, name in names if (match := _PP.match(name))}
    timed = [event for event in events if event.ph == "X"]
    _check(timed, replicas, stages, address)
    rows = np.array(
        [
            (stages[event.pid, event.tid], KINDS.index(event.name), event.args["seq_id"], event.args["step"])
            for event in timed
        ]
    )
    # A table of [operations, steps, replicas]: each event fills one cell, and a step with an empty cell is left out.
    operations, row = np.unique(rows[:, :3], axis=0, return_inverse=True)
    steps, column = np.unique(rows[:, 3], return_inverse=True)
    ranks, layer = np.unique([replicas[event.pid] for event in timed], return_inverse=True)
    cells = (row.reshape(-1), column, layer)
    count = np.zeros((len(operations), len(steps), len(ranks)), np.int64)
    np.add.at(count, cells, 1)
    if (count > 1).any():
        stage, kind, number = operations[np.argwhere(count > 1)[0][0]]
        raise TraceError(f"{address}: a replica has {KINDS[kind]} {number} of stage {stage} twice in a step.")
    whole = count.all(axis=(0, 2))
    if not whole.any():
        raise TraceError(f"{address}: has no step in which every worker has all operations; was it cut?")
    starts, ends = np.zeros(count.shape), np.zeros(count.shape)
    starts[cells] = [event.ts * 1000 for event in timed]
    ends[cells] = [(event.ts + max(0.0, event.dur)) * 1000 for event in timed]
    starts, ends = starts[:, whole], ends[:, whole]
    begins = starts.min(axis=(0, 2), keepdims=True)
    notes = []
    if lost := int((~whole).sum()):
        notes.append(f"{lost} of {len(steps)} steps lack operations of a worker and are left out.")
    if negative := sum(event.dur < 0 for event in timed):
        notes.append(f"{negative:,} of {len(timed):,} operations have a negative duration, which is taken for 0.")
    return StageTimeline(
        tuple((KINDS[kind], int(number), int(stage)) for stage, kind, number in operations),
        starts - begins,
        ends - begins,
        tuple(map(int, ranks)),
        tuple(notes),
    )


def _check(timed: list[_Event], replicas: dict[int, int], stages: dict[tuple[int, int], int], address: str) -> None:
    """Refuse operations that can't be placed.

    Raises:
        TraceError: there are such, or none at all.
    """
    unknown = Counter(event.name for event in timed if event.name not in KINDS)
    if unknown:
        raise TraceError(
            f"{address}: has operations of unknown kinds: {', '.join(unknown)}. Known: {', '.join(KINDS)}."
        )
    if not timed:
        raise TraceError(f"{address}: has no operations with a time.")
    for event in timed:
        if event.pid not in replicas or (event.pid, event.tid) not in stages:
            raise TraceError(
                f"{address}: no name tells the stage of pid {event.pid}, tid {event.tid}: a thread_name such as "
                "'PP rank 0, TP rank 0, compute' and a process_name such as 'DP rank [0]' do."
            )
        if not all(isinstance(event.args.get(key), int) for key in ("step", "seq_id")):
            raise TraceError(
                f"{address}: {event.name} at {event.ts} µs has no whole numbers step and seq_id in its args."
            )
        if event.args.get("model_chunk") not in (None, -1, 0):
            raise TraceError(f"{address}: has interleaved model chunks, whose order of messages is not replayed yet.")
