"""Exposed communication: of which kind, where in the step, and how it is divided into messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.analysis.findings.advice import GRADIENTS, exposed_advice, first_bucket_advice
from dptrace.analysis.findings.finding import Finding, FindingContext, exposures
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64
from dptrace.core.units import byte_size, duration, plural
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import Phase

__all__ = ["exposed_communication", "first_bucket", "small_messages"]


_NOTABLE_WAIT = 0.05


def exposed_communication(context: FindingContext) -> list[Finding]:
    """Find exposed communication of each kind of collective, without the wait for late ranks."""
    devices, steps = context.devices, context.steps
    found = []
    for kind in sorted({kind for device in devices for kind in device.split.comm}):
        exposed_ns = waited = tail = hidden = count = size = 0
        sized = True
        worst: tuple[int, str | None, int] = (0, None, 0)
        for number, device in enumerate(devices):
            if kind not in device.split.comm:
                continue
            figures = device.split.comm[kind]
            exposed_ns += int(figures.exposed_ns.sum())
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
        cost = max(exposed_ns - waited, 0)
        if not exposed_ns:
            continue
        late = min(tail / exposed_ns, 1.0)  # concurrent collectives each have the same exposed time
        text, advice = exposed_advice(
            context, kind, late, hidden, exposed_ns, count / steps, sized * size / max(count, 1)
        )
        evidence: dict[str, Any] = {"collective": kind, "step": worst[1], "rank": worst[2], "exposed_ns": worst[0]}
        evidence |= {"after_backward_share": round(late, 3), "count": count / steps}
        evidence["bytes"] = size / steps if sized else None
        last = _last_gradients(context, kind)
        if tail and last:
            evidence["last"] = last
            known = [last["name"], byte_size(last["bytes"]) if last["bytes"] else ""]
            if any(known):
                text += f" The last one of a step is {', '.join(filter(None, known))}."
        if waited > _NOTABLE_WAIT * exposed_ns:
            share = 100 * min(waited / exposed_ns, 1.0)
            text += f" {share:.0f} % of the exposed time is waiting for late ranks and not counted here."
        if missing := _missing_ranks_text(context, kind):
            text += missing
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


def _last_gradients(context: FindingContext, kind: str) -> dict[str, Any]:
    """Describe the last gradients reduced in a step, on the first device that reduces any."""
    if kind not in GRADIENTS:
        return {}
    for number, device in enumerate(context.devices):
        if len(gradient_rows := _gradients(device, (kind,))):
            timeline = device.timeline
            comm = np.flatnonzero(timeline.collective >= 0)[gradient_rows]
            last = int(np.flatnonzero(timeline.step[comm] == timeline.step[comm[-1]])[-1])
            size = timeline.collectives[timeline.collective[comm[last]]].bytes
            name = context.name(int(context.instances(number)[gradient_rows[last]]))
            return {"name": name, "bytes": size or None, "step": timeline.windows.names[timeline.step[comm[last]]]}
    return {}


def _missing_ranks_text(context: FindingContext, kind: str) -> str:
    """Name missing ranks: the wait for them cannot be separated from transfer."""
    matches = context.matches
    paired = "send_recv" if kind in ("send", "recv") else kind
    rows = np.flatnonzero(((matches.kind == kind) | (matches.kind == paired)) & ~matches.complete)
    if not len(rows):
        return ""
    here = {rank for rank, _ in matches.device_ids}
    absent = {rank for group in set(matches.group[rows].tolist()) for rank in matches.groups[group].ranks} - here
    wanted = int(matches.size[rows].max())
    if not absent and wanted <= len(here):
        return ""  # captures begin or end at different places
    if len(absent) == 1:
        who = f"rank {min(absent)} has no trace in this run"
    else:
        missing = len(absent) or wanted - len(here)
        who = f"{missing} of its {wanted} ranks {'has' if missing == 1 else 'have'} no trace in this run"
    return f" The share of wait in it is unknown: {who}."


_TOO_LARGE = 0.1
"""Smallest share of the gradients in a first bucket that is too large."""
_LATE = 0.3
"""Share of backward after which the first gradients are late."""


def first_bucket(context: FindingContext) -> list[Finding]:
    """Find gradients that start late because the first bucket is large; later buckets queue behind it."""
    cost = delay = length = 0
    worst: dict[str, Any] = {}
    for number, device in enumerate(context.devices):
        gradient_rows = _gradients(device, GRADIENTS)
        for step, rows in _by_step(device, gradient_rows):
            if len(rows) < 2:  # a late single message is part of its exposed time
                continue
            late, whole, saved, size, share = _first_bucket_delay(context, number, device, step, rows)
            if not _LATE * whole <= late < whole or share < _TOO_LARGE:
                continue
            cost, delay, length = cost + saved, delay + late, length + whole
            if saved > worst.get("ns", -1):
                name = context.name(int(context.instances(number)[rows[0]]))
                worst = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": saved}
                worst |= {"name": name, "bytes": size, "share_of_gradients": round(share, 3), "delay_ns": late}
    if not cost:
        return []
    called = f"{worst['name']}, " if worst["name"] else ""
    text = (
        f"The first gradients start {100 * delay / length:.0f} % into backward: {called}{byte_size(worst['bytes'])}, "
        f"{100 * worst['share_of_gradients']:.0f} % of all gradients; later ones queue behind them."
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
    matches, found = context.matches, []
    for fit in context.fits:
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
        evidence = {"collective": fit.kind, "group": matches.groups[fit.group].name, "count": count}
        evidence |= {"bytes": size, "crossover_bytes": fit.crossover_bytes, "alpha_ns": alpha}
        evidence |= {"step": matches.step[worst], "instance": worst, "part_of": "exposed_comm"}
        found.append(context.finding("small_messages", text, advice, float(paid), evidence))
    return found
