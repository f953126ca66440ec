"""The page of two or more runs on one time axis, aligned by step, with the time that each saves over the first.

Example::

    from dptrace.viewers.gantt.page.pair import document
    html = document(dptrace.open("runs/naive"), dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from dptrace.analysis.cross_rank.transfers import beside_waiting, sum_of_waits
from dptrace.comparison.sides import drawn_differences
from dptrace.comparison.step_alignment import LETTERS, AlignedSteps, RunSteps, align_runs
from dptrace.core.intervals import Int64, repeated
from dptrace.core.units import sanitize
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import Headline, drawn_headline, headline
from dptrace.viewers.base.page import Markup, static
from dptrace.viewers.base.table import step_label
from dptrace.viewers.base.time_saved import notes_of_all, time_saved_sentence, titles
from dptrace.viewers.gantt.chart import Chart, Lane, Role, Strip, chart, unknown_figures, why_unknown
from dptrace.viewers.gantt.gaps import named_gaps
from dptrace.viewers.gantt.page.data import rank_reasons, scene
from dptrace.viewers.gantt.page.document import MAX_INTERVALS, gantt_page

# Runs as one chart: A's GPUs above B's, every interval moved to its step's place on the common axis. Each run but A
# comes as a pair with it.


_WHOLE = {Role.COMPUTE, Role.COLLECTIVES, Role.MEMORY}
"""Lanes of recorded intervals, which keep their true length. The pieces of the other lanes are cut at the steps, so
that the figures of every window are exact."""


def _sides(pairs: Sequence[AlignedSteps]) -> list[tuple[AlignedSteps, int]]:
    """Return each run as its pair and its place in it: A, then the others."""
    return [(pairs[0], 0), *((pair, 1) for pair in pairs)]


def paired_chart(*pairs: AlignedSteps, charts: Sequence[Chart] = ()) -> Chart:
    """Build the chart of all runs on their common axis.

    Args:
        charts: those of the runs, if they already exist.
    """
    waits = sum_of_waits(one for pair, which in _sides(pairs) for one in pair.runs[which].run.cross_rank.exposed_waits)
    whole = Chart(0, int(pairs[0].slots_ns[-1]), (), (), (), (), (), exposed=beside_waiting(waits))
    for (pair, which), one in zip(_sides(pairs), charts or _charts(pairs), strict=True):
        side, first = _side(pair, which, one), len(whole.tracks)
        moved = [_renumbered(lane, first, len(whole.names), len(whole.collectives)) for lane in side.lanes]
        strip = Strip(tuple(range(first, first + len(side.tracks))), side.tracks[0].steps, side.tracks[0].run)
        whole = replace(
            whole,
            tracks=(*whole.tracks, *side.tracks),
            strips=(*whole.strips, strip),
            lanes=(*whole.lanes, *moved),
            names=(*whole.names, *side.names),
            collectives=(*whole.collectives, *side.collectives),
        )
    return whole


def _charts(pairs: Sequence[AlignedSteps]) -> list[Chart]:
    return [chart(pair.runs[which].run) for pair, which in _sides(pairs)]


def _side(aligned: AlignedSteps, which: int, gantt_chart: Chart) -> Chart:
    """Return the chart of one of the runs with its steps moved to their places."""
    one, shifts = aligned.runs[which], aligned.shifts(which)
    begin, end = gantt_chart.place(one.start_ns), gantt_chart.place(one.end_ns)
    by = shifts + one.start_ns - begin
    lanes = tuple(_moved(lane, begin[lane.track], end[lane.track], by[lane.track]) for lane in gantt_chart.lanes)
    tracks = tuple(
        replace(
            t,
            steps=one.names,
            bounds_ns=np.append(begin[i] + by[i], end[i][-1] + by[i][-1]),
            run=aligned.names[which],
            ends_ns=end[i] + by[i],
        )
        for i, t in enumerate(gantt_chart.tracks)
    )
    return replace(gantt_chart, tracks=tracks, lanes=lanes)


def _moved(lane: Lane, begin: Int64, end: Int64, by: Int64) -> Lane:
    """Move the intervals inside the steps; begin, end and by have an entry per step."""
    starts, ends = lane.start_ns, lane.start_ns + lane.duration_ns
    first = np.searchsorted(end, starts, side="right")
    stop = np.searchsorted(begin, ends, side="left")
    if lane.role in _WHOLE:
        stop = np.minimum(stop, first + 1)
    source, nth = repeated(np.maximum(stop - first, 0))
    step = first[source] + nth
    starts, ends = starts[source], ends[source]
    if lane.role not in _WHOLE:
        starts, ends = np.maximum(starts, begin[step]), np.minimum(ends, end[step])
    starts, lengths = starts + by[step], ends - starts
    order = np.argsort(starts, kind="stable")
    source = source[order]
    return replace(
        lane,
        start_ns=starts[order],
        duration_ns=lengths[order],
        category=lane.category[source],
        name=lane.name[source],
        stream=lane.stream[source],
        exposed_ns=lane.exposed_ns[source] if len(lane.exposed_ns) else lane.exposed_ns,
        wait_ns=lane.wait_ns[source] if len(lane.wait_ns) else lane.wait_ns,
        waits_for=lane.waits_for[source] if len(lane.waits_for) else lane.waits_for,
    )


def _renumbered(lane: Lane, tracks: int, names: int, collectives: int) -> Lane:
    """Renumber a lane of a run whose tracks and names come after others."""
    of_collectives = lane.role in (Role.COLLECTIVES, Role.EXPOSURE)
    by = collectives if of_collectives else names if lane.role in _WHOLE else 0
    # Labels are numbered from 1; 0 means no label.
    name = np.where(lane.name > 0, lane.name + names, 0) if lane.role is Role.PHASE_LABELS else lane.name + by
    return replace(lane, track=lane.track + tracks, name=name)


def paired_scene(*pairs: AlignedSteps) -> tuple[Chart, dict[str, Any]]:
    """Return the chart of some runs and the page's data."""
    charts = _charts(pairs)
    gantt_chart = paired_chart(*pairs, charts=charts)
    page_data = scene(gantt_chart) | {"why": {}, "gaps": {"texts": [], "tracks": {}}, "groups": []}
    for number, (pair, which) in enumerate(_sides(pairs)):
        one, place, strip, name = pair.runs[which], pair.place_ns[which], page_data["strips"][number], pair.names[which]
        waits, first = why_unknown(one.run), strip["tracks"][0]
        for own, (data, track) in enumerate(
            (page_data["tracks"][track], gantt_chart.tracks[track]) for track in strip["tracks"]
        ):
            spans = one.step_index[own], track.bounds_ns[:-1], track.ends_ns
            data |= unknown_figures(one.run, own, *spans, waits)
        ends = place + one.length_ns
        strip |= {"title": _title(one), "bounds": [*place.tolist(), int(ends[-1])], "ends": ends.tolist()}
        strip["ns"] = one.mean_ns.tolist()
        is_step = name not in LETTERS
        whose = name if is_step else f"step{'s' if len(one.names) > 1 else ''} of {name}"
        page_data["layout"]["strips"][number]["label"] = whose
        if len(strip["tracks"]) > 1 and not is_step:
            page_data["why"] |= {first + track: why for track, why in rank_reasons(one.run, charts[number]).items()}
        _add_gaps(page_data["gaps"], pair, which, charts[number], first)
        label = name if is_step else f"{name} · {_group_name(one)}"
        group = {"label": label, "tracks": list(strip["tracks"]), "unknownWaits": waits}
        page_data["groups"].append(group)
    if pairs[0].by_step:
        page_data["slots"] = pairs[0].slots_ns.tolist()
    page_data["freed"] = [freed for number, pair in enumerate(pairs, 1) for freed in _freed(pair, number, len(pairs))]
    return gantt_chart, page_data


def _freed(pair: AlignedSteps, number: int, pairs: int) -> list[dict[str, Any]]:
    """Return the time that a run saves over A; what it loses is marked at A, of two runs alone."""
    return [
        {"strip": number * f.run, "from": f.from_ns, "to": f.to_ns, "ns": f.saved_ns, "share": f.share}
        | {"certain": f.certain}
        | ({} if f.run else {"who": pair.names[1]})
        for f in pair.time_saved()
        if f.run or pairs == 1
    ]


def _add_gaps(gaps: dict[str, Any], aligned: AlignedSteps, which: int, own: Chart, first: int) -> None:
    """Add a run's named gaps, at the place of the step that has all of each; *first* is the run's first track."""
    one = aligned.runs[which]
    begins, ends = own.place(one.start_ns), own.place(one.end_ns)
    by = aligned.shifts(which) + one.start_ns - begins
    named = named_gaps(one.run, own)
    for track, found in ((int(number), found) for number, found in named["tracks"].items()):
        places = zip(np.searchsorted(ends[track], [gap[0] for gap in found], side="right").tolist(), found, strict=True)
        gaps["tracks"][str(first + track)] = [
            [start + by[track, step].item(), end + by[track, step].item(), len(gaps["texts"]) + text, ns]
            for step, (start, end, text, ns) in places
            if step < len(one.names) and begins[track, step] <= start and end <= ends[track, step]
        ]
    gaps["texts"] += named["texts"]


def _title(one: RunSteps) -> str:
    return headline(one.run).title


def _group_name(one: RunSteps) -> str:
    """Return the run's name, or its step's if there is only one."""
    return _title(one) if len(one.names) > 1 else f"step {step_label(sanitize(one.names[0]))}"


_NOTHING = Markup("")


@dataclass(frozen=True, slots=True)
class StepPages:
    """Answers a served page's requests for some of its steps side by side: pages of their own."""

    run: Run

    def __call__(self, request: str) -> bytes | None:
        """Return the page of steps by number, ``4,6``, or why there is none; None if the request is not valid."""
        numbers = request.split(",")
        if not (1 < len(numbers) <= len(LETTERS) and all(re.fullmatch("[0-9]{1,12}", number) for number in numbers)):
            return None
        try:
            steps = (self.run.select(steps=int(number)) for number in numbers)
            return document(*steps, steps=[f"step {number}" for number in numbers]).encode()
        except DptraceError as error:
            return f"<!DOCTYPE html><title>dptrace</title><p>{escape(sanitize(str(error)))}</p>".encode()


def document(*runs: Run, by_step: bool = True, verdict: Sequence[str] = (), steps: Sequence[str] = ()) -> str:
    """Draw two or more runs as one HTML page.

    Args:
        by_step: align each pair of steps; otherwise only the first.
        verdict: sentences above the chart where B is a prediction, which no statistics of recordings are about.
        steps: what the runs are called where they are steps of one run, which are not compared as recordings.

    Raises:
        DptraceError: a run has no step, or there are more intervals than a page can hold.
    """
    names = steps or LETTERS
    pairs = align_runs(runs, by_step, not (verdict or steps), names)
    drawn = [note for pair in pairs for note in (*pair.notes, *(pair.comparison.notes if pair.comparison else ()))]
    return picture(pairs, (*notes_of_all(*runs, names=names), *dict.fromkeys(drawn)), _above(pairs, verdict))


def picture(pairs: Sequence[AlignedSteps], notes: tuple[str, ...], above: Markup, below: Markup = _NOTHING) -> str:
    """Render the page of aligned runs.

    Args:
        above, below: escaped HTML above and below the chart.
    """
    gantt_chart, page_data = paired_scene(*pairs)
    if len(gantt_chart) > MAX_INTERVALS:
        raise DptraceError(
            f"{len(gantt_chart):,} intervals to draw; one page holds at most {MAX_INTERVALS:,}. Select fewer ranks or "
            "steps, for example with --ranks 0,1 or --steps A:B."
        )
    runs = [pair.runs[which].run for pair, which in _sides(pairs)]
    head = Headline(titles(*runs), " → ".join(run.path for run in runs), (), tuple(map(sanitize, notes)))
    return gantt_page(head, page_data, above, below, static("base", "compare.css"))


def _above(pairs: Sequence[AlignedSteps], verdict: Sequence[str]) -> Markup:
    heads = [drawn_headline(pair.runs[which].run) for pair, which in _sides(pairs)]
    names = [pair.names[which] for pair, which in _sides(pairs)]
    lines = [
        Markup('<p class="runs"><b>{}</b> {}</p>').format(name, sanitize(" · ".join((head.title, *head.facts))))
        for name, head in zip(names, heads, strict=True)
    ]
    said = answers(pairs[0], verdict) if len(pairs) == 1 else [(time_saved_sentence(pair), False) for pair in pairs]
    answer = Markup("\n").join(
        Markup('<p class="answer{}">{}</p>').format(" quiet" * quiet, text) for text, quiet in said
    )
    differences = dict.fromkeys(
        text for pair in pairs for text in drawn_differences(pair.a.run, pair.b.run, pair.names)
    )
    items = Markup("").join(Markup("<li>{}</li>").format(text) for text in differences)
    listed = Markup('<ul class="differs">{}</ul>').format(items) if items else Markup("")
    return Markup("\n").join([*lines, listed, answer, Markup("")])


def answers(aligned: AlignedSteps, verdict: Sequence[str] = ()) -> list[tuple[str, bool]]:
    """Return the sentences above the chart, and whether each is quiet: the verdict, and what the drawn steps take."""
    if verdict:
        return [(sanitize(text), number > 0) for number, text in enumerate(verdict)]
    if aligned.comparison is None:
        return [(time_saved_sentence(aligned), bool(aligned.incomparable))]
    return [(aligned.comparison.summary(), False), (time_saved_sentence(aligned), True)]
