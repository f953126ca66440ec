"""The changes of a run that options of a what-if ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptrace.errors import UsageError
from dptrace.model.training.communication import Link, parse_link
from dptrace.replay.options import SPEEDUP, Options, check, parse_bandwidth, parse_rate
from dptrace.replay.transforms.change import (
    Bandwidth,
    Change,
    Compute,
    Kernel,
    NoHostDelay,
    PerfectOverlap,
    Straggler,
)
from dptrace.replay.transforms.launches import Accumulate, CudaGraphs, Fuse, NoRecompute
from dptrace.replay.transforms.links import (
    Communication,
    LinkBandwidth,
    LinkChange,
    OtherLink,
    WorldSize,
    parse_compress,
    parse_latency,
)
from dptrace.replay.transforms.schedule import MIB, Reschedule
from dptrace.replay.transforms.stragglers import NoStraggler

if TYPE_CHECKING:
    from typing_extensions import Unpack


def changes_of(**options: Unpack[Options]) -> tuple[Change, ...]:
    """Return the changes in the order in which they apply; see :func:`dptrace.whatif` for the options.

    Raises:
        TypeError: there is no such option.
        UsageError: a value is out of range, a pattern is no regular expression, or two options contradict each other.
    """
    check(options)
    # What levels or removes comes first, so that what is added after it stays.
    changes: list[Change] = [NoStraggler()] if options.get("no_straggler") else []
    changes += [NoHostDelay()] if options.get("no_host_delay") else []
    changes += [NoRecompute()] if options.get("no_recompute") else []
    if (pattern := options.get("fuse")) is not None:
        changes.append(Fuse(pattern))
    changes += [CudaGraphs()] if options.get("cuda_graphs") else []
    if (speedup := options.get("compute")) is not None:
        changes.append(Compute(speedup))
    changes += [Kernel(pattern, share) for pattern, share in (options.get("kernels") or {}).items()]
    changes += _communication(options)
    changes += [PerfectOverlap()] if options.get("perfect_overlap") else []
    return (*changes, *(Straggler(rank, late_ns) for rank, late_ns in (options.get("straggler") or {}).items()))


def _communication(options: Options) -> list[Change]:
    """Return the changes of communication: links first, then messages, then when they are sent."""
    bandwidth, latency, link = options.get("bandwidth"), options.get("latency"), options.get("link")
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth)
    is_rate = isinstance(bandwidth, str)
    if link is not None and (latency is not None or is_rate):
        raise UsageError("--link sets latency and bandwidth: give it alone, or as LATENCY:BANDWIDTH (5us:12.5GB/s).")
    parts: list[LinkChange] = []
    changes: list[Change] = []
    if ranks := options.get("world_size"):
        parts.append(WorldSize(ranks))
    if link is not None:
        parts.append(OtherLink(link, measured=True) if isinstance(link, Link) else OtherLink(parse_link(link)))
    if isinstance(bandwidth, str):
        parts.append(LinkBandwidth(parse_rate(bandwidth)))
    elif bandwidth is not None:
        SPEEDUP.check(bandwidth, "--bandwidth")
        changes.append(Bandwidth(bandwidth))
    if latency is not None:
        parts.append(parse_latency(latency))
    if (compress := options.get("compress")) is not None:
        parts.append(parse_compress(compress))
    changes += [Communication(tuple(parts))] if parts else []
    changes += _schedule(options.get("schedule"), options.get("bucket_cap_mb"))
    micro_steps = options.get("accumulate")
    return [*changes, *([Accumulate(micro_steps)] if micro_steps else [])]


def _schedule(schedule: str | None, cap_mb: float | None) -> list[Change]:
    if cap_mb is None:
        return [] if schedule is None else [Reschedule(schedule)]
    if schedule in ("naive", "interleaved"):
        raise UsageError(
            f"--bucket-cap-mb is for DDP's buckets, and --schedule {schedule} reduces each gradient alone."
        )
    return [Reschedule(schedule or "ddp", max(1, round(cap_mb * MIB)))]
