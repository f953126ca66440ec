"""Other links in a what-if: their latency, their bandwidth, links that are known by name, more ranks, fewer bytes."""

from __future__ import annotations

import msgspec

from dptrace.core.units import duration
from dptrace.errors import DptraceError, UsageError
from dptrace.model.collectives import ALGORITHMS
from dptrace.model.gpu_peaks import gpu_peak
from dptrace.model.interconnects import INTERCONNECTS
from dptrace.model.training.network import BETWEEN, WITHIN, Link
from dptrace.replay.graph.build import Model
from dptrace.replay.transforms.pricing import Floats, Priced, priced, sized, with_transfers

__all__ = ["DTYPE_BITS", "Compress", "Latency", "LinkBandwidth", "OtherLink", "WorldSize"]

DTYPE_BITS = {"fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits of a value in a compressed message, by the name of its type."""
_RECORDED_BITS = {"float": 32, "float32": 32, "double": 64, "float64": 64, "half": 16, "float16": 16, "bfloat16": 16}
_HOST_BYTES_PER_S = 10e9
"""What casting reads and writes where no GPU's memory bandwidth is known."""


class Latency(msgspec.Struct, frozen=True):
    """The latency of a link is another one, or a share of what it was; its bandwidth stays."""

    factor: float | None = None
    link_ns: float | None = None
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"latency {self.factor:g}×" if self.factor is not None else f"latency {duration(self.link_ns or 0)}"

    def apply(self, model: Model) -> Model:
        if self.factor is not None and self.factor != 1 and not _latency_known(model):
            raise DptraceError(
                f"{model.run.path}: the latency is not known, since its messages are not of several sizes. Give the "
                "latency of the link itself, for example --latency 5us."
            )
        return with_transfers(model, self._cost)

    def _cost(self, of: Priced) -> Floats:
        moving = of.duration_ns - of.latency_ns
        fixed = of.latency_ns * self.factor if self.factor is not None else of.hops * (self.link_ns or 0.0)
        return moving + fixed


def _latency_known(model: Model) -> bool:
    return bool(priced(model).latency_ns.any())


class LinkBandwidth(msgspec.Struct, frozen=True):
    """Links move this many bytes per second in one direction; the latency of a collective stays."""

    bytes_per_s: float
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"bandwidth {self.bytes_per_s / 1e9:g} GB/s"

    def apply(self, model: Model) -> Model:
        sized(model, "--bandwidth in GB/s")
        return with_transfers(model, lambda of: of.latency_ns + of.share * of.bytes / self.bytes_per_s * 1e9)


class OtherLink(msgspec.Struct, frozen=True):
    """Every collective goes over links of this kind, by the formula of its algorithm."""

    link: Link
    measured: bool = False
    """Whether it was measured; the nominal bandwidth of others is reduced to what collectives reach."""
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"link {self.link.name}"

    def apply(self, model: Model) -> Model:
        sized(model, "--link")
        rate = self.link.bytes_per_s * (1.0 if self.measured else _reached(self.link.name))
        return with_transfers(model, lambda of: 1e9 * (of.hops * self.link.alpha_s + of.share * of.bytes / rate))

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return why the answer may be wrong."""
        if self.measured:
            return ()
        reached = _reached(self.link.name)
        rate = f"{self.link.bytes_per_s / 1e9:g} GB/s"
        return (f"The link is nominal: collectives are taken to reach {reached:.0%} of {rate}.",)


def _reached(name: str) -> float:
    """Return the share of the nominal bandwidth that collectives reach; all of it on links that a user described."""
    medium = next((known.medium for known in INTERCONNECTS if known.name == name), None)
    return {None: 1.0, "network": BETWEEN}.get(medium, WITHIN)


class WorldSize(msgspec.Struct, frozen=True):
    """The job has another number of ranks, each with the batch that it had; links stay."""

    ranks: int
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"{self.ranks} ranks"

    def apply(self, model: Model) -> Model:
        recorded = self._recorded(model)

        def cost(of: Priced) -> Floats:
            ring = ALGORITHMS["ring all-reduce"]
            moving = (of.duration_ns - of.latency_ns) * ring.share(self.ranks) / ring.share(recorded)
            hops = {
                name: ALGORITHMS[name].hops(self.ranks) for name in ("ring all-reduce", "halving-doubling all-reduce")
            }
            # Both move the same bytes; the libraries take the one with the fewer hops for many ranks.
            return moving + of.latency_ns * min(hops.values()) / ring.hops(recorded)

        return with_transfers(model, cost)

    def _recorded(self, model: Model) -> int:
        transfers, size = model.transfers, model.run.world_size
        if size < 2:
            raise DptraceError(
                f"{model.run.path}: --world-size scales recorded collectives, and a run of one rank has none. Record "
                "two ranks, or describe the training to dptrace predict."
            )
        if others := sorted({str(kind) for kind in transfers.kind.tolist()} - {"all_reduce", "barrier"}):
            raise DptraceError(
                f"{model.run.path}: --world-size is for data parallelism with all-reduces, and the run also has "
                f"{', '.join(others)}. dptrace predict knows other strategies."
            )
        return size

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return why the answer may be wrong."""
        found = []
        if self.ranks > model.run.world_size:
            found.append(
                "More ranks are taken to be as fast and as even as those recorded, over links like theirs: waits for "
                "the slowest of many, and slower links between nodes, are left out. Add --link for those."
            )
        return tuple(found)


class Compress(msgspec.Struct, frozen=True):
    """All-reduces, all-gathers and reduce-scatters of floating point move values of another type."""

    dtype: str
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"messages in {self.dtype}"

    def apply(self, model: Model) -> Model:
        if self.dtype not in DTYPE_BITS:
            raise UsageError(f"--compress {self.dtype}: choose from {', '.join(DTYPE_BITS)}.")
        sized(model, "--compress")
        bits = self._bits(model)
        factor = min(1.0, DTYPE_BITS[self.dtype] / bits)
        rate = _memory_bytes_per_s(model)

        def cost(of: Priced) -> Floats:
            # Before and after, a kernel reads the values in one type and writes them in the other.
            casts = 0.0 if factor == 1 else 2 * (1 + factor) * of.bytes / rate * 1e9
            return of.latency_ns + (of.duration_ns - of.latency_ns) * factor + casts

        return with_transfers(model, cost)

    def _bits(self, model: Model) -> int:
        names = {what.dtype.lower() for what in model.run.cross_rank.matches.collectives if what.dtype}
        known = {_RECORDED_BITS[name] for name in names if name in _RECORDED_BITS}
        return max(known, default=32)

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return what the answer takes for granted."""
        rate = _memory_bytes_per_s(model) / 1e9
        text = f"Casts are counted with each message, at {rate:,.0f} GB/s of memory"
        sums = ". Sums in so few bits need a scale of their own" if DTYPE_BITS[self.dtype] < 16 else ""
        return (f"{text}{sums}. What it does to the training, a trace does not tell.",)


def _memory_bytes_per_s(model: Model) -> float:
    gpu = model.run.timelines[0].gpu
    peak = None if gpu is None else gpu_peak(gpu)
    return _HOST_BYTES_PER_S if peak is None else peak.bytes_per_s
