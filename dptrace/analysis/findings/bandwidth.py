"""Large messages that are slower than the links allow, or than comparable messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.alpha_beta import AlphaBeta
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64, median, unique
from dptrace.core.units import byte_size, duration

__all__ = ["compared_messages", "low_bandwidth", "slow_collectives"]

_LARGE = 16_000_000
"""Bytes of a large message if the crossover is unknown."""
_ABOVE = 4
"""Multiple of the crossover, if known: latency is at most a fifth of such a message's time."""
_REACHED = 0.8
"""Share of the links' bandwidth that collectives of a well-configured job reach."""
_HALF = 0.5
_FEWEST = 3


def _advice(context: FindingContext) -> str:
    """Return what to look at first, by the backend."""
    how = "GLOO_SOCKET_IFNAME" if context.on_cpu else "nvidia-smi topo -m; NCCL_DEBUG=INFO shows the transport"
    return f"Check how these ranks are connected ({how}), and whether other communication runs at the same time."


def low_bandwidth(context: FindingContext) -> list[Finding]:
    """Compare large messages with the measured bandwidth of the links, or groups with each other."""
    if context.timing is None:
        return []
    large = _large(context.matches, context.fits, context.timing)
    return _against_link(context, large) if _link(context.metadata) else _against_each_other(context, large)


def _link(metadata: Mapping[str, Any], kind: str = "") -> float:
    """Return the measured bandwidth of the links in bytes per second; 0 if unknown.

    Of this kind of collective if ``dptrace links`` measured it, otherwise of all kinds.
    """
    links = metadata.get("links")
    by_kind = links.get("busbw_gbps_by_kind") if isinstance(links, Mapping) else None
    rate = by_kind.get(kind) if isinstance(by_kind, Mapping) else None
    if rate is None:
        rate = links.get("busbw_gbps") if isinstance(links, Mapping) else None
    return float(rate) * 1e9 if isinstance(rate, int | float) and rate > 0 else 0.0


def compared_messages(
    evidence: Mapping[str, Any],
    matches: Matches,
    fits: Sequence[AlphaBeta],
    timing: Timing,
    metadata: Mapping[str, Any],
) -> Int64:
    """Return the matched collectives that a finding on low bandwidth is about, by its evidence."""
    rows = _large(matches, fits, timing) & (matches.kind == evidence["collective"])
    if _link(metadata):
        return np.flatnonzero(rows & _one_machine(metadata, matches)[matches.group])
    own = np.array([group.name == evidence["group"] for group in matches.groups] + [False], np.bool_)
    return np.flatnonzero(rows & own[matches.group] & (timing.busbw < evidence["reference_gbps"] * 1e9))


def _large(matches: Matches, fits: Sequence[AlphaBeta], timing: Timing) -> NDArray[np.bool_]:
    least = np.full(len(matches), float(_LARGE))
    for fit in fits:
        if fit.crossover_bytes:
            of_fit = (matches.kind == fit.kind) & (matches.group == fit.group)
            least[of_fit] = min(_ABOVE * fit.crossover_bytes, _LARGE)
    known = matches.complete & (matches.size > 1) & (matches.step != "") & np.isfinite(timing.busbw)
    large: NDArray[np.bool_] = known & (matches.bytes >= least)
    return large


def _lost(context: FindingContext, rows: NDArray[np.bool_], rate: float) -> float:
    """Return by how much the exposed time of the members would shrink at *rate*, in ns over all of them."""
    assert context.timing is not None
    members = context.members(rows)
    instance = context.matches.instance[members]
    gain = context.timing.transfer_ns[instance] * (1 - np.minimum(context.timing.busbw[instance] / rate, 1))
    return float(np.minimum(context.net_ns[members], gain).sum())


def _one_machine(metadata: Mapping[str, Any], matches: Matches) -> NDArray[np.bool_]:
    """Return for each group whether all its ranks are on one machine, and so use its links."""
    ranks = [entry for entry in metadata.get("ranks") or [] if isinstance(entry, Mapping) and "rank" in entry]
    node: dict[int, object] = {entry["rank"]: entry.get("node") for entry in ranks}
    nodes = [{node.get(rank) for rank in group.ranks or tuple(node)} for group in matches.groups]
    return np.array([len(found) <= 1 for found in nodes], np.bool_)


def _against_link(context: FindingContext, large: NDArray[np.bool_]) -> list[Finding]:
    assert context.timing is not None
    matches, found = context.matches, []
    inside = large & _one_machine(context.metadata, matches)[matches.group] if len(matches) else large
    for kind in sorted(set(matches.kind[inside].tolist())):
        rows, link = inside & (matches.kind == kind), _link(context.metadata, str(kind))
        middle = float(median(context.timing.busbw[rows]))
        if middle >= _REACHED * link:
            continue
        text = (
            f"{kind} of large messages ({byte_size(float(median(matches.bytes[rows])))}) reaches "
            f"{100 * middle / link:.0f} % of the {link / 1e9:.3g} GB/s measured on this machine's links."
        )
        evidence = _where(context, rows, middle, link)
        found.append(context.finding("low_bandwidth", text, _advice(context), _lost(context, rows, link), evidence))
    return found


def _against_each_other(context: FindingContext, large: NDArray[np.bool_]) -> list[Finding]:
    """Compare groups that have messages of the same kind, number of ranks and similar size."""
    assert context.timing is not None
    matches, busbw, found = context.matches, context.timing.busbw, []
    places = np.flatnonzero(large)
    doublings = np.log2(np.maximum(matches.bytes[places], 1)).astype(int).tolist()
    comparable: dict[tuple[str, int, int], list[int]] = {}
    for place, doubling in zip(places.tolist(), doublings, strict=True):
        comparable.setdefault((str(matches.kind[place]), int(matches.size[place]), doubling), []).append(place)
    for (kind, _, _), rows in comparable.items():
        groups = {int(g): [r for r in rows if matches.group[r] == g] for g in unique(matches.group[rows])}
        middles = {g: float(median(busbw[own])) for g, own in groups.items() if len(own) >= _FEWEST}
        if len(middles) < 2:
            continue
        slowest = min(middles, key=lambda g: middles[g])
        others = float(median([middle for g, middle in middles.items() if g != slowest]))
        if middles[slowest] >= _HALF * others:
            continue
        chosen = np.zeros(len(matches), np.bool_)
        chosen[groups[slowest]] = True
        group = matches.groups[slowest]
        who = f"ranks {', '.join(map(str, group.ranks))}" if group.ranks else f"group {group.name}"
        text = (
            f"{kind} among {who} reaches {middles[slowest] / 1e9:.1f} GB/s, "
            f"{100 * middles[slowest] / others:.0f} % of other groups of the same size with similar messages."
        )
        evidence = _where(context, chosen, middles[slowest], others)
        found.append(context.finding("low_bandwidth", text, _advice(context), _lost(context, chosen, others), evidence))
    return found


def _where(context: FindingContext, rows: NDArray[np.bool_], busbw: float, reference: float) -> dict[str, Any]:
    assert context.timing is not None
    matches = context.matches
    worst = int(np.flatnonzero(rows)[np.argmin(context.timing.busbw[rows])])
    evidence = {"collective": str(matches.kind[worst]), "group": matches.groups[matches.group[worst]].name}
    evidence |= {"busbw_gbps": round(busbw / 1e9, 3), "reference_gbps": round(reference / 1e9, 3)}
    evidence |= {"count": int(rows.sum())}
    return evidence | {"step": matches.step[worst] or None, "instance": worst, "bytes": int(matches.bytes[worst])}


def slow_collectives(context: FindingContext) -> list[Finding]:
    """Find single collectives with a far longer transfer than comparable ones."""
    cost, slow, count = 0.0, 0, 0
    worst, excess = None, 0.0
    for latency in context.latencies:
        # A stage without work waits in its messages: this belongs to the schedule.
        if not latency.slow.any() or (latency.kind == "send_recv" and context.pipelines):
            continue
        middle = float(median(latency.transfer_ns))
        for row, transfer in zip(latency.instances[latency.slow], latency.transfer_ns[latency.slow], strict=True):
            members = slice(int(context.matches.first[row]), int(context.matches.first[row + 1]))
            cost += float(np.minimum(context.net_ns[members], transfer - middle).sum())
            if transfer - middle > excess:
                worst, excess = (latency, int(row)), float(transfer) - middle
        slow, count = slow + int(latency.slow.sum()), count + len(latency.slow)
    if worst is None:
        return []
    like, row = worst
    named = f"{like.name}, {byte_size(like.bytes)}" if like.name else f"{like.kind} of {byte_size(like.bytes)}"
    text = (
        f"{slow} of {count} collectives took over 1.5 times as long as comparable ones, wait excluded; the worst "
        f"took {duration(excess)} longer ({named}, {context.matches.step[row] or 'outside all steps'})."
    )
    evidence = {"collective": like.kind, "instance": row, "step": context.matches.step[row] or None, "count": slow}
    advice = (
        "If they occur at random, look for other traffic on the links; if always there, at what runs at the same time."
    )
    return [context.finding("slow_collectives", text, advice, cost, evidence | {"ns": int(excess)})]
