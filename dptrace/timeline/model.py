"""The data model between reading and figures: every interval of one GPU, classified and assigned to a step."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.gpu import GpuProperties
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, union
from dptrace.core.notes import Note
from dptrace.readers.trace import Message, OperatorInputs

# What the host did at each instant: pieces of time with one label each.


class HostCause(IntEnum):
    """What the host was busy with."""

    NOTHING_RECORDED = 0
    DATA_LOADING = 1
    ALLOCATOR = 2
    SYNCHRONIZING = 3
    OPERATOR = 4
    PYTHON = 5
    """Code outside operators, inside an annotation or a Python function."""
    PASSIVE = 6
    """A blocking call while the device itself waits in a collective: another rank is the reason."""


HOST_CAUSE_WORDS = {
    HostCause.NOTHING_RECORDED: "nothing recorded",
    HostCause.DATA_LOADING: "data loading",
    HostCause.ALLOCATOR: "allocator call",
    HostCause.SYNCHRONIZING: "synchronization",
    HostCause.OPERATOR: "operator",
    HostCause.PYTHON: "Python",
    HostCause.PASSIVE: "blocked while the GPU waited in a collective",
}
"""What the Gantt page and paths call them."""


class HostLabel(msgspec.Struct, frozen=True):
    """One thing that a host did."""

    cause: int
    """A :class:`HostCause`."""
    what: str = ""
    """The innermost call, operator, function or annotation; empty for many short operators."""
    where: str = ""
    """The annotation around it, or else its outermost operator; empty if there is none."""


class HostActivity(msgspec.Struct, frozen=True):
    """Pieces of time without gap, one label each, on the rank's own clock."""

    start_ns: Int64
    """Ascending starts; a piece ends where the next one starts, and the last one at ``end_ns``."""
    end_ns: int
    label: NDArray[np.int32]
    """Index into ``labels``, one per piece."""
    labels: tuple[HostLabel, ...]
    returned_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Ascending ends of the calls that synchronize with the device."""
    step_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Start of each step on the host."""

    def cut(self, since: int, until: int) -> tuple[Int64, Int64, NDArray[np.int32]]:
        """Return starts, ends and labels of the pieces between two times; what is not recorded is missing."""
        first = max(int(np.searchsorted(self.start_ns, since, side="right")) - 1, 0)
        last = max(int(np.searchsorted(self.start_ns, until, side="left")), first)
        ends = np.append(self.start_ns[first + 1 : last + 1], self.end_ns)[: last - first]
        return np.maximum(self.start_ns[first:last], since), np.minimum(ends, until), self.label[first:last]

    def spent(self, since: int, until: int) -> dict[HostLabel, int]:
        """Return the ns of each label between two times; they add up to the whole time."""
        start, end, label = self.cut(since, until)
        length = np.maximum(end - start, 0)
        total = np.bincount(label, length, len(self.labels)).astype(np.int64)
        spent = {self.labels[i]: int(total[i]) for i in np.flatnonzero(total).tolist()}
        if rest := until - since - int(length.sum()):
            nothing = HostLabel(HostCause.NOTHING_RECORDED)
            spent[nothing] = spent.get(nothing, 0) + rest
        return spent

    def intervals(self, *causes: HostCause) -> IntervalSet:
        """Return when the host was busy with any of these causes."""
        chosen = np.array([label.cause in causes for label in self.labels], np.bool_)[self.label]
        ends = np.append(self.start_ns[1:], self.end_ns)
        return union(self.start_ns[chosen], ends[chosen])


MANY_OPERATORS = "many operators"


def main_activity(spent: Mapping[HostLabel, int]) -> tuple[HostCause, str, int]:
    """Return the cause that took most of a time, what the host did of it, in words, and for how many ns.

    Args:
        spent: ns of each thing it did.

    >>> main_activity({HostLabel(HostCause.PYTHON, "# forward"): 9, HostLabel(HostCause.OPERATOR, "aten::mm"): 5})[1:]
    ('Python in # forward', 9)
    """
    kinds: dict[int, int] = {}
    for label, ns in spent.items():
        kinds[label.cause] = kinds.get(label.cause, 0) + ns
    cause = HostCause(max(kinds, key=lambda kind: kinds[kind], default=HostCause.NOTHING_RECORDED))
    if cause == HostCause.NOTHING_RECORDED:
        return cause, HOST_CAUSE_WORDS[cause], kinds.get(cause, 0)
    own = {label: ns for label, ns in spent.items() if label.cause == cause}
    most = max(own, key=lambda label: own[label])
    if cause == HostCause.PYTHON:
        return cause, f"Python in {most.what or most.where}", own[most]
    if cause == HostCause.OPERATOR and (not most.what or 2 * own[most] < sum(spent.values())):
        ranges: dict[str, int] = {}
        for label, ns in own.items():
            ranges[label.where] = ranges.get(label.where, 0) + ns
        where = max(ranges, key=lambda one: ranges[one])
        return cause, f"{MANY_OPERATORS} in {where}" if where else MANY_OPERATORS, ranges[where]
    what = most.what or HOST_CAUSE_WORDS[cause]
    return cause, f"{what} in {most.where}" if most.where and most.where != most.what else what, own[most]


NO_ACTIVITY = HostActivity(EMPTY[0], 0, np.empty(0, np.int32), ())
"""A recording without host events."""


BEFORE_FIRST = -1
"""Step of an interval launched before the first step began."""
AFTER_LAST = -2
"""Step of an interval launched after the last step ended."""


UNKNOWN = -1
"""Launch time of an interval whose launch is not in the file: it was launched before recording began."""


class Kind(IntEnum):
    """What a device was doing."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


class Phase(IntEnum):
    """The part of training that an interval belongs to, derived from its launch."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3


class Collective(Message, frozen=True):
    """One collective on one rank: a DDP bucket, an FSDP all-gather.

    Its kind is ``all_reduce``, ``all_gather``, ``all_to_all``, ``broadcast``, ``send``, ``dispatch`` … or ``other``.
    """

    label: str = ""
    """The trainer's label around the launch: ``FSDP::all_gather (layers.3)``, ``PP:0SEND_F1`` …"""
    synchronizes: bool | None = None
    """Whether no rank leaves its kernel before all have entered; None: as its kind does."""
    gradients: bool = False
    """Whether autograd launched it after it had accumulated a gradient, as DDP launches each bucket's all-reduce."""


class Action(IntEnum):
    """What a pipeline stage does with a micro-batch, by the letters of torch's schedules."""

    F = 0
    """Forward."""
    B = 1
    """The whole backward."""
    I = 2  # noqa: E741  # the letter that the field uses
    """The part of backward that the previous stage waits for: the gradient of the inputs."""
    W = 3
    """The part of backward that no stage waits for: the gradients of the weights."""


class Actions(Columns, frozen=True):
    """The actions of a pipeline schedule on one GPU, sorted by start; one entry per action in each column."""

    stage: NDArray[np.int32]
    """Stage in the whole pipeline, from 0; -1 where the label has none (``Forward 3``)."""
    micro_batch: NDArray[np.int32]
    kind: NDArray[np.uint8]
    """:class:`Action` values."""
    step: NDArray[np.int32]
    """Index of the step that launched it, or BEFORE_FIRST or AFTER_LAST."""
    start_ns: Int64
    """Start of the first compute launched under the label."""
    end_ns: Int64
    """End of the last compute launched under the label."""
    busy_ns: Int64
    """Compute time; where a forward and a backward overlap, it counts for the backward only."""
    called_ns: Int64
    """Start of the label on the host."""
    returned_ns: Int64
    """End of the label on the host."""


_NO_INT32 = np.empty(0, np.int32)
NO_ACTIONS = Actions.empty()
"""The actions of a run without a pipeline."""


BETWEEN = "not recorded after "
"""Start of the name of the time between two recordings of a process, in a list of its steps; then the step's name."""


class Windows(msgspec.Struct, frozen=True):
    """The steps on one device, one after the other, without gaps but for the time between two recordings."""

    names: tuple[str, ...]
    bounds: Int64
    """Ascending times in ns, between which a step or a gap is; one more than there are of both."""
    gaps: tuple[int, ...] = ()
    """Which of these spans, from 0, are the time between two recordings, which belongs to no step."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def span(self) -> Int64:
        """Of each step: which of the spans between two bounds it is."""
        spans = np.arange(max(len(self.bounds) - 1, 0))
        return np.delete(spans, list(self.gaps)) if self.gaps else spans

    @property
    def span_names(self) -> tuple[str, ...]:
        """The names of all spans: those of the steps, and others for gaps."""
        names = list(self.names)
        for gap in self.gaps:
            names.insert(gap, f"{BETWEEN}{names[gap - 1]}")
        return tuple(names)

    @property
    def start_ns(self) -> Int64:
        """When each step begins."""
        return self.bounds[:-1][self.span]

    @property
    def end_ns(self) -> Int64:
        """When each step ends."""
        return self.bounds[1:][self.span]

    @property
    def recorded(self) -> IntervalSet:
        """The time of all steps: an interval per recording."""
        return union(self.start_ns, self.end_ns)

    @property
    def wall_ns(self) -> int:
        """The length of all steps; 0 without any."""
        return int(self.wall_by_step.sum())

    @property
    def wall_by_step(self) -> Int64:
        """The length of each step."""
        return self.end_ns - self.start_ns

    def per_step(self, intervals: IntervalSet) -> Int64:
        """Return how many ns of a set of intervals are in each step."""
        return np.diff(covered(intervals, self.bounds))[self.span] if len(self.bounds) else EMPTY[0]

    @property
    def step_of_span(self) -> Int64:
        """Of each span: which step it is, or -1; followed by -1."""
        steps = np.full(len(self.bounds) or 1, -1, np.int64)
        steps[self.span] = np.arange(len(self))
        return steps

    def recording(self, step: int) -> tuple[int, int]:
        """Return the first and the last step of the recording that has a step, all by their index."""
        gaps, span = np.array(self.gaps, np.int64), self.span
        own = np.flatnonzero(np.searchsorted(gaps, span) == np.searchsorted(gaps, span[step]))
        return int(own[0]), int(own[-1])

    def part(self, low: int, high: int) -> Windows:
        """Return the steps from index *low* to *high*, inclusive, and what is between them."""
        first, last = self.span[[low, high]].tolist()
        gaps = tuple(gap - first for gap in self.gaps if first < gap < last)
        return Windows(self.names[low : high + 1], self.bounds[first : last + 2], gaps)


class Products(msgspec.Struct, frozen=True):
    """Calls of operators whose FLOPs are known, in groups of equal ones; one entry per group in each column."""

    calls: tuple[tuple[str, OperatorInputs], ...]
    """The name and the inputs of each group's call."""
    step: NDArray[np.int32]
    """The step in which they were called."""
    recompute: NDArray[np.bool_]
    """Whether they repeat forward work in backward."""
    count: Int64

    def steps(self, low: int, high: int) -> Products:
        """Select the steps from index *low* to *high*, inclusive."""
        chosen = np.flatnonzero((self.step >= low) & (self.step <= high))
        step = (self.step[chosen] - low).astype(np.int32)
        return Products(tuple(self.calls[i] for i in chosen), step, self.recompute[chosen], self.count[chosen])


COLUMNS = ("start_ns", "end_ns", "name", "kind", "phase", "step", "lane", "collective", "launch_ns", "recompute")
"""The columns of a timeline, one entry per interval."""


class Timeline(msgspec.Struct, frozen=True):
    """One GPU (rank and device): its intervals sorted by start, one entry per interval in each column."""

    rank: int
    device: int
    """Index of the GPU in its machine; -1 for a run on CPU."""
    device_name: str
    start_ns: Int64
    end_ns: Int64
    name: NDArray[np.int32]
    """Index into ``names``: the kernel's or the operator's name."""
    names: tuple[str, ...]
    kind: NDArray[np.uint8]
    """:class:`Kind` values."""
    phase: NDArray[np.uint8]
    """:class:`Phase` values; of communication and memory, too, by their launch."""
    step: NDArray[np.int32]
    """Index of the step that launched it, or BEFORE_FIRST or AFTER_LAST."""
    lane: NDArray[np.int64]
    """Stream id on a GPU, thread index on a CPU."""
    collective: NDArray[np.int32]
    """Index into ``collectives``, -1 for what is not communication."""
    collectives: tuple[Collective, ...]
    windows: Windows
    path: str = ""
    notes: tuple[Note, ...] = msgspec.field(default=())
    lacks: tuple[str, ...] = ()
    """The premises that fail in the rank's recording (:mod:`dptrace.core.notes`)."""
    launch_ns: Int64 = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    """Start of the launching call in ns; UNKNOWN where the file does not say, and everywhere by default."""
    host: HostActivity = NO_ACTIVITY
    """What the host did at each instant."""
    data_loading: IntervalSet = EMPTY
    """When the host waited for a DataLoader's next batch, in ns."""
    uses_ddp: bool = False
    """Whether the trace has labels of DistributedDataParallel."""
    parameter_search: IntervalSet = EMPTY
    """When the host searched for unused parameters (DDP's find_unused_parameters), in ns."""
    recompute: NDArray[np.bool_] = msgspec.field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether an interval is forward compute repeated in backward, as far as known; False by default."""
    actions: Actions = NO_ACTIONS
    """The actions of a pipeline schedule on this device."""
    receiving: IntervalSet = EMPTY
    """When the host was in a receive of a pipeline, in ns."""
    launching: IntervalSet = EMPTY
    """When work was awaited whose launching call still ran, longer than launches take, in ns."""
    depending: IntervalSet = EMPTY
    """When work was awaited that had been launched, after a call that lets a stream wait for another, in ns."""
    gpu: GpuProperties | None = None
    """What the file records of the GPU; None on CPU, and where it records nothing."""
    host_name: str = ""
    """Name of the machine, as the file records it; several machines may have one name."""
    products: Products | None = None
    """What the host called of products of matrices, convolutions and attention; None where the file does not tell."""
    host_of: str = ""
    """Name of the device that a CPU launches work on and whose events are not read; empty where none is known."""
    incomplete_steps: tuple[str, ...] = ()
    """The steps that request collectives whose records a cut file has lost."""

    def __post_init__(self) -> None:
        if len(self.launch_ns) != len(self.start_ns):
            force_setattr(self, "launch_ns", np.full(len(self.start_ns), UNKNOWN, np.int64))
        if len(self.recompute) != len(self.start_ns):
            force_setattr(self, "recompute", np.zeros(len(self.start_ns), np.bool_))

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: NDArray[Any]) -> Timeline:
        """Select or reorder intervals; steps, names and collectives do not change."""
        return replace(self, **{column: getattr(self, column)[chosen] for column in COLUMNS})

    @property
    def span(self) -> NDArray[np.int32]:
        """Of each interval, which of the spans of ``windows`` launched it: a step, or what is before a first step.

        Where several recordings are one, what comes before the first step of a later one is of the gap before that.
        """
        windows = self.windows
        if not windows.gaps:
            return self.step
        gaps = np.array([BEFORE_FIRST, *windows.gaps])
        gap = gaps[np.searchsorted(windows.bounds[gaps[1:]], self.start_ns, side="right")]
        own = windows.span[np.maximum(self.step, 0)]
        return np.where(self.step >= 0, own, np.where(self.step == BEFORE_FIRST, gap, self.step)).astype(np.int32)

    @property
    def may_be_stage(self) -> bool:
        """Whether it may hold a stage of a pipeline: it has labels of a schedule, or messages with other ranks."""
        return bool(len(self.actions)) or any(c.peer >= 0 and c.kind in ("send", "recv") for c in self.collectives)

    @property
    def on_cpu(self) -> bool:
        """Whether the intervals are operators on a CPU, not kernels on a GPU."""
        return self.device < 0

    @property
    def label(self) -> str:
        """The device's name: ``rank 0 · GPU 0``, ``rank 0 · CPU``, or ``rank 0 · host of MTIA``."""
        host = f"host of {self.host_of}" if self.host_of else "CPU"
        return f"rank {self.rank} · " + (host if self.on_cpu else f"GPU {self.device}")

    @property
    def label_with_model(self) -> str:
        """The device's name with its model, if the trace has that: ``rank 0 · GPU 0 (NVIDIA H100)``."""
        return self.label if self.on_cpu or self.device_name in ("", "GPU") else f"{self.label} ({self.device_name})"


INTERVAL_SETS = tuple(name for name, kind in Timeline.__annotations__.items() if kind == "IntervalSet")
"""The fields of a timeline that say when its host did something: windows join them, and a simulation has none."""
