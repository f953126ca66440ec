"""Other links in a what-if: their latency, their bandwidth, links that are known by name, more ranks, fewer bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, median, unique
from dptrace.core.numbers import Number
from dptrace.core.units import duration
from dptrace.errors import DptraceError, UsageError
from dptrace.model.alpha_beta import MIN_SIZE_RATIO, Line, weighted_line
from dptrace.model.collectives import ALGORITHMS, COLLECTIVES, Algorithm, algorithm_of
from dptrace.model.gpu_peaks import INTERCONNECTS, gpu_peak
from dptrace.model.training.communication import BETWEEN, WITHIN, Link
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.options import NUMBER, TIMES
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.change import Change, no_collectives
from dptrace.run.run import Run

# What each transfer of a run costs: its latency and its bytes, by the lines fitted to the run's transfers.


Floats = NDArray[np.float64]
_MIN_R2 = 0.2
"""A line that explains less says nothing about the latency: all of the time then counts as transfer."""

_SLOWEST_HOP = 2.0
"""A hop has this much more than the shortest time of a collective's hop at most."""


class TransferCosts(Columns, frozen=True):
    """The transfers that take time, one entry per transfer in each column."""

    task: Int64
    latency_ns: Floats
    """What part of its time does not depend on its bytes; 0 where the sizes of the run do not show it."""
    moving_ns: Floats
    """The rest of its time."""
    bytes: Floats
    hops: Floats
    share: Floats
    """Of the algorithm that it presumably uses: how often it pays a link's latency, and moves its bytes over a link."""


def transfer_costs(model: Model) -> TransferCosts:
    """Price the transfers of a model.

    Raises:
        DptraceError: the run has no collectives.
    """
    graph, transfers = model.graph, model.transfers
    # Where each rank leaves on its own, the meeting before takes no time.
    number = unique(transfers.instance)
    if not len(number):
        raise no_collectives(model)
    task = transfers.task[number]
    latency, hops, share = (np.zeros(len(number)) for _ in range(3))
    lines = {(fit.kind, fit.group): fit for fit in model.run.cross_rank.fits}
    groups = model.run.cross_rank.matches.groups
    for kind, group in set(zip(transfers.kind[number].tolist(), transfers.group[number].tolist(), strict=True)):
        same = (transfers.kind[number] == kind) & (transfers.group[number] == group)
        fit = lines.get((kind, group))
        if fit is not None and fit.alpha_s and (fit.r2 or 0.0) >= _MIN_R2:
            latency[same] = fit.alpha_s * 1e9
        ranks = fit.ranks if fit is not None else max(2, groups[group].size)
        algorithm = _algorithm(model, kind)
        hops[same] = algorithm.hops(ranks) if algorithm else 1.0
        share[same] = algorithm.share(ranks) if algorithm else 1.0
    durations = graph.duration_ns[task].astype(np.float64)
    fixed = np.minimum(latency, durations)
    return TransferCosts(task, fixed, durations - fixed, transfers.bytes[number].astype(np.float64), hops, share)


def _algorithm(model: Model, kind: str) -> Algorithm | None:
    known = kind in COLLECTIVES and COLLECTIVES[kind].algorithm
    return algorithm_of("gloo" if model.run.on_cpu else "nccl", kind) if known else None


def with_transfers(model: Model, of: TransferCosts) -> Model:
    """Return the model with other durations of its transfers."""
    durations = model.graph.duration_ns.copy()
    durations[of.task] = np.maximum(np.rint(of.latency_ns + of.moving_ns), 0).astype(np.int64)
    return with_times(model, durations)


def all_reduce_line(model: Model) -> Line:
    """Fit the line of the model's all-reduces; without latency where they have one size only.

    Raises:
        DptraceError: the run has no all-reduces with known sizes.
    """
    of, transfers = transfer_costs(model), model.transfers
    kinds = dict(zip(transfers.task.tolist(), transfers.kind.tolist(), strict=True))
    reduces = np.array([kinds[task] == "all_reduce" for task in of.task.tolist()], np.bool_)
    duration_ns = of.latency_ns + of.moving_ns
    reduces &= (of.bytes > 0) & (duration_ns > 0)
    if not reduces.any():
        raise no_sized_all_reduce(model.run)
    size, seconds = of.bytes[reduces].astype(np.int64), duration_ns[reduces] / 1e9
    sizes, which, count = np.unique(size, return_inverse=True, return_counts=True)
    # Small messages decide the latency, large ones the bandwidth: both count by their relative error.
    typical = np.array([median(seconds[which == i]) for i in range(len(sizes))])
    if sizes[-1] < MIN_SIZE_RATIO * sizes[0]:
        return Line(0.0, float(seconds.sum() / size.sum()))
    line = weighted_line(sizes, typical, np.sqrt(count) / typical)
    # No message is much faster than its latency. Waits for ranks that were not recorded would look like latency.
    timed = (of.bytes > 0) & (duration_ns > 0) & (of.hops > 0)
    if not timed.any():
        return line  # of groups of one rank
    hop_s = float((duration_ns[timed] / of.hops[timed]).min()) / 1e9
    most = _SLOWEST_HOP * hop_s * float(of.hops[reduces].min())
    if line.alpha_s <= most:
        return line
    weight = count / typical**2
    return Line(most, max(0.0, float((weight * sizes * (typical - most)).sum() / (weight * sizes**2.0).sum())))


def no_sized_all_reduce(run: Run) -> DptraceError:
    """Return the error about other messages in a run whose all-reduces don't show what a message of a size takes."""
    sized = sorted({one.kind for timeline in run.timelines for one in timeline.collectives if one.bytes})
    if sized and "all_reduce" not in sized:
        text = f"no all-reduce, only {', '.join(sized)}: buckets are predicted for gradients that are all-reduced"
        return DptraceError(f"{run.path}: {text}.")
    return DptraceError(
        f"{run.path}: no all-reduce with a known size, so messages of other sizes can't be predicted. Record "
        "two ranks or more, with a torch that writes the sizes of collectives."
    )


def has_known_size(model: Model, of: TransferCosts, option: str) -> NDArray[np.bool_]:
    """Return which transfers have known sizes; the others keep what they took.

    Raises:
        DptraceError: none has.
    """
    known: NDArray[np.bool_] = of.bytes > 0
    if not known.any():
        raise DptraceError(
            f"{model.run.path}: {option} needs the sizes of messages, and the trace has none. Record with a torch that "
            "writes them (2.1 or later), without --light."
        )
    return known


DTYPE_BITS = {"fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits of a value in a compressed message, by the name of its type."""
_RECORDED_BITS = {
    **dict.fromkeys(("double", "float64"), 64),
    **dict.fromkeys(("float", "float32"), 32),
    **dict.fromkeys(("half", "float16", "bfloat16", "c10::half", "c10::bfloat16"), 16),
}
_HOST_BYTES_PER_S = 10e9
"""What casting reads and writes where no GPU's memory bandwidth is known."""


class LinkChange(Change, frozen=True):
    """A change of what transfers cost, made by :class:`Communication`."""

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        """Return the transfers at other costs.

        Raises:
            DptraceError: the run does not show what they cost.
        """
        raise NotImplementedError


class Communication(Change, frozen=True):
    """Transfers cost something else; each part builds on the costs that the part before it leaves."""

    parts: tuple[LinkChange, ...]
    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def describe(self) -> str:
        return ", ".join(part.describe() for part in self.parts)

    def apply(self, model: Model) -> Model:
        of = transfer_costs(model)
        for part in self.parts:
            of = part.change(model, of)
        return with_transfers(model, of)

    def doubts(self, model: Model) -> tuple[str, ...]:
        found = [text for part in self.parts for text in part.doubts(model)]
        of = transfer_costs(model)
        if unknown := int((of.bytes <= 0).sum()):
            found.append(
                f"{unknown:,} of {len(of):,} transfers have no recorded size: a factor applies to all of their time, "
                "and a latency or rate of links does not change them."
            )
        return tuple(found)


class Latency(LinkChange, frozen=True):
    """The latency of a link is another one, or a share of what it was; its bandwidth stays."""

    factor: float | None = None
    link_ns: float | None = None

    def describe(self) -> str:
        return f"latency {self.factor:g}×" if self.factor is not None else f"latency {duration(self.link_ns or 0)}"

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        if self.factor is not None and self.factor != 1 and not of.latency_ns.any():
            raise DptraceError(
                f"{model.run.path}: the latency is not known, since its messages are not of several sizes. Give the "
                "latency of the link itself, for example --latency 5us."
            )
        fixed = of.latency_ns * self.factor if self.factor is not None else of.hops * (self.link_ns or 0.0)
        return replace(of, latency_ns=fixed)


class LinkBandwidth(LinkChange, frozen=True):
    """Links move this many bytes per second in one direction; the latency of a collective stays."""

    bytes_per_s: float

    def describe(self) -> str:
        return f"bandwidth {self.bytes_per_s / 1e9:g} GB/s"

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        known = has_known_size(model, of, "--bandwidth in GB/s")
        return replace(of, moving_ns=np.where(known, of.share * of.bytes / self.bytes_per_s * 1e9, of.moving_ns))


class OtherLink(LinkChange, frozen=True):
    """Every collective goes over links of this kind, by the formula of its algorithm."""

    link: Link
    measured: bool = False
    """Whether it was measured; the nominal bandwidth of others is reduced to what collectives reach."""

    def describe(self) -> str:
        return f"link {self.link.name}"

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        known = has_known_size(model, of, "--link")
        rate = self.link.bytes_per_s * (1.0 if self.measured else _reached(self.link.name))
        return replace(
            of,
            latency_ns=np.where(known, 1e9 * of.hops * self.link.alpha_s, of.latency_ns),
            moving_ns=np.where(known, 1e9 * of.share * of.bytes / rate, of.moving_ns),
        )

    def doubts(self, model: Model) -> tuple[str, ...]:
        if self.measured:
            return ()
        reached = _reached(self.link.name)
        rate = f"{self.link.bytes_per_s / 1e9:g} GB/s"
        return (f"The link is nominal: collectives are assumed to reach {reached:.0%} of {rate}.",)


def _reached(name: str) -> float:
    """Return the share of the nominal bandwidth that collectives reach; all of it on links that a user described."""
    medium = next((known.medium for known in INTERCONNECTS if known.name == name), None)
    return {None: 1.0, "network": BETWEEN}.get(medium, WITHIN)


def all_reduce_costs(ranks: int) -> tuple[float, float]:
    """Return how often an all-reduce pays a link's latency, and how often it moves its bytes over a link.

    A ring and halving-doubling move the same bytes; for many ranks the libraries take the one with fewer hops.
    """
    ring, halving = ALGORITHMS["ring all-reduce"], ALGORITHMS["halving-doubling all-reduce"]
    return min(ring.hops(ranks), halving.hops(ranks)), ring.share(ranks)


class WorldSize(LinkChange, frozen=True):
    """The job has another number of ranks, each with the batch that it had; links stay."""

    ranks: int

    def describe(self) -> str:
        return f"{self.ranks} ranks"

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        ring, recorded = ALGORITHMS["ring all-reduce"], self._recorded(model)
        hops, share = all_reduce_costs(self.ranks)
        return replace(
            of,
            latency_ns=of.latency_ns * hops / ring.hops(recorded),
            moving_ns=of.moving_ns * share / ring.share(recorded),
            hops=np.full(len(of), hops),
            share=np.full(len(of), share),
        )

    def _recorded(self, model: Model) -> int:
        transfers, size = model.transfers, model.run.world_size
        if size < 2:
            raise DptraceError(
                f"{model.run.path}: --world-size scales recorded collectives, and a run of one rank has none. Record "
                "two ranks, or describe the training to dptrace predict."
            )
        if others := sorted({str(kind) for kind in transfers.kind.tolist()} - {"all_reduce", "barrier", "broadcast"}):
            raise DptraceError(
                f"{model.run.path}: --world-size is for data parallelism with all-reduces, and the run also has "
                f"{', '.join(others)}. dptrace predict knows other strategies."
            )
        return size

    def doubts(self, model: Model) -> tuple[str, ...]:
        if self.ranks <= model.run.world_size:
            return ()
        text = (
            "More ranks are assumed to be as fast and as even as those recorded, over links like theirs: waits for "
            "the slowest of many, and slower links between nodes, are left out. Add --link for those."
        )
        return (text,)


class Compress(LinkChange, frozen=True):
    """Messages of floating point move values of another type."""

    dtypes: dict[str, str]
    """Type by kind of collective, as the trace names it (``all_to_all``); that of all others by an empty name."""

    def describe(self) -> str:
        return ", ".join(f"{kind or 'messages'} in {dtype}" for kind, dtype in self.dtypes.items())

    def change(self, model: Model, of: TransferCosts) -> TransferCosts:
        factor, rate = self._factors(model, of), memory_bytes_per_s(model)
        # Before and after, a kernel reads the values in one type and writes them in the other.
        casts = np.where(factor == 1, 0.0, 2 * (1 + factor) * np.maximum(of.bytes, 0) / rate * 1e9)
        return replace(of, moving_ns=of.moving_ns * factor + casts, bytes=of.bytes * factor)

    def _factors(self, model: Model, of: TransferCosts) -> Floats:
        """Return the share of its bytes that each transfer still moves.

        Raises:
            DptraceError: the run has no collectives of a kind.
        """
        transfers = model.transfers
        # Tasks are numbered in the order of the transfers.
        place = of.task - int(transfers.task[0])
        kinds, dtypes = transfers.kind[place].tolist(), transfers.dtype[place].tolist()
        if absent := sorted(set(self.dtypes) - {"", *kinds}):
            known = ", ".join(sorted(set(map(str, kinds))))
            raise DptraceError(f"{model.run.path}: the run has no {absent[0]}, but {known}.")
        usual = _usual_bits(dtypes)
        bits = np.array([_bits(dtype, usual) for dtype in dtypes], np.float64)
        wanted = [self.dtypes.get(kind, self.dtypes.get("")) for kind in kinds]
        target = np.array([DTYPE_BITS[dtype] if dtype else np.inf for dtype in wanted])
        return np.where(bits > 0, np.minimum(1.0, target / np.maximum(bits, 1)), 1.0)

    def doubts(self, model: Model) -> tuple[str, ...]:
        rate = memory_bytes_per_s(model) / 1e9
        text = f"Casts are counted with each message, at {rate:,.0f} GB/s of memory"
        fewest = min(DTYPE_BITS[dtype] for dtype in self.dtypes.values())
        sums = ". Sums in so few bits need their own scale" if fewest < 16 else ""
        found = [f"{text}{sums}. A trace does not show how it affects the training."]
        dtypes = model.transfers.dtype.tolist()
        if unnamed := sum(not dtype for dtype in dtypes):
            bits = _usual_bits(dtypes)
            found.append(
                f"The trace does not name the type of {unnamed:,} transfers, which are assumed to have {bits} bits."
            )
        return tuple(found)


_LATENCY_NS, _SHARE_OF_LATENCY = Number(0, 1e9), Number(0, 1e6)


def parse_latency(text: str) -> Latency:
    """Parse ``0.5x`` of the recorded latency, or ``5us`` of one link.

    Raises:
        UsageError: the text is neither.
    """
    if match := re.fullmatch(rf"\s*{NUMBER}\s*[x×]\s*", text):
        factor = float(match[1])
        _SHARE_OF_LATENCY.check(factor, f"--latency {text.strip()}: factor")
        return Latency(factor=factor)
    if match := re.fullmatch(rf"\s*{NUMBER}\s*({'|'.join(TIMES)})\s*", text):
        link_ns = float(match[1]) * TIMES[match[2]]
        _LATENCY_NS.check(link_ns, f"--latency {text.strip()}: nanoseconds")
        return Latency(link_ns=link_ns)
    raise UsageError(f"--latency {text}: expected a factor or a time, for example 0.5x or 5us.")


def parse_compress(text: str) -> Compress:
    """Parse ``fp16``, for all messages, or ``all_to_all=fp16,all_reduce=bf16``.

    Raises:
        UsageError: a type is not known, or a kind is given twice.
    """
    dtypes: dict[str, str] = {}
    for part in text.split(","):
        kind, _, dtype = part.strip().rpartition("=")
        kind = kind.strip().replace("-", "_")
        if dtype.strip() not in DTYPE_BITS:
            known = ", ".join(DTYPE_BITS)
            raise UsageError(f"--compress {text}: choose from {known}; for one kind of collective, all_to_all=fp16.")
        if kind in dtypes:
            raise UsageError(f"--compress {text}: give one type for {kind or 'all messages'}.")
        dtypes[kind] = dtype.strip()
    return Compress(dtypes)


def _usual_bits(dtypes: Sequence[str]) -> int:
    """Return the bits of the widest floating point type that the run's messages have; 32 where none is named."""
    return max((_bits(dtype, 0) for dtype in set(dtypes) if dtype), default=0) or 32


def _bits(dtype: str, usual: int) -> int:
    """Return the bits of a floating point type; 0 of another one, *usual* where it is not named."""
    return _RECORDED_BITS.get(dtype.lower(), 0) if dtype else usual


def memory_bytes_per_s(model: Model) -> float:
    """Return the memory bandwidth of the run's devices; of what is not known, a usual one of hosts."""
    gpu = model.run.timelines[0].gpu
    peak = None if gpu is None else gpu_peak(gpu)
    return _HOST_BYTES_PER_S if peak is None else peak.bytes_per_s


# DDP's copies: each gradient into its bucket before the all-reduce, and back after it.
#
# They are kernels or operators of their own (``mul_out``, ``copy_bucket_to_grad``), unless gradients are views of
# the buckets (``gradient_as_bucket_view``). Each reads and writes all bytes of the gradients once.

_GPU_BYTES_PER_S = 0.9e12
"""Memory bandwidth of a GPU that is not known: a V100's."""
_COPIES = ("reducer::mul_out", "reducer::copy_bucket_to_grad")
_HOOK = "torch::autograd::AccumulateGrad"
"""On a GPU, the copy into a bucket is what DDP's hook launches."""


def uses_ddp(model: Model) -> bool:
    """Return whether the recorded run reduces gradients in DDP's buckets."""
    return any(timeline.uses_ddp for timeline in model.run.timelines)


def copy_tasks(model: Model) -> NDArray[np.bool_]:
    """Return which tasks copy gradients into DDP's buckets or back."""
    names = model.graph.names
    known = _COPIES if model.run.on_cpu else (*_COPIES, _HOOK)
    matches = np.fromiter((name.endswith(known) for name in names), np.bool_, len(names))
    chosen = np.append(matches, False)[model.graph.operator]
    chosen &= model.graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)
    return chosen if uses_ddp(model) else np.zeros_like(chosen)


def copy_ns(model: Model, sizes: Int64) -> Int64:
    """Return what copying gradients of these bytes takes: read and written once, at the memory's bandwidth.

    Zero for a run of DDP: it has its copies, or buckets that need none.
    """
    if uses_ddp(model):
        return np.zeros(len(sizes), np.int64)
    first = model.run.timelines[0]
    unknown = not first.on_cpu and (first.gpu is None or gpu_peak(first.gpu) is None)
    rate = _GPU_BYTES_PER_S if unknown else memory_bytes_per_s(model)
    nanoseconds: Int64 = np.rint(2e9 * sizes / rate).astype(np.int64)
    return nanoseconds
