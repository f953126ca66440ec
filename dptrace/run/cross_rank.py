"""The analysis of a run across ranks, computed once: collectives, clocks, waits, stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.across import AcrossRanks
from dptrace.analysis.cross_rank.clocks import Clocks, estimate, exclude_misfits
from dptrace.analysis.cross_rank.ddp_buckets import buckets, instance_names
from dptrace.analysis.cross_rank.stragglers import stragglers
from dptrace.analysis.cross_rank.transfers import (
    AlphaBeta,
    Latency,
    alpha_beta,
    exposed_parts,
    exposed_waits,
    latencies,
    sum_of_waits,
    timing,
    waits_by_rank,
)
from dptrace.analysis.matching.match import Matches, match
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.device import DeviceFigures, in_mean, step_grid
from dptrace.analysis.per_gpu.split import COMPUTE, FIGURE_WORDS, PHASES, SHOWN, bounds_of, unknown_figures
from dptrace.core.array_file import let_go
from dptrace.core.intervals import Int64, median, sums, unique
from dptrace.core.notes import LENGTHS, MARKS, REASONS, RECORDS
from dptrace.core.table import rows_of
from dptrace.core.units import listed, plural, ranks_text
from dptrace.run.columns import CLOCKS, MATCHED, MEMBERS, STRAGGLERS
from dptrace.timeline.model import UNKNOWN, Kind, Phase, Timeline
from dptrace.timeline.premises import cut_files

_MOST_NAMED = 3
"""Most ranks that waiting is said to be for."""


class CrossRankAnalysis(AcrossRanks, frozen=True, dict=True):
    """The analysis of a run's ranks against each other, with its notes."""

    notes: tuple[str, ...]
    """What could not be matched, compared or named, a sentence each."""
    offsets: tuple[dict[str, Any], ...] | None = None
    """The clock rows of some of a run's ranks, whose reference may not be among them; None for those of ``clocks``."""

    def collectives(self) -> list[dict[str, Any]]:
        """Return each collective across ranks, with an entry per rank under ``members``; times in ns, rates in GB/s."""
        members = rows_of(MEMBERS, self)
        groups = [self.matches.groups[number] for number in self.matches.group.tolist()]
        rows = zip(rows_of(MATCHED, self), groups, pairwise(self.matches.first.tolist()), strict=True)
        return [
            {
                **row,
                "group_description": group.description or None,
                "group_ranks": list(group.ranks),
                "members": members[first:end],
            }
            for row, group, (first, end) in rows
        ]

    def waits_for(self, devices: Sequence[DeviceFigures] | None = None) -> tuple[int, ...]:
        """Return the ranks that more than half of the run's exposed waiting is for, most first; at most three.

        One rank, if more than half of the waiting is for it alone. Otherwise the fewest, where each moment of waiting
        counts in equal parts for those that had not arrived; none if these are more than three, or if nothing waits.
        The other side of a message is not counted: it may have waited itself for the stage before it.

        Args:
            devices: count only their waiting, instead of that of all.
        """
        chosen = {id(device) for device in (self.devices if devices is None else devices)}
        waits, whole = [], 0
        of_messages = self.matches.messages[self.matches.instance]
        for own, device, wait in zip(self.matches.of_device, self.devices, self.exposed_waits, strict=True):
            exposed = wait.calls.exposed_ns.clip(0) if id(device) in chosen else np.zeros_like(wait.calls.exposed_ns)
            whole += int(exposed.sum())
            exposed[self.matches.index[own[of_messages[own]]]] = 0
            waits.append(replace(wait, calls=replace(wait.calls, exposed_ns=exposed)))
        if not whole:
            return ()
        late = np.concatenate([wait.calls.waits_for for wait in waits])
        alone = sums(late + 1, np.concatenate([wait.calls.exposed_ns for wait in waits]), int(late.max(initial=0)) + 2)
        if 2 * alone[1:].max() > whole:
            return (int(alone[1:].argmax()),)
        caused = waits_by_rank(self.matches, waits)
        ranks = sorted(caused, key=lambda rank: (-caused[rank], rank))[:_MOST_NAMED]
        for count in range(2, len(ranks) + 1):
            if 2 * sum(caused[rank] for rank in ranks[:count]) > whole:
                return tuple(ranks[:count])
        return ()

    def mean_waits_by_kind(self) -> dict[str, dict[str, float | None]]:
        """Return the mean waits of a GPU and step for each kind of collective, by the names in WAIT_FIGURES, in ns.

        A wait is None where no collective of that kind shows any.
        """
        steps = max(sum(len(device.timeline.windows) for device in self.devices), 1)
        kinds = sorted({kind for device in self.devices for kind in device.split.comm})
        waits = self.exposed_waits
        sums = {kind: sum_of_waits(w.by_kind[kind] for w in waits if kind in w.by_kind) for kind in kinds}
        return {
            kind: {name: None if ns is None else ns / steps for name, ns in total.items()}
            for kind, total in sums.items()
        }

    def clock_rows(self) -> list[dict[str, Any]]:
        """Return each rank's clock offset from the first rank's; None where no collective connects them."""
        return rows_of(CLOCKS, self) if self.offsets is None else list(self.offsets)

    def straggler_rows(self) -> list[dict[str, Any]]:
        """Return each collective at which a rank kept the others waiting; times in ns."""
        return rows_of(STRAGGLERS, self)

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as plain data, as ``dptrace analyze --json`` prints it."""
        return {
            "collectives": self.collectives(),
            "unmatched": [
                {"rank": rank, "device": device, "count": len(calls)}
                for (rank, device), calls in zip(self.matches.device_ids, self.matches.unmatched, strict=True)
            ],
            "clocks": self.clock_rows(),
            "stragglers": self.straggler_rows(),
            "latencies": [_latency_row(latency, self.matches) for latency in self.latencies],
            "alpha_beta": [_fit_row(fit, self.matches) for fit in self.fits],
        }


_RAW = "Times are those of each rank's own clock (--no-align)."


def analyze_cross_rank(
    devices: Sequence[DeviceFigures], world_size: int = 0, metadata: Mapping[str, Any] | None = None, align: bool = True
) -> CrossRankAnalysis:
    """Analyze a run's ranks against each other.

    Args:
        devices: the figures of each GPU; of the intervals, only communication is needed.
        world_size: number of ranks in the job.
        metadata: the contents of ``run.json``.
        align: correct clocks that are off; otherwise use the times of each rank's own clock.
    """
    matches = match(devices, world_size)
    clocks = estimate(matches, devices, metadata)
    matches = exclude_misfits(matches, clocks)
    if not align:
        clocks = replace(clocks, corrected=np.zeros_like(clocks.corrected), notes=(*clocks.notes, _RAW))
    transfer_timing = timing(matches, clocks)
    ddp_buckets = buckets(matches, metadata or {})
    names = instance_names(matches, ddp_buckets)
    fits = alpha_beta(matches, transfer_timing)
    late = stragglers(matches, devices, clocks, align)
    distributions = latencies(matches, transfer_timing, names, _launched(matches, devices))
    analysis = CrossRankAnalysis(
        devices=tuple(devices),
        matches=matches,
        clocks=clocks,
        timing=transfer_timing,
        exposed_waits=exposed_waits(matches, transfer_timing, clocks, devices),
        buckets=ddp_buckets,
        names=tuple(names),
        latencies=distributions,
        fits=fits,
        stragglers=late,
        world_size=world_size,
        notes=(
            *_not_in_mean(devices),
            *matches.notes,
            *_incomplete(matches, clocks, world_size, cut_files(device.timeline for device in devices)),
            *(clocks.notes if len(devices) > 1 else ()),
            *(ddp_buckets.notes if ddp_buckets else ()),
        ),
    )
    for device in devices:
        let_go(device.timeline.start_ns)
    return analysis


def _launched(matches: Matches, devices: Sequence[DeviceFigures]) -> NDArray[np.bool_]:
    """Return of each collective whether a rank's file has its launch."""
    known = np.zeros(len(matches), np.bool_)
    for device, rows in zip(devices, matches.of_device, strict=True):
        timeline = device.timeline
        launch = timeline.launch_ns[timeline.kind == Kind.COMMUNICATION]
        known[matches.instance[rows]] |= launch[matches.index[rows]] != UNKNOWN
    return known


def _not_in_mean(devices: Sequence[DeviceFigures]) -> list[str]:
    """Note the ranks that the mean step leaves out, since figures of them are unknown that others have."""
    chosen = {id(device) for device in in_mean(devices)}
    out = [device.timeline for device in devices if len(device.timeline.windows) and id(device) not in chosen]
    if not out:
        return []
    ranks = [str(rank) for rank in sorted({timeline.rank for timeline in out})]
    who = f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {listed(ranks, 8)} are"
    whys = " and ".join(dict.fromkeys(REASONS[premise] for timeline in out for premise in timeline.lacks))
    return [f"{who} not in the mean step, the headline and what findings count: there, {whys}."]


_NOTABLE = 0.01
"""Share of a run's collectives from which incomplete ones are noted."""


def _incomplete(matches: Matches, clocks: Clocks, world_size: int, cut: str) -> list[str]:
    """Note collectives that lack ranks of the run itself: their group has two names, or recordings are cut.

    Args:
        cut: which files are.
    """
    here = {rank for rank, _ in matches.device_ids}
    # Calls without a group are of all ranks of the job; who is in a named group without ranks is not recorded.
    members = [group.ranks if group.name or group.ranks else range(world_size) for group in matches.groups]
    whole = [
        len(ranks) >= max(group.size, 1) and here.issuperset(ranks)
        for group, ranks in zip(matches.groups, members, strict=True)
    ]
    lacking = ~matches.complete & np.array([*whole, False], np.bool_)[matches.group]
    count = int(lacking.sum())
    if clocks.misfit.any() or count <= _NOTABLE * len(matches):
        return []
    of_two_names = _of_two_names(matches)
    apart = lacking & np.isin(matches.group, [number for names in of_two_names for number in names])
    notes = []
    if named := int(apart.sum()):
        users = of_two_names[0].items()
        names = " and ".join(f"{matches.groups[number].name!r} on {ranks_text(ranks)}" for number, ranks in users)
        notes.append(
            f"{named:,} of {plural(len(matches), 'collective')} are not matched: ranks name one process group "
            f"differently ({names}), as where they create their groups in another order. How long they waited for each "
            "other is unknown."
        )
    if rest := count - named:
        between = bool((lacking & ~apart & _between_complete(matches)).any())
        why = cut or ("recordings lack some events" if between else "recordings begin or end apart")
        text = (
            f"{rest:,} of {plural(len(matches), 'collective')} {'lacks' if rest == 1 else 'lack'} a rank, since {why}"
        )
        notes.append(f"{text}: how long the others waited there is unknown.")
    return notes


def _between_complete(matches: Matches) -> NDArray[np.bool_]:
    """Return which collectives all ranks of their group have earlier and later ones than."""
    complete, row, group = np.flatnonzero(matches.complete), np.arange(len(matches)), matches.group
    first, last = np.full(len(matches.groups) + 1, len(row)), np.full(len(matches.groups) + 1, -1)
    np.minimum.at(first, group[complete], complete)
    np.maximum.at(last, group[complete], complete)
    return (first[group] < row) & (row < last[group])


def _of_two_names(matches: Matches) -> list[dict[int, list[int]]]:
    """Return the groups of the same ranks and description that no rank uses under more than one name.

    Each is given as the ranks that use a name, by the index of the group of that name.
    """
    users: dict[int, list[int]] = {}
    for group, device in np.unique(np.stack((matches.group[matches.instance], matches.device)), axis=1).T.tolist():
        users.setdefault(group, []).append(matches.device_ids[device][0])
    alike: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for number in users:
        group = matches.groups[number]
        if len(group.ranks) > 1:
            alike.setdefault((group.ranks, group.description), []).append(number)
    return [
        {number: users[number] for number in numbers}
        for numbers in alike.values()
        if len(numbers) > 1 and not set.intersection(*(set(users[number]) for number in numbers))
    ]


def _latency_row(latency: Latency, matches: Matches) -> dict[str, Any]:
    counts, edges = latency.histogram()
    return {
        "kind": latency.kind,
        "name": latency.name or None,
        "phase": Phase(latency.phase).name.lower() if latency.phase >= 0 else None,
        "group": matches.groups[latency.group].name or None,
        "bytes": latency.bytes or None,
        "count": len(latency.instances),
        **{f"p{share}_ns": latency.quantile(share / 100) for share in (0, 50, 90, 100)},
        "histogram": {"counts": counts.tolist(), "edges_ns": edges.tolist()},
        "slow": latency.instances[latency.slow].tolist(),
    }


def _fit_row(fit: AlphaBeta, matches: Matches) -> dict[str, Any]:
    beta = fit.beta_s_per_byte
    return {
        "kind": fit.kind,
        "group": matches.groups[fit.group].name or None,
        "ranks": fit.ranks,
        "count": fit.count,
        "alpha_ns": None if fit.alpha_s is None else fit.alpha_s * 1e9,
        "beta_ns_per_byte": None if beta is None else beta * 1e9,
        "crossover_bytes": fit.crossover_bytes,
        "r2": fit.r2,
        "reason": fit.reason or None,
    }


# The mean step of a run: the one basis of headlines and tables, in which parts and shares add up.

_APART = 0.2
"""A step stands out if its length differs from the median by more than this share."""


class MeanStep(msgspec.Struct, frozen=True):
    """The mean over all steps and GPUs of a run, and the steps whose length is far from the usual one."""

    steps: int
    figures_ns: dict[str, float | None]
    """By the names in FIGURES, and compute; None where one is not known."""
    unknown: dict[str, str]
    """Why each figure and cause of idle time that is not known is unknown, by its name."""
    bounds: dict[str, str]
    """``at most``, ``at least`` or ``about``, by the name of each figure that is not exact."""
    marked: bool
    """Whether steps are marked; otherwise the step is the whole recording."""
    waits_ns: dict[str, float | None]
    """By the names in WAIT_FIGURES; an unknown wait is None."""
    waits_for: tuple[int, ...]
    """The ranks that most of the waiting is for, as :meth:`CrossRankAnalysis.waits_for` returns them."""
    median_ns: float
    """Length of the median step; the length of a step is the mean of its GPUs."""
    longest: str
    shortest: str
    """Names of the longest and the shortest step."""
    apart_ns: dict[str, float]
    """Length of each step that stands out."""

    @property
    def limits(self) -> tuple[str, ...]:
        """What is not known of it, and why, a sentence for each reason; then what is a bound."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.unknown.items():
            reasons.setdefault(why, []).append(name)
        lines = [f"Unknown, because {why}: {', '.join(figures_in_words(names))}." for why, names in reasons.items()]
        if (idle := self.bounds.get("idle_ns", "about")) != "about":
            compute, why = self.bounds[COMPUTE], REASONS[RECORDS if idle == "at most" else LENGTHS]
            lines.append(f"Idle time is {idle}, and compute {compute}, what is shown, because {why}.")
        return tuple(lines)

    @property
    def wall_ns(self) -> float:
        """Its length, which its parts add up to."""
        return self.figures_ns["wall_ns"] or 0.0

    @property
    def exposed_ns(self) -> dict[str, float]:
        """The parts of exposed communication, by the names in ``exposed_wait.exposed_parts``; none if unknown."""
        exposed = self.figures_ns["exposed_comm_ns"]
        return {} if exposed is None else exposed_parts(exposed, self.waits_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, in whole ns."""
        return {
            "steps": self.steps,
            **{name: None if ns is None else round(ns) for name, ns in self.figures_ns.items()},
            "unknown": self.unknown,
            "bounds": self.bounds,
            **{name: None if ns is None else round(ns) for name, ns in self.waits_ns.items()},
            "waits_for": list(self.waits_for),
            "median_wall_ns": round(self.median_ns),
            "steps_apart": [{"step": name, "wall_ns": round(ns)} for name, ns in self.apart_ns.items()],
        }


def figures_in_words(names: Sequence[str]) -> list[str]:
    """Return figures and causes of idle time in words; all phases are one, as are all causes."""
    groups = {PHASES: "the phases of compute", CAUSES: "why GPUs are idle"}
    whole = {name: words for group, words in groups.items() if {*group} <= {*names} for name in group}
    return list(dict.fromkeys(whole.get(name, FIGURE_WORDS[name]) for name in names))


def mean_step(across: CrossRankAnalysis) -> MeanStep | None:
    """Return the mean step of a run from the analysis of its ranks; None for a run without steps."""
    devices = in_mean(across.devices)
    splits = [device.split for device in devices]
    count = sum(len(split.names) for split in splits)
    if not count:
        return None
    lacks = sorted({premise for split in splits for premise in split.lacks})
    unknown = unknown_figures(lacks)
    figures = {
        name: None if name in unknown else sum(int(split.of(name).sum()) for split in splits) / count for name in SHOWN
    }
    grid = step_grid(devices)
    walls = grid.figures["wall_ns"].sum(axis=0) / grid.present.sum(axis=0)
    usual = float(median(walls))
    apart = np.flatnonzero(np.abs(walls - usual) > _APART * usual).tolist()
    chosen = {id(device) for device in devices}
    waits = sum_of_waits(
        wait for device, wait in zip(across.devices, across.exposed_waits, strict=True) if id(device) in chosen
    )
    if figures["exposed_comm_ns"] is None:
        waits["exposed_wait_ns"] = None
    return MeanStep(
        steps=len(grid.steps),
        figures_ns=figures,
        unknown=unknown,
        bounds=bounds_of(lacks),
        marked=MARKS not in lacks,
        waits_ns={name: ns if ns is None else ns / count for name, ns in waits.items()},
        waits_for=across.waits_for(devices),
        median_ns=usual,
        longest=grid.steps[int(walls.argmax())],
        shortest=grid.steps[int(walls.argmin())],
        apart_ns={grid.steps[k]: float(walls[k]) for k in apart},
    )


# When DDP's buckets were ready to be sent, and how long each transfer takes without others at the same time.


def gradient_transfers(cross_rank: CrossRankAnalysis) -> tuple[tuple[int, float], ...]:
    """Return bytes and seconds of each complete all-reduce in backward, as if it had run alone."""
    matches = cross_rank.matches
    if not len(matches):
        return ()
    wanted = (matches.kind == "all_reduce") & (matches.phase == Phase.BACKWARD)
    wanted &= matches.complete & (matches.bytes > 0) & (matches.size > 1)
    alone = np.zeros(len(matches.device))
    for rows in matches.of_device:
        alone[rows] = exclusive_ns(matches.start_ns[rows], matches.end_ns[rows])
    # The shortest is that of the rank that did not wait for the others.
    shortest = np.minimum.reduceat(alone, matches.first[:-1])
    wanted &= shortest > 0
    return tuple(zip(matches.bytes[wanted].tolist(), (shortest[wanted] / 1e9).tolist(), strict=True))


def exclusive_ns(start_ns: Int64, end_ns: Int64) -> NDArray[np.float64]:
    """Compute how long each collective would have taken alone: while k run at once, each gets 1/k of the time.

    Gloo runs two collectives at once, which share the link and the cores.
    """
    edges = unique(np.concatenate((start_ns, end_ns)))
    begun = np.searchsorted(np.sort(start_ns), edges[:-1], "right")
    ended = np.searchsorted(np.sort(end_ns), edges[:-1], "right")
    share = np.diff(edges) / np.maximum(begun - ended, 1)
    until = np.concatenate(([0.0], np.cumsum(share)))
    return until[np.searchsorted(edges, end_ns)] - until[np.searchsorted(edges, start_ns)]


def ready_ns(timeline: Timeline) -> Int64:
    """Return when the data of each communication interval was ready to be sent.

    On a GPU that is the end of the compute launched before it, which its stream waits for; on a CPU it is the launch.
    Where launches are unknown, it is the start of the interval.
    """
    comm = timeline.kind == Kind.COMMUNICATION
    start, launch = timeline.start_ns[comm], timeline.launch_ns[comm]
    ready: Int64 = np.where(launch == UNKNOWN, start, launch)
    before = (timeline.kind == Kind.COMPUTE) & (timeline.launch_ns != UNKNOWN)
    if timeline.on_cpu or not before.any():
        return ready
    order = np.argsort(timeline.launch_ns[before], kind="stable")
    ended = np.maximum.accumulate(timeline.end_ns[before][order])
    place = np.searchsorted(timeline.launch_ns[before][order], launch) - 1
    known = (launch != UNKNOWN) & (place >= 0)
    # Never later than its start: it may not depend on compute on another stream.
    latest: Int64 = np.minimum(np.maximum(ready, ended[np.maximum(place, 0)]), start)
    return np.where(known, latest, ready)


def ready_before_last(cross_rank: CrossRankAnalysis) -> tuple[float, ...]:
    """Return when each of DDP's buckets was ready, in s relative to the last bucket of its step, so 0 or less.

    Medians over ranks and over the steps with all buckets; empty where there is no such step.
    """
    if cross_rank.buckets is None:
        return ()
    matches, count = cross_rank.matches, len(cross_rank.buckets.buckets)
    ready = [ready_ns(device.timeline) for device in cross_rank.devices]
    bucket, step = cross_rank.buckets.bucket[matches.instance], matches.step[matches.instance]
    lines = []
    for name in dict.fromkeys(matches.step.tolist()):
        for device in range(len(cross_rank.devices)):
            rows = np.flatnonzero((matches.device == device) & (step == name) & (bucket >= 0))
            if sorted(bucket[rows].tolist()) == list(range(count)):
                times = ready[device][matches.index[rows]][np.argsort(bucket[rows])]
                lines.append(times - times[-1])
    if not lines:
        return ()
    # One thread launches the buckets in order; their separate medians need not be in order.
    middle = np.minimum(np.maximum.accumulate(median(np.array(lines), axis=0)), 0) / 1e9
    return tuple(middle.tolist())
