"""A finding, and the context that all detectors share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.across import AcrossRanks
from dptrace.analysis.cross_rank.ddp_buckets import ddp_logging_data
from dptrace.analysis.findings.cores import CoreWaits, core_waits
from dptrace.analysis.findings.evidence import AnyEvidence, Evidence, Idle, Straggler
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures, in_mean
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, median
from dptrace.core.units import byte_size, duration
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import HostCause, Phase, Timeline

if TYPE_CHECKING:
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline

Kind = TypeVar("Kind", bound=Evidence)
_NOTHING = Evidence()

# What a step would gain without what a finding is about, as a replay of the run without it shows.


class Gain(msgspec.Struct, frozen=True):
    """The answer of one counterfactual; times are ns of a step."""

    change: str = ""
    """What is different in it, in words; empty where no counterfactual fits."""
    ns: int | None = None
    """How much shorter a step is without it alone; None where a replay cannot tell."""
    low_ns: int | None = None
    high_ns: int | None = None
    """Range of ``ns``: by the choice of steps, by what was inferred, and by the error of the replay."""
    marginal_ns: int | None = None
    """How much shorter once the findings above it are gone: these add up to what all of them gain together. None where
    ``ns`` is."""
    share: float | None = None
    """``marginal_ns`` as a share of the mean step, from 0 to 1."""
    median_step_ns: int | None = None
    """How much shorter the median step would be without it alone."""
    reason: str = ""
    """Why there is no number, or why it is far below what the finding counts."""
    doubts: tuple[str, ...] = ()
    """Kinds of the doubts about it, as ``dptrace whatif`` names them."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, with the names that a finding has it under."""
        return {
            "gain_ns": self.ns,
            "gain_low_ns": self.low_ns,
            "gain_high_ns": self.high_ns,
            "gain_next_ns": self.marginal_ns,
            "gain_share": self.share,
            "gain_of_median_step_ns": self.median_step_ns,
            "gain_change": self.change or None,
            "gain_reason": self.reason or None,
            "gain_doubts": list(self.doubts),
        }


NOISE = "Can't tell it from noise"
"""How the reason begins of a gain that may be none."""
MIN_SHARE = 0.01
"""Smallest share of the step that is counted, or gained, in a finding."""


def nothing_found(on_cpu: bool = False, is_limited: bool = False) -> str:
    """Return what follows "Findings:" for a run without any; *is_limited* if figures of it are unknown."""
    if is_limited:
        return "none of what is known; of figures that are unknown none can be made."
    idle = " Short gaps on a CPU, which are Python between operators, do not count here." if on_cpu else ""
    return f"nothing takes 1 % of a step or more that could be saved.{idle}"


class Finding(msgspec.Struct, frozen=True):
    """A cause of lost time."""

    kind: str
    """``straggler``, ``exposed_comm``, ``small_messages``, ``host_bound``, ``data_loading``, ``copies`` …"""
    text: str
    """A sentence that states the problem with its numbers."""
    advice: str
    """What to do about it."""
    counted_ns: int
    """Time that was measured for it, of the mean GPU and step: idle, exposed, computed, or waited by others."""
    share: float
    """That time as a share of the mean step, from 0 to 1."""
    evidence: AnyEvidence = _NOTHING
    """Where to look, and the figures behind its text."""
    gain: Gain = Gain()
    """What a step would gain without it."""
    needed: bool = False
    """Whether others gain only once it is gone, so that it is not minor."""

    def about(self, kind: type[Kind]) -> Kind:
        """Return its evidence, which is of this kind."""
        assert isinstance(self.evidence, kind), (self.kind, self.evidence)
        return self.evidence

    @property
    def figure(self) -> tuple[int, float]:
        """What it is shown with: its gain after those above it, or where that is unknown what was counted; with its
        share of a step.
        """
        gain = self.gain
        if gain.marginal_ns is None or gain.share is None:
            return self.counted_ns, self.share
        return gain.marginal_ns, gain.share

    @property
    def has_gain(self) -> bool:
        """Whether it is shown with a gain, and not with what was counted."""
        return self.gain.marginal_ns is not None

    @property
    def is_minor(self) -> bool:
        """Whether a replay shows that a step would gain less than 1 % without it, and that no other needs it gone."""
        return self.has_gain and self.figure[1] < MIN_SHARE and not self.needed

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data, with what it would gain."""
        data = {name: getattr(self, name) for name in ("kind", "text", "advice", "counted_ns")}
        evidence = self.evidence.to_dict() | ({"needed": True} if self.needed else {})
        return {**data, "evidence": evidence, **self.gain.to_dict()}


def top_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are not minor, in their order."""
    return tuple(finding for finding in found if not finding.is_minor)


NOTABLY_MORE = 1.1
"""How many times as much as the one before it a finding may gain without a reason."""
_PARTS_OF_EXPOSED = ("small_messages", "first_bucket", "low_bandwidth", "slow_collectives")
_OF_HOSTS = ("unrecorded", *(cause.kind for cause in IDLE_CAUSES if cause.host_causes))
"""Findings on what all hosts do, of which a late rank's own excess is a part."""


def is_part(one: Finding, whole: Finding) -> bool:
    """Return whether a finding is about a part of what another one is about, and so stands before it."""
    if one.evidence.once != whole.evidence.once:
        return False
    if whole.kind == "exposed_comm":
        return one.kind in _PARTS_OF_EXPOSED and one.evidence.collective in (None, whole.evidence.collective)
    if one.kind != "straggler" or whole.kind not in _OF_HOSTS:
        return False
    # Where all ranks pause at one place, only what a rank pauses longer there is a part.
    of_place = isinstance(whole.evidence, Idle) and whole.evidence.ranks
    return not of_place or one.about(Straggler).where == whole.about(Idle).where


_INDUCTOR = re.compile(r"triton_([a-z]+_fused_|tem_|_\d)")
"""Names of kernels that inductor generates; in torch 2.0 they begin with ``triton__0``."""
_COMPILED_CALL = re.compile("CompiledFunction|CompiledFxGraph|Torch-Compiled Region")


def is_compiled(timelines: Iterable[Timeline]) -> bool:
    """Return whether torch.compile is in use: its kernels run, or the host is in a compiled graph."""
    return any(
        any(_INDUCTOR.match(name) or _COMPILED_CALL.search(name) for name in timeline.names)
        or any(_COMPILED_CALL.search(f"{label.what} {label.where}") for label in timeline.host.labels)
        for timeline in timelines
    )


class StepContext(msgspec.Struct, frozen=True, dict=True):
    """The steps by which findings count time."""

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """Those of the devices with steps."""
        raise NotImplementedError

    @cached_property
    def is_compiled(self) -> bool:
        """Whether torch.compile is in use."""
        return is_compiled(self.timelines)

    @cached_property
    def steps(self) -> int:
        """Number of steps of all devices together: a total divided by it is the mean per step and GPU."""
        return sum(len(timeline.windows) for timeline in self.timelines)

    @cached_property
    def wall_ns(self) -> float:
        """Mean length of a step."""
        return sum(timeline.windows.wall_ns for timeline in self.timelines) / self.steps

    def finding(self, kind: str, text: str, advice: str, total_ns: float, evidence: AnyEvidence = _NOTHING) -> Finding:
        """Create a finding from the time that counts in all steps of all devices."""
        counted = int(total_ns) // self.steps
        return Finding(kind, text, advice, counted, counted / self.wall_ns if self.wall_ns else 0.0, evidence)


class FindingContext(StepContext, frozen=True, dict=True):
    """The analysis of a run, and the figures that several detectors use."""

    across: AcrossRanks
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The contents of ``run.json``."""

    @cached_property
    def devices(self) -> tuple[DeviceFigures, ...]:
        """The devices that the mean step is of."""
        return in_mean(self.across.devices)

    def knows(self, *names: str) -> bool:
        """Return whether these figures or causes of idle time are known of all devices."""
        return all(name not in device.split.unknown for device in self.devices for name in names)

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines, with indices into the devices of the matches; most runs have none."""
        if not any(device.timeline.may_be_stage for device in self.across.devices):
            return ()
        from dptrace.analysis.cross_rank.pipeline_bubble import pipelines

        return pipelines(self.across.devices, self.across.clocks)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the run has no GPU, so that operators are its compute."""
        return all(device.timeline.on_cpu for device in self.devices)

    @cached_property
    def core_waits(self) -> CoreWaits:
        """How long ranks had no core; empty where that is not recorded."""
        return core_waits(self.metadata, self.timelines)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """Those of the devices with steps."""
        return tuple(device.timeline for device in self.devices)

    @cached_property
    def _host_gaps(self) -> dict[tuple[int, tuple[HostCause, ...]], IntervalSet]:
        return {}

    def host_gaps(self, number: int, causes: tuple[HostCause, ...]) -> IntervalSet:
        """Return the idle gaps of a device during which its host was busy with any of these causes."""
        key, device = (number, causes), self.devices[number]
        if key not in self._host_gaps:
            self._host_gaps[key] = intersect(device.host_gaps, device.timeline.host.intervals(*causes))
        return self._host_gaps[key]

    @cached_property
    def device_of_match(self) -> NDArray[np.int32]:
        """Index into ``devices`` of each device of the matches, or -1."""
        own = {(d.timeline.rank, d.timeline.device): number for number, d in enumerate(self.devices)}
        return np.array([own.get(place, -1) for place in self.across.matches.device_ids], np.int32)

    @cached_property
    def waits(self) -> list[Int64]:
        """For each collective of each device, the part of its exposed time that is wait for later ranks."""
        matches = self.across.matches
        waits = [np.zeros(len(exposures(device)), np.int64) for device in self.devices]
        if not len(matches):
            return waits
        wait = np.maximum(self.across.timing.wait_ns, 0)
        for own, members in zip(self.device_of_match.tolist(), matches.of_device, strict=True):
            if own >= 0:
                index = matches.index[members]
                device, start = self.devices[own], matches.start_ns[members]
                within = covered(device.exposed, start + wait[members]) - covered(device.exposed, start)
                waits[own][index] = np.minimum(within, device.shared_exposed()[index])
        return waits

    def unmatched_ns(self, kind: str) -> int:
        """Return the exposed time of incomplete collectives of a kind, over all devices."""
        found = (wait.by_kind.get(kind) for wait in self.across.exposed_waits)
        return sum(int(figures.unmatched_ns.sum()) for figures in found if figures)

    def waited_ns(self, kind: str, number: int, rows: Int64) -> int:
        """Return how long one of ``devices`` waited in exposed communication of a kind; *rows* are its collectives."""
        of_match = np.flatnonzero(self.device_of_match == number)
        if not len(of_match):
            return int(self.waits[number][rows].sum())
        figures = self.across.exposed_waits[int(of_match[0])].by_kind.get(kind)
        return int(figures.wait_ns.sum()) if figures else 0

    @cached_property
    def net_ns(self) -> Int64:
        """Per member of the matches, the exposed time without the wait for later ranks."""
        net = np.zeros(len(self.across.matches.device), np.int64)
        for own, members in zip(self.device_of_match.tolist(), self.across.matches.of_device, strict=True):
            if own >= 0:
                net[members] = (exposures(self.devices[own]) - self.waits[own])[self.across.matches.index[members]]
        return net

    def members(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each member of the matches whether its instance is selected."""
        return rows[self.across.matches.instance]

    def instances(self, device: int) -> Int64:
        """Return the instance of each collective of one of ``devices``, or -1."""
        found = np.full(len(exposures(self.devices[device])), -1, np.int64)
        for number in np.flatnonzero(self.device_of_match == device).tolist():
            members = self.across.matches.of_device[number]
            found[self.across.matches.index[members]] = self.across.matches.instance[members]
        return found

    def name(self, instance: int) -> str:
        """Return the name of an instance, or an empty string."""
        return self.across.names[instance] if 0 <= instance < len(self.across.names) else ""


def unprofiled_step_ns(metadata: Mapping[str, Any]) -> float | None:
    """Return how long a step takes without the profiler: the mean of the ranks' medians; None if not measured."""
    timed = [rank.get("unprofiled_ns") for rank in rank_entries(metadata)]
    try:
        medians = [float(median(np.array(times, np.float64))) for times in timed if times]
    except (TypeError, ValueError):  # edited by hand
        return None
    mean = sum(medians) / max(len(medians), 1)
    return mean if 0 < mean < np.inf else None


def exposures(device: DeviceFigures) -> Int64:
    """Return the exposed time of each of a device's collectives."""
    return device.exposed_ns[device.timeline.collective >= 0]


# Advice on exposed communication, depending on its origin and on the options the run already uses.

GRADIENTS = ("all_reduce", "reduce_scatter")
"""Kinds that reduce gradients."""
_MANY, _SMALL = 20, 1 << 20
"""More collectives per step than this, with smaller mean bytes than this, are gradients reduced one by one."""
_BEYOND = 2
"""Transfer of gradients over backward's compute above which overlap cannot solve it."""
_TAIL = 0.8
"""Share of the exposed time after backward that makes it a tail."""
_ANY = "Overlap it with independent compute, or send fewer bytes."
_CAP_BYTES = 25 << 20
"""DDP's default of bucket_cap_mb."""
_EXPANDING = ("cuMemMap", "cuMemUnmap", "cuMemCreate", "cuMemRelease", "cuMemSetAccess", "hipMemMap", "hipMemCreate")
"""Calls by which the allocator lets segments expand."""
_ALLOC_CONF = (2, 10)
"""First torch whose CUDA allocator takes its settings from PYTORCH_ALLOC_CONF; 2.9 knows the name and ignores it."""


def allocator_advice(metadata: Mapping[str, Any], call: str = "") -> str:
    """Return advice on allocations, with the variable that the recorded torch reads, or both where it is not known.

    Args:
        call: the call that takes the longest: of pinned memory of the host, or of segments that expand already.
    """
    if "Host" in call:
        return (
            "It is pinned memory of the host, which PyTorch keeps and reuses by size: pin buffers once before the "
            "loop, and copy each batch into them."
        )
    if call.startswith(_EXPANDING):
        return "Segments that expand are in use: leave memory headroom, and allocate once before the loop."
    version = re.match(r"(\d+)\.(\d+)", str(_mapping(metadata.get("versions")).get("torch")))
    new, old = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    if version is None:
        name, before = new, f" ({old} before torch {'.'.join(map(str, _ALLOC_CONF))})"
    else:
        name, before = new if tuple(map(int, version.groups())) >= _ALLOC_CONF else old, ""
    return f"Set {name}=expandable_segments:True{before}, leave memory headroom, and allocate once before the loop."


def exposed_advice(
    context: FindingContext, kind: str, tail: float, hidden: int, exposed: int, waited: int, count: float, size: float
) -> tuple[str, str]:
    """Return text and advice on the exposed time of a kind of collective.

    Args:
        tail: share of the exposed time after backward.
        hidden, exposed, waited: ns, over all steps; the last is that part of the exposed which is not transfer.
        count, size: number per step, and mean bytes.
    """
    last = "operator" if context.on_cpu else "kernel"
    where = f", {100 * tail:.0f} % of it after the last backward {last}" if tail else ""
    text = f"{kind}: {100 * exposed / (hidden + exposed):.0f} % of its time is exposed{where}."
    gradients = kind in GRADIENTS
    if gradients and count > _MANY and (0 < size < _SMALL or count > 5 * _MANY):
        bytes_each = f", {byte_size(size)} on average" if size else ""
        text += f" {count:.0f} per step{bytes_each}: each pays the latency."
        return text, _in_buckets(context)
    backward = sum(int(device.split.figures["backward_ns"].sum()) for device in context.devices)
    if gradients and tail >= _TAIL and hidden + exposed - waited > _BEYOND * backward:
        return text, _beyond_overlap(context, kind, backward / context.steps)
    if gradients and tail >= _TAIL and hidden < 0.05 * exposed:
        return text, _start_earlier(context)
    if gradients and tail >= _TAIL and not _ddp_may_be(context):
        return text, "Only the last message is exposed: send it in smaller parts as gradients become ready, or in bf16."
    if gradients and tail >= _TAIL:
        return text, "Only the last bucket is exposed: try a smaller bucket_cap_mb, or send fewer bytes (bf16)."
    if kind == "all_gather":
        return text, _for_gathers(context)
    if kind == "broadcast" and _ddp_may_be(context) and _mostly_in_forward(context, kind):
        return (
            text,
            "DistributedDataParallel broadcasts buffers in each step: set broadcast_buffers=False if not needed.",
        )
    if kind in COLLECTIVES and COLLECTIVES[kind].point_to_point and context.pipelines:
        return text, "In a pipeline, this is mostly waiting for another stage, not transfer: see the bubble."
    return text, _ANY


def _in_buckets(context: FindingContext) -> str:
    """Return advice on gradients that are reduced in many small messages."""
    if _is_ddp(context):
        return "Reduce more gradients at once: raise bucket_cap_mb (25 by default)."
    if _is_fsdp(context):
        return "Reduce more gradients at once: give fully_shard larger parts of the model."
    return "Reduce gradients in buckets, as DistributedDataParallel does (bucket_cap_mb=25)."


def _start_earlier(context: FindingContext) -> str:
    """Return advice on gradients of which none is sent during backward."""
    if _is_ddp(context):
        return "No bucket is sent during backward: set a smaller bucket_cap_mb, so that the first fill earlier."
    if _is_fsdp(context):
        return "Start it during backward: give fully_shard each block of the model, not the model alone."
    return "Start it during backward: use gradient hooks, DistributedDataParallel, or smaller buckets."


def _beyond_overlap(context: FindingContext, kind: str, backward_ns: float) -> str:
    """Return advice on gradients whose transfer takes much longer than backward computes."""
    matches, busbw = context.across.matches, context.across.timing.busbw
    known = (matches.kind == kind) & np.isfinite(busbw)
    largest = known & (matches.bytes == matches.bytes[known].max(initial=0))
    rate = f" (large messages reach {median(busbw[largest]) / 1e9:.2g} GB/s)" if largest.any() else ""
    return (
        f"Overlap can hide at most {duration(backward_ns)} a step, all of backward's compute. Compute more per step (a "
        "larger batch per GPU, gradient accumulation), send less (bf16 or compressed gradients), or use a faster "
        f"link{rate}."
    )


def _for_gathers(context: FindingContext) -> str:
    """Return advice on FSDP's all-gathers that the run does not follow already."""
    if not _is_fsdp(context):
        return _ANY
    options = _mapping(context.metadata.get("options"))
    todo = []
    if options.get("prefetch") != "explicit":
        todo.append("prefetch earlier (FSDP: set_modules_to_forward_prefetch)")
    if options.get("reshard_after_forward") != "no":
        todo.append("reshard less after forward")
    text = ", or ".join([*todo, "send fewer bytes (bf16)"][:2])
    return f"{text[0].upper()}{text[1:]}."


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_fsdp(context: FindingContext) -> bool:
    """Return whether fully_shard gathers parameters."""
    gathers = (c for device in context.devices for c in device.timeline.collectives if c.kind == "all_gather")
    return any(call.label.startswith("FSDP::") for call in gathers)


def _is_ddp(context: FindingContext) -> bool:
    """Return whether torch's DistributedDataParallel is known to train."""
    return bool(ddp_logging_data(context.metadata)) or any(device.timeline.uses_ddp for device in context.devices)


def _ddp_may_be(context: FindingContext) -> bool:
    """Return whether DDP is in use: its labels are in the trace, or dptrace's recorder saved its logging data."""
    if ddp_logging_data(context.metadata):
        return True
    return not context.metadata and any(device.timeline.uses_ddp for device in context.devices)


def _mostly_in_forward(context: FindingContext, kind: str) -> bool:
    """Return whether most of a kind was launched in forward, where DDP broadcasts buffers."""
    forward = whole = 0
    for device in context.devices:
        timeline = device.timeline
        comm = np.flatnonzero(timeline.collective >= 0)
        own = np.array([timeline.collectives[i].kind == kind for i in timeline.collective[comm].tolist()], np.bool_)
        forward += int((timeline.phase[comm][own] == Phase.FORWARD).sum())
        whole += int(own.sum())
    return 2 * forward > whole


def first_bucket_advice(context: FindingContext) -> str:
    """Return advice on a smaller first bucket, depending on how the run sets it."""
    if not _ddp_may_be(context):
        return "Make the first message smaller, so that it starts earlier."
    options = _mapping(context.metadata.get("options"))
    logged = ddp_logging_data(context.metadata).get("bucket_cap_bytes", 0)
    given = options.get("bucket_cap_mb", logged)
    if given in (None, _CAP_BYTES):
        return "Make the first bucket smaller: lower bucket_cap_mb."
    return "Make the first bucket smaller: leave bucket_cap_mb unset (DDP then starts with 1 MiB), or lower it."
