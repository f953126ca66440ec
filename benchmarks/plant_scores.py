"""What dptrace says of a recorded delay, beside what the recording shows of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dptrace
from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.finding_list import FindingList
from dptrace.replay.gains import Measurer
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.pieces import MANY, Label, pieces_of_host
from dptrace.replay.transforms.roles import step_starts
from dptrace.replay.transforms.stragglers import Excess, WithoutExcesses

CLEAN = 0.03
"""Share of a step that no finding on a late rank may claim where none is late, unless it says that it can't tell."""
_MAIN = 0.2
"""Share of the largest finding on late ranks from which another one's ranks are named, too."""
_CAUSES = {
    "sleep": ("nothing_recorded", "python"),
    "collect": ("nothing_recorded", "python"),
    "loader": ("data_loading",),
    "compute": ("compute", "slower_host"),
    "allocate": ("compute", "slower_host"),
}
"""What a delay is named by how it was made; each also by a rank that had no core."""


def planted(run: dptrace.Run, spans: Mapping[str, Sequence[Sequence[int]]]) -> WithoutExcesses:
    """Return the run without what hosts did in some spans of time, by rank: starts and ends, in ns of their clocks."""
    model, labels, cuts = run.replay.model, dict[Label, int]({MANY: 0}), list[Excess]()
    for number, (process, starts) in enumerate(zip(model.processes, step_starts(model), strict=True)):
        timeline = process.timelines[0][0]
        own_spans = np.array(spans.get(str(model.run.timelines[timeline].rank), []), np.int64).reshape(-1, 2)
        own = pieces_of_host(model, number, starts, labels)
        begins = np.where(own.index < 0, own.at_ns - own.length_ns, own.at_ns)
        inside = (own.segment > 0) & (own.segment < len(starts))
        cut = np.zeros(len(own), np.int64)
        for start, end in zip(*(model.run.cross_rank.clocks.align(timeline, one) for one in own_spans.T), strict=True):
            cut += np.maximum(np.minimum(begins + own.length_ns, end) - np.maximum(begins, start), 0) * inside
        kept = np.flatnonzero(cut)
        cuts.append(Excess(number, -1, "", "", "", "", own.index[kept], own.twin[kept], cut[kept]))
    return WithoutExcesses("nothing planted", tuple(cuts))


def answer(folder: Path) -> dict[str, Any]:
    """Return what dptrace says of a recorded plant beside the truth, in ms a step."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    run = dptrace.open(folder, cache=False)
    listed, measurer = FindingList(run), Measurer(run.replay)
    found = [
        one
        for one in listed.found(lambda fraction: None)
        if one.kind == "straggler" and one.has_gain and not one.is_minor
    ]
    changes = {one.finding.text: one.change for one, _ in listed.shown}
    late = {int(rank) for rank in truth.get("spans", {})}
    own = planted(run, truth.get("spans", {}))
    there = [one for one in found if _is_planted(changes.get(one.text), own)]
    most = max((one.figure[0] for one in found), default=0)
    ranks = {rank for one in found if one.figure[0] >= _MAIN * most for rank in one.about(Straggler).ranks}
    causes = {*_CAUSES.get(truth.get("how", ""), ()), "no_core"}
    first = next(iter(found), None)
    return {
        "step": truth["step_ms"],
        "truth": truth["saved_ms"],
        "off": truth["off_ms"],
        "exact": measurer.gain_ns([own]) / 1e6 if late else 0.0,
        "saved": run.whatif(no_straggler=True).step_gain_ns / 1e6,
        "found": measurer.gain_ns([changes[one.text] for one in there]) / 1e6 if there else 0.0,
        "ranks": first.about(Straggler).ranks if first else [],
        "cause": first.about(Straggler).cause if first else "",
        "late": sorted(late),
        "rank": ranks == late,
        "place": late == {rank for one in there for rank in one.about(Straggler).ranks}
        and all(one.about(Straggler).cause in causes for one in there),
        "claimed": max((one.figure[1] for one in found if not _is_unsure(one)), default=0.0),
    }


def _is_planted(change: Change | None, own: WithoutExcesses) -> bool:
    """Return whether most of what a change cuts was planted."""
    if not isinstance(change, WithoutExcesses):
        return False
    known = {(cut.process, index) for cut in own.excesses for index in cut.index.tolist()}
    pieces: list[tuple[int, bool]] = [
        (ns, (cut.process, index) in known)
        for cut in change.excesses
        for index, ns in zip(cut.index.tolist(), cut.cut_ns.tolist(), strict=True)
    ]
    cut_ns = sum(ns for ns, _ in pieces)
    return cut_ns > 0 and 2 * sum(ns for ns, is_known in pieces if is_known) >= cut_ns


def _is_unsure(finding: Finding) -> bool:
    return "an't tell" in finding.gain.reason + finding.text


def is_near(said: float, truth: float) -> bool:
    """Return whether a size is within 10 % or 2 ms."""
    return abs(said - truth) <= max(2.0, 0.1 * truth)


def row(name: str, said: Mapping[str, Any]) -> str:
    """Return a plant's row of the table."""
    figures = " | ".join(f"{said[key]:.1f}" for key in ("step", "truth", "exact", "found", "saved"))
    if not said["late"]:
        return f"| {name} | – | {figures} | {said['claimed']:.1%} | |"
    ranks = ", ".join(map(str, said["late"]))
    marks = " | ".join("yes" if said[key] else "no" for key in ("rank", "place"))
    return f"| {name} | {ranks} | {figures} | {'yes' if is_near(said['found'], said['exact']) else 'no'} | {marks} |"


def summary(every: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many of the plants are right, and what is claimed where nobody is late."""
    late = [said for said in every.values() if said["late"]]
    clean = [said["claimed"] for said in every.values() if not said["late"]]
    counts = {
        "within 10 % or 2 ms of what its cut gains": sum(is_near(said["found"], said["exact"]) for said in late),
        "of what windows show": sum(is_near(said["found"], said["truth"]) for said in late),
        "ranks": sum(said["rank"] for said in late),
        "places": sum(said["place"] for said in late),
    }
    told = ", ".join(f"{name} {count} of {len(late)}" for name, count in counts.items())
    return f"{told}; without a delay, at most {max(clean, default=0):.1%} of a step, {len(clean)} recordings"
