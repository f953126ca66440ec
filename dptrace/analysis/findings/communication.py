"""Exposed communication: of which kind, where in the step, and how it is divided into messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.across import AcrossRanks, not_recorded
from dptrace.analysis.findings.evidence import (
    ExposedComm,
    FirstBucket,
    LastGradients,
    LowBandwidth,
    SlowCollectives,
    SmallMessages,
)
from dptrace.analysis.findings.finding import (
    GRADIENTS,
    Finding,
    FindingContext,
    exposed_advice,
    exposures,
    first_bucket_advice,
)
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import Int64, median, unique
from dptrace.core.units import byte_size, duration, plural
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import Phase

_NOTABLE_WAIT = 0.05
"""Share of the exposed time from which waiting within it is mentioned."""


def exposed_communication(context: FindingContext) -> list[Finding]:
    """Find exposed communication of each kind of collective, without the wait for late ranks."""
    devices, steps = context.devices, context.steps
    found = []
    for kind in sorted({kind for device in devices for kind in device.split.comm}):
        exposed_ns = shared_ns = waited = tail = hidden = count = size = 0
        sized = True
        worst: tuple[int, str | None, int] = (0, None, 0)
        for number, device in enumerate(devices):
            if kind not in device.split.comm:
                continue
            figures = device.split.comm[kind]
            exposed_ns += int(figures.exposed_ns.sum())
            shared_ns += device.shared_exposed_of(kind)
            hidden += int(figures.overlapped_ns.sum())
            count += int(figures.count.sum())
            size += int(figures.bytes.sum())
            sized = sized and not figures.has_unknown_size()
            gradient_rows, after = _of_kind(device, kind)
            waited += context.waited_ns(kind, number, gradient_rows)
            own = exposures(device)[gradient_rows]
            tail += int(own[after].sum())
            top = int(figures.exposed_ns.argmax())
            if int(figures.exposed_ns[top]) > worst[0]:
                worst = (int(figures.exposed_ns[top]), device.split.names[top], device.timeline.rank)
        if not exposed_ns:
            continue
        cost = max(exposed_ns - waited, 0) * shared_ns // exposed_ns  # kinds that run at once share what they expose
        late = min(tail / exposed_ns, 1.0)  # concurrent collectives each have the same exposed time
        text, advice = exposed_advice(
            context, kind, late, hidden, exposed_ns, waited, count / steps, sized * size / max(count, 1)
        )
        last = _last_gradients(context, kind) if tail else None
        evidence = ExposedComm(
            collective=kind,
            step=worst[1],
            rank=worst[2],
            exposed_ns=worst[0],
            after_backward_share=round(late, 3),
            count=count / steps,
            bytes=size / steps if sized else None,
            last=last,
        )
        if last and any(known := [last.name, byte_size(last.bytes) if last.bytes else ""]):
            text += f" The last one of a step is {', '.join(filter(None, known))}."
        if waited > _NOTABLE_WAIT * exposed_ns:
            share = 100 * min(waited / exposed_ns, 1.0)
            text += f" {share:.0f} % of the exposed time is waiting for other ranks and not counted here."
        if missing := _missing_ranks(context, kind):
            text += f" How much of it is waiting is unknown: {missing}, which may be what the others wait for."
            if 2 * context.unmatched_ns(kind) > exposed_ns:
                advice = f"Add the missing traces first: this may be waiting for their ranks. {advice}"
        else:
            unmatched, complete_first = _incomplete(context, kind, exposed_ns)
            text, advice = text + unmatched, complete_first or advice
        found.append(context.finding("exposed_comm", text, advice, cost, evidence))
    return found


def _incomplete(context: FindingContext, kind: str, exposed_ns: int) -> tuple[str, str]:
    """Return text and advice on collectives that lack ranks of the run itself; empty if there are few."""
    share = context.unmatched_ns(kind) / exposed_ns
    if share <= _NOTABLE_WAIT or not (kind in COLLECTIVES and COLLECTIVES[kind].synchronizing):
        return "", ""
    text = f" {100 * min(share, 1.0):.0f} % of the exposed time is in incomplete collectives: it may be waiting, too."
    return text, "Complete the recordings first: this may be waiting for a late rank." if share > 1 / 2 else ""


def _of_kind(device: DeviceFigures, kind: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return which of a device's collectives are of a kind, and which of these end after their step's backward."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)
    kinds = np.array([timeline.collectives[i].kind for i in timeline.collective[comm].tolist()], object)
    gradient_rows = np.flatnonzero(kinds == kind)
    step = timeline.step[comm[gradient_rows]]
    ends = np.append(device.backward_end_ns, 0)
    end = ends[np.where(step >= 0, step, len(ends) - 1)]
    return gradient_rows, (end > 0) & (timeline.end_ns[comm[gradient_rows]] > end)


def _gradients(device: DeviceFigures, kinds: tuple[str, ...]) -> Int64:
    """Return which of a device's collectives reduce gradients, by kind, dtype and the phase of their launch."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)
    calls = [timeline.collectives[i] for i in timeline.collective[comm].tolist()]
    # DDP also reduces its map of used parameters in backward, as integers.
    integers = {dtype for dtype in {call.dtype for call in calls} if dtype.lower().startswith(("int", "long"))}
    wanted = np.array([call.kind in kinds and call.dtype not in integers for call in calls], np.bool_)
    return np.flatnonzero(wanted & (timeline.phase[comm] == Phase.BACKWARD) & (timeline.step[comm] >= 0))


def _last_gradients(context: FindingContext, kind: str) -> LastGradients | None:
    """Describe the last gradients reduced in a step, on the first device that reduces any."""
    if kind not in GRADIENTS:
        return None
    for number, device in enumerate(context.devices):
        if len(gradient_rows := _gradients(device, (kind,))):
            timeline = device.timeline
            comm = np.flatnonzero(timeline.collective >= 0)[gradient_rows]
            last = int(np.flatnonzero(timeline.step[comm] == timeline.step[comm[-1]])[-1])
            size = timeline.collectives[timeline.collective[comm[last]]].bytes
            name = context.name(int(context.instances(number)[gradient_rows[last]]))
            return LastGradients(name, size or None, timeline.windows.names[timeline.step[comm[last]]])
    return None


def _missing_ranks(context: FindingContext, kind: str) -> str:
    """Say which ranks of incomplete collectives were not recorded; empty for none.

    The wait for them cannot be separated from transfer.
    """
    matches = context.across.matches
    paired = "send_recv" if kind in ("send", "recv") else kind
    rows = np.flatnonzero(((matches.kind == kind) | (matches.kind == paired)) & ~matches.complete)
    if not len(rows):
        return ""
    here = {rank for rank, _ in matches.device_ids}
    groups = [matches.groups[group] for group in set(matches.group[rows].tolist())]
    # Calls without a group are of all ranks of the job.
    members = (group.ranks or (() if group.name else range(context.across.world_size)) for group in groups)
    absent = {rank for ranks in members for rank in ranks} - here
    wanted = int(matches.size[rows].max())
    if absent:
        return not_recorded(absent)
    if wanted <= len(here):
        return ""  # captures begin or end at different places
    missing = wanted - len(here)
    return f"{missing} of its {wanted} ranks {'was' if missing == 1 else 'were'} not recorded"


_TOO_LARGE = 0.1
"""Smallest share of the gradients in a first bucket that is too large."""
_LATE = 0.3
"""Share of backward after which the first gradients are late."""


def first_bucket(context: FindingContext) -> list[Finding]:
    """Find gradients that start late because the first bucket is large; later buckets queue behind it."""
    cost = delay = length = 0
    worst: FirstBucket | None = None
    for number, device in enumerate(context.devices):
        gradient_rows = _gradients(device, GRADIENTS)
        for step, rows in _by_step(device, gradient_rows):
            if len(rows) < 2:  # a late single message is part of its exposed time
                continue
            late, whole, saved, size, share = _first_bucket_delay(context, number, device, step, rows)
            if not _LATE * whole <= late < whole or share < _TOO_LARGE:
                continue
            cost, delay, length = cost + saved, delay + late, length + whole
            if worst is None or saved > worst.ns:
                worst = FirstBucket(
                    rank=device.timeline.rank,
                    step=device.split.names[step],
                    ns=saved,
                    name=context.name(int(context.instances(number)[rows[0]])),
                    bytes=size,
                    share_of_gradients=round(share, 3),
                    delay_ns=late,
                )
    if worst is None or not cost:
        return []
    called = f"{worst.name}, " if worst.name else ""
    text = (
        f"The first gradients start {100 * delay / length:.0f} % into backward: {called}{byte_size(worst.bytes)}, "
        f"{100 * worst.share_of_gradients:.0f} % of all gradients; later ones queue behind them."
    )
    return [context.finding("first_bucket", text, first_bucket_advice(context), cost, worst)]


def _by_step(device: DeviceFigures, gradient_rows: Int64) -> list[tuple[int, Int64]]:
    """Group a device's collectives by step."""
    step = device.timeline.step[device.timeline.collective >= 0][gradient_rows]
    order = np.argsort(step, kind="stable")
    cuts = np.flatnonzero(np.diff(step[order])) + 1
    return [(int(step[part[0]]), gradient_rows[part]) for part in np.split(order, cuts) if len(part)]


def _first_bucket_delay(
    context: FindingContext, number: int, device: DeviceFigures, step: int, rows: Int64
) -> tuple[int, int, int, int, float]:
    """Return a step's delay, length of backward, saving (ns), bytes of the first bucket, and its share of all bytes."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)[rows]
    sizes = [timeline.collectives[i].bytes for i in timeline.collective[comm].tolist()]
    began = int(device.backward_start_ns[step])
    late = max(int(timeline.start_ns[comm[0]]) - began, 0)
    net = (exposures(device) - context.waits[number])[rows]
    # The last bucket always ends after backward, however the others are divided.
    queued = int(net[:-1].sum())
    whole = int(device.backward_end_ns[step]) - began
    return late, max(whole, 1), min(late, queued), sizes[0], sizes[0] / max(sum(sizes), 1)


_FITS = 0.5
"""Least R² of a fit whose latency is meaningful."""


def small_messages(context: FindingContext) -> list[Finding]:
    """Find messages below the size at which latency and transfer take equally long; each pays the latency."""
    matches, found = context.across.matches, []
    for fit in context.across.fits:
        if not fit.crossover_bytes or fit.alpha_s is None or (fit.r2 or 0) < _FITS:
            continue
        rows = (matches.kind == fit.kind) & (matches.group == fit.group) & matches.complete & (matches.step != "")
        rows &= (matches.bytes > 0) & (matches.bytes < fit.crossover_bytes)
        steps = len(set(matches.step[rows].tolist()))
        if not steps:
            continue
        count, size = int(rows.sum()) / steps, int(matches.bytes[rows].sum()) / steps
        wanted = max(int(np.ceil(size / fit.crossover_bytes)), 1)
        alpha = fit.alpha_s * 1e9
        paid = np.minimum(context.net_ns[context.members(rows)], alpha).sum() * max(1 - wanted / count, 0)
        text = (
            f"{count:.0f} {fit.kind} per step ({byte_size(size / count)} on average) are smaller than "
            f"{byte_size(fit.crossover_bytes)}, the size at which latency and transfer take equally long: each pays "
            f"{duration(alpha)} of latency."
        )
        advice = f"Combine them: {plural(wanted, 'message')} of that size would carry the same data."
        worst = int(np.flatnonzero(rows)[0])
        evidence = SmallMessages(
            collective=fit.kind,
            group=matches.groups[fit.group].name,
            count=count,
            bytes=size,
            crossover_bytes=fit.crossover_bytes,
            alpha_ns=alpha,
            step=matches.step[worst],
            instance=worst,
            part_of="exposed_comm",
        )
        found.append(context.finding("small_messages", text, advice, float(paid), evidence))
    return found


# Large messages that are slower than the links allow, or than comparable messages.

_LARGE = 16_000_000
"""Bytes of a large message if the crossover is unknown."""
_ABOVE = 4
"""Multiple of the crossover, if known: latency is at most a fifth of such a message's time."""
_REACHED = 0.8
"""Share of the links' bandwidth that collectives of a well-configured job reach."""
_HALF = 0.5
"""Share of the others' bandwidth below which a group is slow."""
_MIN_MESSAGES = 3
"""Messages of a group from which its bandwidth is compared."""


def _advice(context: FindingContext) -> str:
    """Return what to look at first, by the backend."""
    how = "GLOO_SOCKET_IFNAME" if context.on_cpu else "nvidia-smi topo -m; NCCL_DEBUG=INFO shows the transport"
    return f"Check how these ranks are connected ({how}), and whether other communication runs at the same time."


def low_bandwidth(context: FindingContext) -> list[Finding]:
    """Compare large messages with the measured bandwidth of the links, or groups with each other."""
    large = _large(context.across)
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


def compared_messages(evidence: LowBandwidth, across: AcrossRanks, metadata: Mapping[str, Any]) -> Int64:
    """Return the matched collectives that a finding on low bandwidth is about, by its evidence."""
    matches = across.matches
    rows = _large(across) & (matches.kind == evidence.collective)
    if _link(metadata):
        return np.flatnonzero(rows & _one_machine(metadata, matches)[matches.group])
    own = np.array([group.name == evidence.group for group in matches.groups] + [False], np.bool_)
    return np.flatnonzero(rows & own[matches.group] & (across.timing.busbw < evidence.reference_gbps * 1e9))


def _large(across: AcrossRanks) -> NDArray[np.bool_]:
    matches = across.matches
    least = np.full(len(matches), float(_LARGE))
    for fit in across.fits:
        if fit.crossover_bytes:
            of_fit = (matches.kind == fit.kind) & (matches.group == fit.group)
            least[of_fit] = min(_ABOVE * fit.crossover_bytes, _LARGE)
    known = matches.complete & (matches.size > 1) & (matches.step != "") & np.isfinite(across.timing.busbw)
    large: NDArray[np.bool_] = known & (matches.bytes >= least)
    return large


def _lost(context: FindingContext, rows: NDArray[np.bool_], rate: float) -> float:
    """Return by how much the exposed time of the members would shrink at *rate*, in ns over all of them."""
    members = context.members(rows)
    instance = context.across.matches.instance[members]
    gain = context.across.timing.transfer_ns[instance] * (
        1 - np.minimum(context.across.timing.busbw[instance] / rate, 1)
    )
    return float(np.minimum(context.net_ns[members], gain).sum())


def _one_machine(metadata: Mapping[str, Any], matches: Matches) -> NDArray[np.bool_]:
    """Return for each group whether all its ranks are on one machine, and so use its links."""
    node: dict[int, object] = {one["rank"]: one.get("node") for one in rank_entries(metadata) if "rank" in one}
    nodes = [{node.get(rank) for rank in group.ranks or tuple(node)} for group in matches.groups]
    return np.array([len(found) <= 1 for found in nodes], np.bool_)


def _against_link(context: FindingContext, large: NDArray[np.bool_]) -> list[Finding]:
    matches, found = context.across.matches, []
    inside = large & _one_machine(context.metadata, matches)[matches.group] if len(matches) else large
    for kind in sorted(set(matches.kind[inside].tolist())):
        rows, link = inside & (matches.kind == kind), _link(context.metadata, str(kind))
        middle = float(median(context.across.timing.busbw[rows]))
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
    matches, busbw, found = context.across.matches, context.across.timing.busbw, []
    places = np.flatnonzero(large)
    doublings = np.log2(np.maximum(matches.bytes[places], 1)).astype(int).tolist()
    comparable: dict[tuple[str, int, int], list[int]] = {}
    for place, doubling in zip(places.tolist(), doublings, strict=True):
        comparable.setdefault((str(matches.kind[place]), int(matches.size[place]), doubling), []).append(place)
    for (kind, _, _), rows in comparable.items():
        groups = {int(g): [r for r in rows if matches.group[r] == g] for g in unique(matches.group[rows])}
        middles = {g: float(median(busbw[own])) for g, own in groups.items() if len(own) >= _MIN_MESSAGES}
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


def _where(context: FindingContext, rows: NDArray[np.bool_], busbw: float, reference: float) -> LowBandwidth:
    matches = context.across.matches
    worst = int(np.flatnonzero(rows)[np.argmin(context.across.timing.busbw[rows])])
    return LowBandwidth(
        collective=str(matches.kind[worst]),
        group=matches.groups[matches.group[worst]].name,
        busbw_gbps=round(busbw / 1e9, 3),
        reference_gbps=round(reference / 1e9, 3),
        count=int(rows.sum()),
        step=matches.step[worst] or None,
        instance=worst,
        bytes=int(matches.bytes[worst]),
    )


def slow_collectives(context: FindingContext) -> list[Finding]:
    """Find single collectives with a far longer transfer than comparable ones."""
    matches, cost, slow, count = context.across.matches, 0.0, 0, 0
    worst, excess = None, 0.0
    for latency in context.across.latencies:
        # A stage without work waits in its messages: this belongs to the schedule.
        if not latency.slow.any() or (latency.kind == "send_recv" and context.pipelines):
            continue
        middle = float(median(latency.transfer_ns))
        for row, transfer in zip(latency.instances[latency.slow], latency.transfer_ns[latency.slow], strict=True):
            members = slice(int(matches.first[row]), int(matches.first[row + 1]))
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
        f"took {duration(excess)} longer ({named}, {matches.step[row] or 'outside all steps'})."
    )
    step = matches.step[row] or None
    evidence = SlowCollectives(collective=like.kind, instance=row, step=step, count=slow, ns=int(excess))
    advice = (
        "If they occur at random, look for other traffic on the links; if always there, at what runs at the same time."
    )
    return [context.finding("slow_collectives", text, advice, cost, evidence)]
