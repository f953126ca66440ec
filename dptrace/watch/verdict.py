"""What a watch says at its end: how long steps were, who was late, where and since when, and what changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptrace.core.units import duration, plural, share
from dptrace.watch.account import Batch, Merger, lower_median_of_others
from dptrace.watch.digest import CENTRES, Courses, Floats, Histograms
from dptrace.watch.records import STAGES

SUMMARY_FILE = "summary.json"
SCHEMA = 1
SKIPPED_STEPS = 3
"""The first steps, in which torch allocates, compiles and learns its buckets, count nowhere."""
_LEAST_NS, _LEAST_STEP, _LEAST_SHARE = 2e6, 0.05, 0.03
"""A rank is late in a step by at least that, in ns and as a share of the typical step; and what that costs all steps is
at least a share of them."""
_SMALL_NS, _SMALL_SHARE, _SMALL_STEPS, _CONSISTENT = 0.4e6, 0.012, 40, 0.8
"""A smaller lateness counts, in ns and as a share of the typical step, if there are that many steps and it is in this
share of them."""
_MOVES_BETWEEN, _MOVING_RANK_SHARE = 3, 0.6
"""Lateness moves between ranks if there are at least so many, none of which has this share of it."""
_CORE_SHARE, CORE_SHARE_MOVING = 0.4, 0.6
"""Lateness of one rank, and of several in turn, is noise up to this share of what a rank waited for a core. In 36
trainings on two cores that six other jobs used it was up to 0.27 and 0.47; of ranks slow by plan, save one, 0.41 to 2.
"""
_NEARLY_ALL, _COLUMNS, _PARTS, _AHEAD, _BEYOND_CORES = 0.8, 20, 10, 4.5, 1.5
"""However long ranks waited for cores, a lateness is known that is there in nearly all of at least so many columns, or
larger than any other rank's by so many standard errors over so many parts of them; and larger by this factor than what
that rank waited for a core beyond the others."""
_LEVEL_SHARE, _LEVEL_NS = 0.1, 1e6
"""A level of step time that counts as another one."""
_ALL_STEPS = 0.995
"""A share of the steps that is all of them in whole percent."""


class Totals:
    """All steps so far, in fixed memory."""

    def __init__(self, ranks: Sequence[int]) -> None:
        size = len(ranks)
        self.ranks = tuple(ranks)
        self.steps = self.profiled = self.last_step = 0
        self.lengths, self.late = Histograms(), Histograms(size, len(STAGES))
        self.length_course = Courses()
        self.late_course = Courses(size, len(STAGES))
        self.stage_course = Courses(len(STAGES))
        """The own time of each stage, of the rank that takes least."""
        self.own_course, self.core_course = Courses(size, len(STAGES)), Courses(size)
        """The own time of each rank and stage, and what each rank has waited for a core."""
        self.memory_course = Courses(size)
        self.own, self.waiting, self.gain = (np.zeros((size, len(STAGES))) for _ in range(3))
        self.exposed, self.core_wait = np.zeros(len(STAGES)), np.zeros(size)
        self.length_ns, self.worst_ns, self.worst_step = 0.0, 0.0, 0
        self.items, self.are_tokens = 0, False
        self.lateness_known = False

    def add(self, batch: Batch) -> Batch | None:
        """Add steps, without the first ones and those with the profiler; return what was added."""
        kept = (batch.steps > SKIPPED_STEPS) & ~batch.profiled
        self.profiled += int(batch.profiled.sum())
        self.last_step = int(batch.steps[-1])
        if not kept.any():
            return None
        batch = _part(batch, kept)
        length = batch.length.max(0)
        self.steps += len(length)
        self.lengths.add(length)
        self.length_ns += float(length.sum())
        if length.max() > self.worst_ns:
            self.worst_ns, self.worst_step = float(length.max()), int(batch.steps[length.argmax()])
        self.length_course.add(batch.steps, length)
        self.stage_course.add(batch.steps, batch.own.min(0).T)
        self.own_course.add(batch.steps, batch.own.swapaxes(1, 2))
        self.core_course.add(batch.steps, batch.core_wait)
        self.memory_course.add(batch.steps, batch.memory.astype(np.float64))
        self.own += batch.own.sum(1)
        self.waiting += batch.waiting.sum(1)
        self.exposed += batch.frontier().sum(0)
        self.core_wait += batch.core_wait.sum(1)
        self.items, self.are_tokens = self.items + int(batch.items.sum()), self.are_tokens or batch.are_tokens
        if batch.late is not None and batch.gain is not None:
            self.lateness_known = True
            self.late.add(batch.late.swapaxes(1, 2))
            self.late_course.add(batch.steps, batch.late.swapaxes(1, 2))
            self.gain += batch.gain.sum(1)
        return batch

    @property
    def typical_ns(self) -> float:
        """The median step."""
        return self.lengths.quantile(0.5)


_BY_STEP = ("length", "own", "waiting", "late", "gain", "memory", "items", "core_wait")


def _part(batch: Batch, kept: Any) -> Batch:
    """Return some of the steps."""
    cut = {name: getattr(batch, name) for name in _BY_STEP}
    cut = {name: None if array is None else array[:, kept] for name, array in cut.items()}
    return replace(batch, steps=batch.steps[kept], profiled=batch.profiled[kept], **cut)


@dataclass(slots=True)
class Suspect:
    """A rank, or none if the cause moves between ranks, that makes others wait because a stage of it takes longer."""

    rank: int | None
    stage: str
    ns_per_step: float
    ns_each: float
    """The median of the steps in which it was late."""
    share: float
    """Of all steps."""
    gain_ns: float
    """What a step would gain if this rank alone came as early as the next."""
    first_step: int
    last_step: int
    hit_ns: float
    """All that was above the limit, in all steps."""
    stands_out: bool = False
    """Whether waiting for cores cannot explain it."""


def suspects(totals: Totals) -> list[Suspect]:
    """Return who is late, the largest first.

    A rank is suspect in a stage if it was late by more than 2 ms, and 5 % of the median step, in three steps or more
    which make 3 % of all step time; or if it was late by less, but in four steps of five and three times as much as
    any other rank. The same stage of several ranks in turn is one suspect without a rank. What costs less than the
    ranks waited for a core may be due to that, unless it stands out.
    """
    if not totals.lateness_known or not totals.steps:
        return []
    least = max(_LEAST_NS, _LEAST_STEP * totals.typical_ns)
    hits, hit_ns = totals.late.above(least)
    found: list[Suspect] = []
    small: list[Suspect] = []
    for place in np.argwhere(totals.late.counts.any(2)):
        at = int(place[0]), int(place[1])
        row = _row(totals, at, int(hits[at]), float(hit_ns[at]))
        is_large = hits[at] >= 3 and hit_ns[at] >= _LEAST_SHARE * totals.typical_ns * totals.steps
        (found if is_large or _is_steady(totals, at) else small).append(row)
    for stage in STAGES:
        found = _moving([row for row in found + small if row.stage == stage], found, totals, least)
    wait = _core_wait(totals)
    noise = {True: CORE_SHARE_MOVING * wait, False: _CORE_SHARE * wait}
    kept = [row for row in found if row.stands_out or row.ns_per_step > noise[row.rank is None]]
    return sorted(kept, key=lambda row: -row.ns_per_step)


def _core_wait(totals: Totals) -> float:
    """Return what the rank that waited most for a core of its machine has waited per step."""
    return float(totals.core_wait.max(initial=0)) / max(1, totals.steps)


def _row(totals: Totals, at: tuple[int, int], hits: int, hit_ns: float) -> Suspect:
    course = totals.late_course
    filled = course.filled
    sums = course.sums[at][filled].astype(np.float64)
    begin, end = _window(sums / course.counts[filled], course.largest[at][filled])
    inside = filled[begin:end]
    steps = course.counts[inside].sum()
    whole_ns = float(sums[begin:end].sum())
    nearly_all, stands_out = _constancy(totals, at, inside)
    steady = _is_steady(totals, at)
    # Where nearly all steps of the window are late, the rest of it counts too, not only what is above the limit.
    constant = nearly_all or stands_out or steady
    if constant:
        # Noise of the other stages takes a part of each step's lateness; it does not take any of the means.
        inside = filled if steady else inside
        own = totals.own_course.sums[:, at[1], inside].sum(1, dtype=np.float64)
        lost_ns = _CORE_SHARE * float(totals.core_course.sums[:, inside].sum(1).max())
        whole_ns = max(whole_ns, min(_beyond(own, at[0]), float(course.sums[at[0]][:, inside].sum()) + lost_ns))
    counts = totals.late.counts[at] * (CENTRES >= (0 if not hits else max(_LEAST_NS, _LEAST_STEP * totals.typical_ns)))
    each = float(CENTRES[np.searchsorted(counts.cumsum(), counts.sum() / 2)]) if counts.any() else 0.0
    gain = float(totals.gain[at]) / totals.steps
    last = int(filled[max(begin, end - 1)]) * course.width + course.width - 1
    return Suspect(
        rank=totals.ranks[at[0]],
        stage=STAGES[at[1]],
        ns_per_step=(max(whole_ns, hit_ns) if constant or (steps >= 10 and hits > 0.8 * steps) else hit_ns)
        / totals.steps,
        ns_each=each,
        share=(hits or int(counts.sum())) / totals.steps,
        gain_ns=gain,
        first_step=course.first_step(begin),
        last_step=min(last, totals.last_step),
        hit_ns=hit_ns,
        stands_out=stands_out,
    )


def _beyond(values: Floats, place: int) -> float:
    """Return by how much one value exceeds the lower median of the others."""
    return float(values[place] - lower_median_of_others(values[None])[0, place]) if len(values) > 1 else 0.0


def _constancy(totals: Totals, at: tuple[int, int], columns: Any) -> tuple[bool, bool]:
    """Return whether a rank is late in nearly all of these columns, and whether that or its lead is no noise."""
    if len(columns) < _COLUMNS:
        return False, False
    course, counts = totals.late_course, totals.late_course.counts[columns]
    means = course.sums[:, at[1], columns].astype(np.float64) / counts
    mine = means[at[0]]
    nearly_all = bool((mine > 0.4 * mine.mean()).mean() >= _NEARLY_ALL)
    parts = np.stack([part.mean(1) for part in np.array_split(means, _PARTS, axis=1)])
    ahead = parts[:, at[0]] - np.delete(parts, at[0], 1).max(1, initial=0)
    leads = ahead.mean() > _AHEAD * ahead.std(ddof=1) / math.sqrt(_PARTS)
    waited = totals.core_course.sums[:, columns].sum(1, dtype=np.float64) / counts.sum()
    explained = _BEYOND_CORES * _beyond(waited, at[0])
    own = totals.own_course.sums[:, at[1], columns].sum(1, dtype=np.float64)
    # A rank that is late in a stage in which it spends no more time than others was late before it.
    return nearly_all, bool((nearly_all or leads) and mine.mean() > explained and _beyond(own, at[0]) > 0)


def _is_steady(totals: Totals, at: tuple[int, int]) -> bool:
    """Return whether a small lateness stands out from the noise of the run itself."""
    mean = totals.late_course.sums[at].sum() / totals.steps
    if totals.steps < _SMALL_STEPS or mean < max(_SMALL_NS, _SMALL_SHARE * totals.typical_ns):
        return False
    others = np.delete(totals.late_course.sums[:, at[1]].sum(1) / totals.steps, at[0])
    count = int(totals.late.above(0.4 * mean)[0][at])
    # What is large on average may miss the limit in half of the steps, where these are noisy.
    least = 0.5 if mean > _LEAST_SHARE * totals.typical_ns else _CONSISTENT
    return bool(count > least * totals.steps and (not len(others) or mean > 3 * others.max()))


def _window(means: Floats, largest: Floats) -> tuple[int, int]:
    """Return the columns in which lateness is concentrated: the largest sum of what exceeds half of it."""
    top = largest > _LEAST_NS
    if not top.any():
        return 0, len(means)
    level = float(np.median(means[top])) * min(0.5, float(top.mean()))
    best, into, total, start = 0.0, (0, len(means)), 0.0, 0
    for column, value in enumerate(means - level):
        if total <= 0:
            total, start = 0.0, column
        total += value
        if total > best:
            best, into = total, (start, column + 1)
    return into


def _moving(same: list[Suspect], found: list[Suspect], totals: Totals, least: float) -> list[Suspect]:
    """Replace suspects by one without a rank if a stage is late on several ranks in turn; forget those of jitter."""
    hits = [row for row in same if row.hit_ns > 0]
    total = sum(row.hit_ns for row in hits)
    typical = totals.typical_ns
    several = sum(row.hit_ns > 0.1 * total for row in hits)
    if several < 2 or max(row.hit_ns for row in hits) >= _MOVING_RANK_SHARE * total:
        return found
    if total < _LEAST_SHARE * typical * totals.steps:
        return found
    if any(row in hits and (row.stands_out or row.share > _CONSISTENT) for row in found):
        return found
    rest = [row for row in found if row.stage != hits[0].stage]
    each = float(np.median([row.ns_each for row in hits]))
    if each < max(2.5 * least, 0.15 * typical):
        return rest  # jitter of the machine, not a cause
    if several < _MOVES_BETWEEN:
        return found
    gain, part = sum(row.gain_ns for row in hits), sum(row.share for row in hits)
    first, last = min(row.first_step for row in hits), max(row.last_step for row in hits)
    moving = Suspect(*(None, hits[0].stage, total / totals.steps, each, min(1.0, part), gain, first, last, total))
    return [*rest, moving]


def change(totals: Totals) -> dict[str, Any] | None:
    """Return from which step on steps take another time, for good, and which stage of all ranks does; None if none."""
    means = totals.length_course.means()
    if len(means) < 20:
        return None
    best = max(range(5, len(means) - 5), key=lambda at: _contrast(means, at))
    before, after = float(np.median(means[:best])), float(np.median(means[best:]))
    spread = float(np.median(np.abs(means[:best] - before)) + np.median(np.abs(means[best:] - after)))
    if abs(after - before) < max(_LEVEL_SHARE * before, _LEVEL_NS, 4 * spread):
        return None
    stages = totals.stage_course.means()
    moved = [float(np.median(course[best:]) - np.median(course[:best])) for course in stages]
    most = int(np.argmax(np.abs(moved)))
    of_all = abs(moved[most]) > 0.5 * abs(after - before) and moved[most] * (after - before) > 0
    return {
        "first_step": totals.length_course.first_step(best),
        "before_ns": round(before),
        "after_ns": round(after),
        "stage": STAGES[most] if of_all else None,
    }


def _contrast(means: Floats, at: int) -> float:
    """Return how much two parts differ, as their sum of squares between them."""
    one, other = means[:at].mean(), means[at:].mean()
    return float((one - other) ** 2 * at * (len(means) - at))


def drift(totals: Totals) -> float:
    """Return by how many ns a step has grown per 1,000 steps, as the median slope between the halves of the run.

    0 unless a sign test holds it for beyond doubt: where steps only vary, half of the slopes are positive, and their
    number strays from that by more than three standard deviations in 1 of 400 runs.
    """
    means, width = totals.length_course.means(), totals.length_course.width
    half = len(means) // 2
    slopes = (means[half : 2 * half] - means[:half]) / max(1, half * width)
    if half < 10 or abs(int(np.sign(slopes).sum())) <= 3 * half**0.5:
        return 0.0
    return float(np.median(slopes)) * 1000


def cannot_tell(totals: Totals, world_size: int) -> str | None:
    """Return why nothing is known of who is late in a job of so many ranks; None if it is."""
    if totals.lateness_known:
        wait = _core_wait(totals)
        if wait <= _LEAST_SHARE * totals.typical_ns or suspects(totals):
            return None
        return (
            f"a rank waited {duration(wait)} per step for a core, which other processes of its machine had; lateness "
            f"of up to {duration(CORE_SHARE_MOVING * wait)} per step may come from that"
        )
    if len(totals.ranks) < 2:
        if world_size < 2 or not totals.ranks:
            return "there is one rank, which waits for no other"
        others = f"rank {1 - totals.ranks[0]}" if world_size == 2 else f"the other {world_size - 1:,}"
        return f"the job has {world_size:,} ranks, and the files of {others} are missing or damaged"
    return (
        "no collective was seen that the ranks called from Python, nor DistributedDataParallel; functional collectives "
        "and compiled graphs are not seen"
    )


def summary(totals: Totals, merger: Merger, captures: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the content of summary.json; docs/reference/watch-folder.md describes it."""
    steps = max(1, totals.steps)
    device = np.array([timed[:-1] / timed[-1] for timed in merger.device.values()])
    hosts = {rank: file.host for rank, file in merger.files.items()}
    stages = {
        stage: {
            "own_ns": round(_median(totals.own[:, place]) / steps),
            "waiting_ns": round(_median(totals.waiting[:, place]) / steps),
            "exposed_ns": round(float(totals.exposed[place]) / steps),
            "device_ns": round(_median(device[:, place])) if len(device) else None,
        }
        for place, stage in enumerate(STAGES)
    }
    rate = totals.items / (totals.length_ns / 1e9) if totals.items and totals.length_ns else None
    files = list(merger.files.values())
    world_size = max((file.world_size for file in files), default=0)
    return {
        "schema": SCHEMA,
        "format": "dptrace-watch-summary",
        "created_unix_ns": min((file.unix_ns for file in files), default=0),
        "steps": totals.steps,
        "last_step": totals.last_step,
        "profiled_steps": totals.profiled,
        "ranks": len(totals.ranks),
        "world_size": world_size,
        "hosts": len(set(hosts.values())),
        "step_ns": {
            "median": round(totals.typical_ns),
            "p95": round(totals.lengths.quantile(0.95)),
            "mean": round(totals.length_ns / steps),
            "worst": round(totals.worst_ns),
            "worst_step": totals.worst_step,
        },
        "stages": stages,
        "suspects": _described(suspects(totals), hosts),
        "cannot_tell": cannot_tell(totals, world_size),
        "core_wait_ns": round(_core_wait(totals)),
        "change": change(totals),
        "drift_ns_per_1000_steps": round(drift(totals)),
        "memory": _memory(totals),
        ("tokens" if totals.are_tokens else "samples") + "_per_s": rate,
        "captures": [dict(capture) for capture in captures],
        "file_notes": merger.file_notes,
    }


def _median(values: Floats) -> float:
    """Return the lower median, which is some rank's."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else 0.0


def _memory(totals: Totals) -> dict[str, Any] | None:
    means = totals.memory_course.means()
    if not means.size or means.max() <= 0:
        return None
    part = max(1, means.shape[1] // 10)
    grown = np.median(means[:, -part:], 1) - np.median(means[:, :part], 1)
    return {"largest": int(totals.memory_course.largest.max()), "grown": int(grown.max())}


def _described(found: list[Suspect], hosts: Mapping[int, str]) -> list[dict[str, Any]]:
    late = {row.rank for row in found if row.rank is not None}
    described = []
    for row in found:
        host = None if row.rank is None else hosts.get(row.rank)
        others = {rank for rank, other in hosts.items() if other == host}
        is_node = len(others) > 1 and others <= late and len(others) < len(hosts)
        described.append(
            {
                "rank": row.rank,
                "stage": row.stage,
                "host": host,
                "scope": "moving" if row.rank is None else "node" if is_node else "rank",
                "ns_per_step": round(row.ns_per_step),
                "ns_each": round(row.ns_each),
                "share_of_steps": round(row.share, 4),
                "gain_alone_ns": round(row.gain_ns),
                "first_step": row.first_step,
                "last_step": row.last_step,
            }
        )
    return described


def suspect_line(row: Mapping[str, Any], mean_ns: float) -> str:
    """Return one suspect as a line."""
    who = "each rank in turn" if row["rank"] is None else f"rank {row['rank']}"
    who += " (as all of its machine)" if row["scope"] == "node" else ""
    of_step = f" ({share(row['ns_per_step'] / mean_ns)} of the mean)" if mean_ns else ""
    each = f", {duration(row['ns_each'])} in {share(row['share_of_steps'])} of steps"
    cost = f"{duration(row['ns_per_step'])} per step{of_step}{each if row['share_of_steps'] < _ALL_STEPS else ''}"
    return f"late    {who} in {row['stage']}: {cost}, from step {row['first_step']:,} to {row['last_step']:,}"


def lines(content: Mapping[str, Any]) -> list[str]:
    """Return the verdict, ten lines at most."""
    step, stages = content["step_ns"], content["stages"]
    notes = [f"files   {sentence}" for sentence in content["file_notes"][:2]]
    if not content["steps"]:
        made = plural(content["last_step"] + 1, "step") + " of all ranks" if content["last_step"] else "no step"
        return [f"No verdict: {made} can be read; the first {SKIPPED_STEPS + 1} count nowhere.", *notes]
    ranks = plural(content["world_size"], "rank")
    if content["ranks"] < content["world_size"]:
        ranks = f"{content['ranks']} of {ranks}, whose files are here{' and whole' if notes else ''}"
    length = ", ".join(f"{name} {duration(step[name])}" for name in ("mean", "median", "p95", "worst"))
    own = ", ".join(f"{name} {duration(stage['own_ns'])}" for name, stage in stages.items())
    waiting = duration(sum(stage["waiting_ns"] for stage in stages.values()))
    recorded = f", without {content['profiled_steps']:,} under the profiler" if content["profiled_steps"] else ""
    text = [suspect_line(row, step["mean"]) for row in content["suspects"][:3]]
    if content["cannot_tell"]:
        text.append(f"late    unknown, because {content['cannot_tell']}")
    elif not text:
        text.append("late    no rank")
    text += [
        f"steps   {content['steps']:,} of {ranks}{recorded}: {length} at step {step['worst_step']:,}",
        f"stages  {own}; waiting {waiting} (median rank, host clock)",
    ]
    text += notes
    if all(stage["device_ns"] is not None for stage in stages.values()):
        timed = ", ".join(f"{name} {duration(stage['device_ns'])}" for name, stage in stages.items())
        text.append(f"device  {timed} (median rank, from border to border on the GPU)")
    if found := content["change"]:
        what = f": {found['stage']} of all ranks" if found["stage"] else ""
        text.append(
            f"change  from step {found['first_step']:,} on, a step takes {duration(found['after_ns'])} instead of "
            f"{duration(found['before_ns'])}{what}"
        )
    drifted = content["drift_ns_per_1000_steps"] * content["steps"] / 2000
    if abs(drifted) > max(0.05 * step["median"], content["core_wait_ns"]) and not found:
        sign = "+" if drifted > 0 else "−"
        text.append(f"drift   {sign}{duration(abs(drifted))} a step from the first half of the steps to the second")
    if memory := content["memory"]:
        grown = f", grown by {memory['grown'] / 2**20:,.0f} MiB" if memory["grown"] > 2**20 else ""
        text.append(f"memory  at most {memory['largest'] / 2**20:,.0f} MiB on a rank{grown}")
    lost = [*content.get("lost_ranks", {}).items()][:2]
    text += [f"lost    rank {rank} ended without a word after step {step:,}" for rank, step in lost]
    text += [capture["sentence"] for capture in content["captures"][:2]]
    return text[:10]
