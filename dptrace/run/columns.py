"""The columns of all tables of a run; frames, CSV, JSON, headings, docstrings and docs/reference/json.md follow.

The source of a row's values is named above each table. Tables whose columns have no value get their rows as dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import UNKNOWN_NS
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES, IdleCause
from dptrace.analysis.per_gpu.split import COMPUTE, FIGURES, PHASES, SHOWN, overlap_percent
from dptrace.core.intervals import Int64
from dptrace.core.table import Column, columns
from dptrace.timeline.model import Action, Kind, Phase, Timeline

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.across import AcrossRanks
    from dptrace.analysis.cross_rank.transfers import ExposedWait
    from dptrace.analysis.per_gpu.device import DeviceFigures
    from dptrace.analysis.per_gpu.split import Split


def _with(values: Iterable[Column], *functions: Callable[[Any], Any]) -> tuple[Column, ...]:
    return tuple(replace(column, value=function) for column, function in zip(values, functions, strict=True))


_RANK, _DEVICE = columns("rank device", "int", "rank number, and index of its GPU; device is -1 for a CPU")
_STEP = Column("step", "str", "name of the step, such as `ProfilerStep#4`")
_ANY_STEP = Column("step", "string", "name of the step; missing outside all steps")
_PHASE = Column("phase", "str", "phase that launched it: `forward`, `backward`, `optimizer` or `other`")
_KIND = Column("kind", "str", "`all_reduce`, `all_gather` …")
_START, _END = columns("start_ns end_ns", "int", "on the rank's own clock")
_EXPOSED, _OVERLAPPED = columns(
    "exposed_ns overlapped_ns", "Int64", "its time without and under compute on this rank; missing where unknown"
)
_WAITS = (
    Column("exposed_wait_ns", "Int64", "part of exposed_ns spent waiting for later ranks; missing where unknown"),
    Column("waits_for", "Int64", "rank that caused more than half of the wait; missing where none did"),
)


class OneDevice(msgspec.Struct, frozen=True, dict=True):
    """One GPU of a run, from which its rows come: figures, and waiting in its exposed communication."""

    device: DeviceFigures
    wait: ExposedWait

    @property
    def timeline(self) -> Timeline:
        """Its timeline."""
        return self.device.timeline

    @cached_property
    def calls(self) -> Int64:
        """Indices of its collectives among its intervals."""
        return np.flatnonzero(self.timeline.collective >= 0)

    def of_calls(self, name: str) -> list[Any]:
        """Return what each of its collectives says of itself."""
        collectives = self.timeline.collectives
        return [getattr(collectives[number], name) for number in self.timeline.collective[self.calls].tolist()]


def _step_names(timeline: Timeline, steps: NDArray[Any]) -> list[str | None]:
    """Return the names of steps by their numbers; None outside all steps."""
    names = (*timeline.windows.names, None, None)
    return [names[step] for step in steps.tolist()]


def _phases(phases: NDArray[Any]) -> list[str]:
    names = [phase.name.lower() for phase in Phase]
    return [names[phase] for phase in phases.tolist()]


def _known(values: NDArray[Any], known: NDArray[np.bool_]) -> list[Any]:
    return [value if seen else None for value, seen in zip(values.tolist(), known.tolist(), strict=True)]


_PLACE = _with((_RANK, _DEVICE), lambda one: one.timeline.rank, lambda one: one.timeline.device)
_STEP_OF_DEVICE = replace(_STEP, value=lambda one: list(one.timeline.windows.names))

# The split of a GPU's steps; its source is a OneDevice.

_FIGURES = {
    "forward_ns": ("compute by phase", "forward"),
    "backward_ns": ("compute by phase", "backward"),
    "optimizer_ns": ("compute by phase", "optimizer"),
    "other_ns": ("compute by phase", "other"),
    "exposed_comm_ns": ("communication that no compute hides", "exposed comm"),
    "overlapped_comm_ns": ("communication under compute", "overlapped comm"),
    "exposed_memory_ns": ("copies and sets under neither compute nor communication", "exposed memory"),
    "idle_ns": ("no work on the GPU", "idle"),
    "wall_ns": ("length of the step: the sum of the parts above except overlapped_comm_ns", "wall"),
    "compute_ns": ("compute of all phases, known also where phases are not", "compute"),
}
_WAIT_OF_STEP = Column(
    "exposed_wait_ns",
    "Int64",
    "part of exposed_comm_ns spent waiting for later ranks; missing where unknown",
    "waiting",
)
_UNMATCHED = Column(
    "exposed_unmatched_ns", "int", "part of exposed_comm_ns in collectives that lack a rank", "incomplete"
)


def _known_of(split: Split, name: str, values: Int64) -> Any:
    """Return the values of a figure or a cause; None for each where it is not known."""
    return [None] * len(values) if name in split.unknown else values


def _figure(name: str) -> Column:
    doc, heading = _FIGURES[name]
    dtype, doc = ("int", doc) if name == "wall_ns" else ("Int64", f"{doc}; missing where unknown")
    return Column(name, dtype, doc, heading, lambda one: _known_of(one.device.split, name, one.device.split.of(name)))


def _total(column: Column) -> Column:
    """Return the sum of a figure over all steps of a GPU."""
    waits = column in (_WAIT_OF_STEP, _UNMATCHED)
    return replace(column, value=lambda one: [(one.wait if waits else one.device.split).total()[column.name]])


def _overlap(one: OneDevice) -> list[float | None]:
    total = one.device.split.total()
    return [overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"])]


_SPLIT = (*map(_figure, SHOWN), _WAIT_OF_STEP, _UNMATCHED)
STEPS = (
    *_PLACE,
    _STEP_OF_DEVICE,
    *_SPLIT[:-2],
    *_with(_SPLIT[-2:], lambda one: _known(one.wait.wait_ns, one.wait.known), lambda one: one.wait.unmatched_ns),
)
TOTALS = (
    *_PLACE,
    *map(_total, _SPLIT),
    Column(
        "overlap_percent",
        "float",
        "overlapped / (overlapped + exposed) communication; missing without communication",
        value=_overlap,
    ),
)


def _cause(cause: IdleCause) -> Column:
    name = cause.name
    return Column(
        name,
        "Int64",
        f"{cause.doc}; missing where unknown",
        cause.heading or cause.label,
        lambda one: _known_of(one.device.split, name, one.device.idle_causes[name]),
    )


IDLE = (
    *_PLACE,
    _STEP_OF_DEVICE,
    *map(_cause, IDLE_CAUSES),
    replace(_figure("idle_ns"), doc="idle time of the step, the sum of the causes; missing where unknown"),
)

HEADINGS = {column.name: column for column in (*_SPLIT, *IDLE[3:-1])}
"""The figures of a step, of waiting and of idle time by their names."""
SHOWN_FIGURES = (*PHASES, COMPUTE, "exposed_comm_ns", "exposed_wait_ns", "exposed_unmatched_ns", *FIGURES[6:])
SHOWN_FIGURES += ("overlapped_comm_ns",)
"""The figures in the order of the tables for readers: the parts, their sum, and overlapped communication."""


def shown_figures(rows: Sequence[Mapping[str, float | None]]) -> tuple[str, ...]:
    """Return the figures that a table of steps shows.

    These are phases, or compute where a phase is unknown, waiting where any is known, missing ranks where there are
    any.
    """
    unknown = any(row.get(name) is None for row in rows for name in PHASES)
    left_out = {
        *(PHASES if unknown else (COMPUTE,)),
        *(() if any(row["exposed_wait_ns"] is not None for row in rows) else ("exposed_wait_ns",)),
        *(() if any(row["exposed_unmatched_ns"] for row in rows) else ("exposed_unmatched_ns",)),
    }
    return tuple(name for name in SHOWN_FIGURES if name not in left_out)


# Collectives of a GPU; the source is a OneDevice. Then intervals, of a Timeline.


def _said(name: str, dtype: str, doc: str, unset: int | str) -> Column:
    """Return a column of what traces say of a collective; *unset* is what is kept where they do not."""
    return Column(name, dtype, doc, value=lambda one: _told(one.of_calls(name), unset))


def _told(values: Iterable[Any], unset: int | str) -> list[Any]:
    return [None if value == unset else value for value in values]


def _at_calls(column: Column, get: Callable[[OneDevice], Int64]) -> Column:
    return replace(column, value=lambda one: get(one)[one.calls])


def _exposure_of_calls(column: Column, get: Callable[[OneDevice], Int64]) -> Column:
    return replace(column, value=lambda one: _known_of(one.device.split, "exposed_comm_ns", get(one)[one.calls]))


CALLS = (
    *_PLACE,
    replace(_ANY_STEP, value=lambda one: _step_names(one.timeline, one.timeline.step[one.calls])),
    replace(_KIND, value=lambda one: one.of_calls("kind")),
    Column(
        "bytes",
        "Int64",
        "message size; missing where unknown",
        value=lambda one: _told(one.of_calls("bytes"), 0),
    ),
    _said("dtype", "string", "data type and process group; missing where unknown", ""),
    _said("group", "string", "data type and process group; missing where unknown", ""),
    _said("group_size", "Int64", "number of ranks in the group; missing where unknown", 0),
    _said("seq", "Int64", "sequence number in the group; missing where unknown", -1),
    replace(_PHASE, value=lambda one: _phases(one.timeline.phase[one.calls])),
    _at_calls(_START, lambda one: one.timeline.start_ns),
    _at_calls(_END, lambda one: one.timeline.end_ns),
    _exposure_of_calls(_EXPOSED, lambda one: one.device.exposed_ns),
    _exposure_of_calls(_OVERLAPPED, lambda one: one.device.overlapped_ns),
    Column(
        "name",
        "str",
        "the kernel's name",
        value=lambda one: [one.timeline.names[number] for number in one.timeline.name[one.calls].tolist()],
    ),
    _said("label", "string", "the label of the bucket or layer that it serves; missing without one", ""),
    *_with(
        _WAITS,
        lambda one: _known(one.wait.calls.exposed_ns, one.wait.calls.exposed_ns >= 0),
        lambda one: _known(one.wait.calls.waits_for, one.wait.calls.waits_for >= 0),
    ),
)


def _texts(names: Iterable[str | None], numbers: Int64) -> Any:
    """Return the name of each number, as an array: a run may have millions of intervals."""
    return np.array([*names], object)[numbers]


INTERVALS = (
    *_with((_RANK, _DEVICE), lambda timeline: timeline.rank, lambda timeline: timeline.device),
    Column(
        "name",
        "str",
        "name of the kernel, or of the operator on a CPU",
        value=lambda timeline: _texts((*timeline.names, ""), timeline.name),
    ),
    Column(
        "kind",
        "str",
        "`compute`, `communication` or `memory`",
        value=lambda timeline: _texts((kind.name.lower() for kind in Kind), timeline.kind),
    ),
    Column(
        "phase",
        "str",
        "`forward`, `backward`, `optimizer` or `other`",
        value=lambda timeline: _texts((phase.name.lower() for phase in Phase), timeline.phase),
    ),
    replace(_ANY_STEP, value=lambda timeline: _texts((*timeline.windows.names, None, None), timeline.step)),
    Column("lane", "int", "stream of a GPU, or thread of a CPU", value=lambda timeline: timeline.lane),
    *_with((_START, _END), lambda timeline: timeline.start_ns, lambda timeline: timeline.end_ns),
)

# Across ranks; the source is an AcrossRanks.


def _ranks(across: AcrossRanks, devices: NDArray[Any]) -> list[int | None]:
    """Return the ranks of devices; None for -1."""
    return [across.matches.device_ids[device][0] if device >= 0 else None for device in devices.tolist()]


def _gpus(across: AcrossRanks, devices: NDArray[Any]) -> list[int]:
    return [across.matches.device_ids[device][1] for device in devices.tolist()]


def _of_members(across: AcrossRanks, of_calls: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return of each member what its device has for each of its collectives."""
    first = np.cumsum([0, *map(len, of_calls)])
    return np.concatenate([*of_calls, np.empty(0, np.int64)])[first[across.matches.device] + across.matches.index]


def _exposures(across: AcrossRanks, name: str) -> list[int | None]:
    known = np.array(["exposed_comm_ns" not in one.split.unknown for one in across.devices], np.bool_)
    values = _of_members(across, [getattr(one, name)[one.timeline.collective >= 0] for one in across.devices])
    return _known(values, known[across.matches.device])


def _waits(across: AcrossRanks, name: str) -> list[int | None]:
    values = _of_members(across, [getattr(wait.calls, name) for wait in across.exposed_waits])
    return _known(values, values >= 0)


def _gigabytes(rates: NDArray[np.float64]) -> list[float | None]:
    return _known(rates / 1e9, ~np.isnan(rates))


def _last_ranks(across: AcrossRanks) -> list[int | None]:
    latest = across.stragglers.latest(len(across.matches))
    return _ranks(across, np.where(latest >= 0, latest, across.timing.last))


MEMBERS = (
    *_with(
        (_RANK, _DEVICE, _START, _END, _EXPOSED, _OVERLAPPED),
        lambda across: _ranks(across, across.matches.device),
        lambda across: _gpus(across, across.matches.device),
        lambda across: across.matches.start_ns,
        lambda across: across.matches.end_ns,
        lambda across: _exposures(across, "exposed_ns"),
        lambda across: _exposures(across, "overlapped_ns"),
    ),
    Column(
        "wait_ns",
        "Int64",
        "its duration on this rank beyond transfer_ns, of a message until the other side began at most; missing for "
        "kinds in which ranks do not wait for each other, such as broadcast",
        value=lambda across: _known(across.timing.wait_ns, across.timing.wait_ns != UNKNOWN_NS),
    ),
    Column(
        "late_ns",
        "Int64",
        "how much later than the first rank it arrived; missing below the clocks' uncertainty",
        value=lambda across: _known(across.timing.late_ns, across.timing.late_known),
    ),
    *_with(_WAITS, lambda across: _waits(across, "exposed_ns"), lambda across: _waits(across, "waits_for")),
)
MATCHED = _with(
    (
        _KIND,
        Column("name", "string", "`bucket 0`, `FSDP::all_gather (layers.3)` …; missing without a name"),
        Column("group", "string", "process group; missing where unknown"),
        Column("seq", "Int64", "sequence number in the group; missing where unknown"),
        Column("bytes", "Int64", "message size, as nccl-tests counts it; missing where unknown"),
        Column("dtype", "string", "data type; missing where unknown"),
        _ANY_STEP,
        Column("phase", "str", "phase that launched it"),
        Column("complete", "bool", "whether all ranks of the group are in the run and recorded it"),
        Column("transfer_ns", "Int64", "the shortest duration among the ranks; missing if not complete"),
        *columns(
            "algbw_gbps busbw_gbps",
            "float",
            "algorithm and bus bandwidth; missing where bytes or time are unknown, or nccl-tests defines none",
        ),
        Column("last_rank", "Int64", "rank that arrived last; missing where the clocks do not allow an answer"),
    ),
    lambda across: across.matches.kind,
    lambda across: _told(across.names, ""),
    lambda across: _told((across.matches.groups[number].name for number in across.matches.group.tolist()), ""),
    lambda across: _told((one.seq for one in across.matches.collectives), -1),
    lambda across: _told(across.matches.bytes.tolist(), 0),
    lambda across: _told((one.dtype for one in across.matches.collectives), ""),
    lambda across: _told(across.matches.step.tolist(), ""),
    lambda across: _phases(across.matches.phase),
    lambda across: across.matches.complete,
    lambda across: _known(across.timing.transfer_ns, across.timing.transfer_ns != UNKNOWN_NS),
    lambda across: _gigabytes(across.timing.algbw),
    lambda across: _gigabytes(across.timing.busbw),
    _last_ranks,
)
"""Columns of a matched collective that are the same for all of its ranks."""
COLLECTIVE_RANKS = (Column("collective", "int", "number of the collective; its rows share it"), *MATCHED, *MEMBERS)


def _compared(across: AcrossRanks, name: str) -> list[int | None]:
    """Return a figure of each clock; None where nothing connects it with an earlier one."""
    number, reference = np.arange(len(across.clocks.reference)), across.clocks.reference
    return _known(getattr(across.clocks, name), (reference != number) | (number == 0))


CLOCKS = _with(
    (
        _RANK,
        _DEVICE,
        Column("reference_rank", "int", "the rank that the clock is compared with"),
        *columns(
            "offset_ns at_ns",
            "Int64",
            "how far the clock is ahead, and when, on the GPU's own clock; missing where nothing connects the two",
        ),
        Column("uncertainty_ns", "Int64", "the offset's error is at most this; missing as offset_ns"),
        Column("drift_ppm", "float", "change of the offset from at_ns on; 0 unless it is beyond doubt"),
        Column("corrected", "bool", "whether times were shifted: only if the offset exceeds its uncertainty"),
        Column("collectives", "int", "number of collectives that the estimate uses"),
    ),
    lambda across: [rank for rank, _ in across.matches.device_ids],
    lambda across: [device for _, device in across.matches.device_ids],
    lambda across: _ranks(across, across.clocks.reference),
    lambda across: _compared(across, "offset_ns"),
    lambda across: _compared(across, "at_ns"),
    lambda across: _compared(across, "uncertainty_ns"),
    lambda across: across.clocks.drift_ppm,
    lambda across: across.clocks.corrected,
    lambda across: across.clocks.collectives,
)


STRAGGLERS = _with(
    (
        *columns("rank device", "int", "the straggler: rank number, and index of its GPU"),
        _ANY_STEP,
        Column("collective", "int", "number of the collective among those across ranks"),
        _KIND,
        Column("late_ns", "int", "how much later than the median early rank it arrived"),
        Column("waited_ns", "int", "how long the others waited for it, exposed: the mean of the early ranks"),
    ),
    lambda across: _ranks(across, across.stragglers.device),
    lambda across: _gpus(across, across.stragglers.device),
    lambda across: [step or None for step in across.matches.step[across.stragglers.instance].tolist()],
    lambda across: across.stragglers.instance,
    lambda across: across.matches.kind[across.stragglers.instance],
    lambda across: across.stragglers.late_ns,
    lambda across: across.stragglers.waited_ns,
)
FINDINGS = (
    Column("kind", "str", "`straggler`, `exposed_comm`, `small_messages`, `host_bound`, `data_loading`, `copies` …"),
    *columns("text advice", "str", "what was found, with its numbers, and what to do about it"),
    Column(
        "counted_ns",
        "int",
        "time measured for it, of the mean GPU and step: idle, exposed, computed, or waited by others; no gain",
    ),
    Column("evidence", "dict", "where to look: step, rank, collective"),
    Column(
        "gain_ns",
        "Int64",
        "how much shorter a step would be without it alone; missing where a replay can't tell",
    ),
    *columns(
        "gain_low_ns gain_high_ns",
        "Int64",
        "the range of gain_ns; gain_next_ns may lie below it",
    ),
    Column(
        "gain_next_ns",
        "Int64",
        "how much shorter without it, once those above it are gone: these add up to what all of them gain together",
    ),
    Column("gain_share", "float", "gain_next_ns as a share of the mean step, from 0 to 1"),
    Column("gain_of_median_step_ns", "Int64", "how much shorter the median step would be"),
    Column("gain_change", "string", "what is different in the replay; missing where no change removes the finding"),
    Column("gain_reason", "string", "why there is no number, or why it is far below counted_ns"),
    Column("gain_doubts", "list", "kinds of the doubts about it, including those that refuse"),
)

# Pipelines.

PIPELINES = (
    Column("pipeline", "int", "number of the pipeline, from 0"),
    Column("schedule", "str", "`gpipe`, `1f1b` …, from the order of the actions"),
    Column("micro_batches", "int", "micro-batches of a step"),
    _RANK,
    _DEVICE,
    Column("stages", "tuple of int", "numbers of the rank's stages"),
    _STEP,
    Column("busy_ns", "int", "compute of the rank's actions"),
    Column("own_span_ns", "int", "from the start of the rank's first action to the end of its last"),
    Column("span_ns", "int", "from the start of the pipeline's first action to the end of its last"),
    *columns("bubble_percent pipeline_bubble_percent", "float", "part of span_ns without compute: own, all ranks'"),
    Column("formula_percent", "float", "bubble that the schedule's formula predicts; missing without a formula"),
)


def _of_action(column: Column, get: Callable[[Timeline], Any]) -> Column:
    return replace(column, value=lambda source: get(source[1]))


# The source is the number of a pipeline, and the timeline and the first stage of one of its ranks.
PIPELINE_ACTIONS = (
    replace(PIPELINES[0], value=lambda source: source[0]),
    _of_action(_RANK, lambda timeline: timeline.rank),
    _of_action(_DEVICE, lambda timeline: timeline.device),
    _of_action(_ANY_STEP, lambda timeline: _step_names(timeline, timeline.actions.step)),
    Column(
        "stage",
        "int",
        "numbers, from 0",
        value=lambda source: [stage if stage >= 0 else source[2] for stage in source[1].actions.stage.tolist()],
    ),
    _of_action(Column("micro_batch", "int", "numbers, from 0"), lambda timeline: timeline.actions.micro_batch.tolist()),
    _of_action(
        Column("action", "str", "`F` (forward), `B` (backward), `I` and `W` (backward of inputs and of weights)"),
        lambda timeline: [Action(kind).name for kind in timeline.actions.kind.tolist()],
    ),
    _of_action(_START, lambda timeline: timeline.actions.start_ns),
    _of_action(_END, lambda timeline: timeline.actions.end_ns),
    _of_action(Column("busy_ns", "int", "compute within the action"), lambda timeline: timeline.actions.busy_ns),
)

# What steps compute, and what devices and hosts spend time on.

UTILIZATION = (
    _RANK,
    _DEVICE,
    _STEP,
    Column("wall_ns", "int", "length of the step"),
    *columns(
        "model_flops hardware_flops", "float", "FLOPs of the model, and with recomputation; missing where unknown"
    ),
    Column("tflops", "float", "model_flops over wall_ns"),
    *columns("mfu hfu", "float", "model and hardware FLOPs utilization, from 0 to 1; missing without a known peak"),
    *columns("samples_per_s tokens_per_s", "float", "of all ranks together; missing where the batch is unknown"),
)
KERNELS = (
    Column("kernel", "str", "its short name"),
    Column("kind", "str", "`compute`, `communication` or `memory`"),
    Column("count", "int", "calls: of the kernel, the operator, the module or the label"),
    Column("kernels", "int", "device intervals; on a CPU, operators"),
    Column("recompute_count", "int", "calls that repeat forward work in backward"),
    Column("total_ns", "int", "sum of the durations of the intervals"),
    Column("kernel_ns", "int", "the same, but intervals of one call that run at the same time count once"),
    *columns("compute_ns communication_ns memory_ns", "int", "total_ns by kind"),
    Column("exposed_comm_ns", "int", "time of collectives without compute, each on its own"),
    Column("recompute_ns", "int", "time of the calls that repeat forward work"),
    *columns("forward_ns backward_ns optimizer_ns other_ns", "Int64", "compute_ns by phase; missing where unknown"),
    *columns("mean_ns p50_ns p95_ns", "float", "of a call's part of kernel_ns"),
    Column("step_ns", "int", "the part of total_ns launched within steps"),
    Column("share_of_step", "float", "step_ns as a share of the length of all steps, from 0 to 1"),
    Column("share_of_compute", "float", "compute_ns as a share of all compute"),
    Column("main_phase", "string", "the phase of most of its compute; missing where unknown"),
    Column("share_of_phase", "float", "its share of all compute in that phase; missing where unknown"),
    Column("launch_delay_ns", "float", "median of the time from launch to start; missing where unknown"),
    Column("max_over_median", "float", "the largest total_ns of a rank over the median one; missing for one rank"),
    Column("slowest_rank", "Int64", "the rank with the largest total_ns; missing for one rank"),
    Column("name", "str", "the kernel's whole name"),
)
LAUNCHES = (
    Column("call", "str", "its name"),
    Column("kind", "str", "`operator`, `runtime`, `allocator` or `synchronizing`"),
    Column("count", "int", "calls within the steps"),
    *columns("self_ns total_ns", "int", "host time without and with the calls inside it"),
    Column("mean_ns", "float", "mean of total_ns"),
    Column("share_of_step", "float", "self_ns as a share of the steps' length"),
    Column("launches", "int", "intervals on a device that it launched"),
)

# Memory; the rows come from run/memory.py. Of memory, device is -1 for that of the CPU.

_PEAK_PHASE = "`forward`, `backward`, `optimizer`, `other`, or `all` for the whole step"
MEMORY_PEAKS = (
    _RANK,
    _DEVICE,
    _STEP,
    Column("phase", "str", _PEAK_PHASE),
    Column("peak_bytes", "int", "the most that was allocated; on a CPU beyond the start of the recording"),
    Column("reserved_bytes", "int", "the most that torch's allocator held; 0 on a CPU"),
)
MEMORY_USE = (
    _RANK,
    _DEVICE,
    Column("name", "string", "the kind, operator or module; missing for no operator or module"),
    Column("peak_bytes", "int", "bytes alive at the device's peak"),
    Column("blocks", "int", "blocks alive at the peak; those from before the recording are not counted"),
    Column("allocated_bytes", "int", "bytes of all allocations"),
    Column("allocations", "int", "number of allocations"),
)
BLOCKS = (
    _RANK,
    _DEVICE,
    Column("bytes", "int", "size of the block"),
    Column("kind", "str", "`gradients`, `activations` …; docs/definitions.md defines them"),
    *columns("operator module", "string", "what allocated it; missing where nothing shows it"),
    Column("step", "string", "step that allocated it; missing outside all steps"),
    Column("phase", "string", "phase that allocated it; missing before the recording"),
    Column("born_ns", "Int64", "when it was allocated, on the rank's own clock; missing before the recording"),
)


def _of_events(name: str, doc: str, get: Callable[[Any], Any]) -> Column:
    """Return a column of the events at a device's levels, which begin with that before the first event."""
    return Column(
        name, "int", doc, value=lambda report: get(report.device.events)[report.levels[report.levels > 0] - 1]
    )


# The source is a DeviceReport.
MEMORY_EVENTS = (
    *_with((_RANK, _DEVICE), lambda report: report.rank, lambda report: report.device.device),
    _of_events("time_ns", "on the rank's own clock", lambda events: events.time_ns),
    _of_events("bytes", "size of the block; below 0 for a free", lambda events: events.bytes),
    _of_events(
        "allocated_bytes",
        "allocated on the device after the event, as the file has it",
        lambda events: events.allocated,
    ),
    _of_events("reserved_bytes", "held by torch's allocator; 0 on a CPU", lambda events: events.reserved),
)
ALLOCATOR_CALLS = (
    Column("rank", "int", "rank number"),
    Column("name", "str", "`cudaMalloc`, `cudaFree` …"),
    Column("count", "int", "number of calls"),
    Column("in_steps", "int", "number of those within steps; each may wait for the GPU"),
    Column("total_ns", "int", "time in the calls"),
)
