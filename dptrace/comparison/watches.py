"""Watched runs side by side and over time, from their ``summary.json`` where that is of the records beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dptrace.comparison.history import ALPHA, MIN_CHANGE, MIN_RUNS, change_points
from dptrace.core.units import duration, plural, sanitize, signed_duration
from dptrace.errors import DptraceError
from dptrace.watch.follow import Follower
from dptrace.watch.records import Tail, rank_files, rank_path
from dptrace.watch.verdict import SUMMARY_FILE, suspect_line

_RECORDS = 1 << 16
"""Steps that are read at once."""


def compare(before: str, after: str, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the figures of both runs and their differences; which suspects are new, and which are gone.

    Args:
        stored: the summary of *before*, if that is not a folder.
    """
    one, other = stored or read_summary(before), read_summary(after)
    named = {name: (one["step_ns"][name], other["step_ns"][name]) for name in ("median", "p95", "mean", "worst")}
    for stage, times in one["stages"].items():
        named[stage] = times["own_ns"], other["stages"][stage]["own_ns"]
    waits = [sum(times["waiting_ns"] for times in side["stages"].values()) for side in (one, other)]
    named["waiting"] = waits[0], waits[1]
    keys = [[(row["rank"], row["stage"]) for row in side["suspects"]] for side in (one, other)]
    return {
        "schema": 1,
        "kind": "watch",
        "before": _side(before, one),
        "after": _side(after, other),
        "figures": [
            {"figure": name, "before_ns": a, "after_ns": b, "change_ns": b - a} for name, (a, b) in named.items()
        ],
        "new_suspects": [row for row, key in zip(other["suspects"], keys[1], strict=True) if key not in keys[0]],
        "gone_suspects": [row for row, key in zip(one["suspects"], keys[0], strict=True) if key not in keys[1]],
    }


def _side(path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: content[name] for name in ("steps", "ranks", "file_notes")}
    return {"path": path, **named, "mean_ns": content["step_ns"]["mean"]}


def read_summary(folder: str) -> dict[str, Any]:
    """Return the summary of a watch; where it has none, or that is not of all its records, what the records say.

    Raises:
        DptraceError: no file of it can be read.
    """
    path = Path(folder, SUMMARY_FILE)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = content["format"] == "dptrace-watch-summary" and content["schema"] == 1
        if known and _is_of_records(content, Path(folder)):
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    follower = Follower(Path(folder))
    follower.poll()
    if not follower.totals.steps:
        notes = "; ".join(follower.merger.file_notes[:2]) or "its ranks made too few steps"
        raise DptraceError(f"{folder}: is a watched run of which nothing can be compared: {notes}.")
    return follower.summary()


def _is_of_records(content: Mapping[str, Any], folder: Path) -> bool:
    """Return whether a summary is of the whole records of a folder: since, the job may go on, or a file be damaged."""
    files, damaged = rank_files(folder)
    reached = []
    for rank in files:
        last, tail = -1, Tail(rank_path(folder, rank, "steps"))
        while len(records := tail.read(_RECORDS)):
            last = int(records["step"][-1])
        if tail.problem:
            return False
        reached.append(last)
    return not damaged and (content["ranks"], content["last_step"]) == (len(files), min(reached, default=-1))


def text(content: Mapping[str, Any]) -> str:
    """Return a comparison as text."""
    lines = []
    for mark, side in zip("AB", (content["before"], content["after"]), strict=True):
        lines.append(f"{mark}  {side['path']}: {side['steps']:,} steps")
        lines += [f"   {sentence}" for sentence in side["file_notes"][:2]]
    lines += ["", f"{'per step':<12}{'A':>12}{'B':>12}{'B − A':>12}"]
    for row in content["figures"]:
        times = (
            f"{duration(row['before_ns']):>12}{duration(row['after_ns']):>12}{signed_duration(row['change_ns']):>12}"
        )
        lines.append(f"{row['figure']:<12}{times}")
    for side, rows in ((content["after"], content["new_suspects"]), (content["before"], content["gone_suspects"])):
        mark = "only in B" if side is content["after"] else "only in A"
        lines += _suspects(mark, rows, side["mean_ns"])
    return "\n".join(map(sanitize, lines))


def _suspects(mark: str, rows: Sequence[Mapping[str, Any]], mean_ns: float) -> list[str]:
    return [f"{mark}: {suspect_line(row, mean_ns)}" for row in rows]


def history(folders: Sequence[str]) -> dict[str, Any]:
    """Return the runs in the order of time, and from which run on the median step has another level.

    That is looked for only where all runs have as many ranks.
    """
    found = sorted(((read_summary(folder), folder) for folder in folders), key=lambda one: one[0]["created_unix_ns"])
    runs = [
        {
            "run": folder,
            "created_unix_ns": one["created_unix_ns"],
            "steps": one["steps"],
            "ranks": one["world_size"],
            "median_ns": one["step_ns"]["median"],
            "p95_ns": one["step_ns"]["p95"],
            "mean_ns": one["step_ns"]["mean"],
            "waiting_ns": sum(times["waiting_ns"] for times in one["stages"].values()),
            "suspect": next(iter(one["suspects"]), None),
            "cannot_tell": one["cannot_tell"],
            "file_notes": one["file_notes"],
        }
        for one, folder in found
    ]
    medians = np.array([run["median_ns"] for run in runs], np.float64)
    places: dict[int, float] = {}
    if len({run["ranks"] for run in runs}) == 1:
        places = change_points(medians, ALPHA, MIN_CHANGE * float(medians.mean()))
    bounds = [0, *places, len(runs)]
    levels = [float(medians[a:b].mean()) for a, b in pairwise(bounds)]
    changes = [
        {"run": runs[at]["run"], "index": at, "before_ns": round(before), "after_ns": round(after), "p": p}
        for (at, p), (before, after) in zip(places.items(), pairwise(levels), strict=True)
    ]
    return {"schema": 1, "kind": "watch", "runs": runs, "changes": changes}


def history_text(content: Mapping[str, Any]) -> str:
    """Return a history as text."""
    runs, changes = content["runs"], content["changes"]
    width = max(20, *(len(run["run"]) for run in runs))
    lines = [
        f"{'run':<{width}}  {'began, UTC':<16}{'ranks':>7}{'steps':>11}{'median':>10}{'p95':>10}{'waiting':>10}  late"
    ]
    for run in runs:
        began = datetime.fromtimestamp(run["created_unix_ns"] / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M")
        times = "".join(f"{duration(run[name]):>10}" for name in ("median_ns", "p95_ns", "waiting_ns"))
        lines.append(f"{run['run']:<{width}}  {began:<16}{run['ranks']:>7,}{run['steps']:>11,}{times}  {_late(run)}")
    lines += [f"{run['run']}: {sentence}." for run in runs for sentence in run["file_notes"][:2]]
    for change in changes:
        levels = f"{duration(change['after_ns'])} instead of {duration(change['before_ns'])}"
        lines.append(f"From {change['run']} on, a median step takes {levels}.")
    if not changes and len({run["ranks"] for run in runs}) > 1:
        lines.append("The runs have different numbers of ranks, so no change is looked for.")
    elif not changes:
        few = f" (fewer than {MIN_RUNS} can't show one)" if len(runs) < MIN_RUNS else ""
        lines.append(f"No change in {plural(len(runs), 'run')}{few}.")
    return "\n".join(map(sanitize, lines))


def _late(run: Mapping[str, Any]) -> str:
    """Return whom a run was late for, in a cell."""
    if (row := run["suspect"]) is None:
        return "unknown" if run["cannot_tell"] else "–"
    who = "ranks in turn" if row["rank"] is None else f"rank {row['rank']}"
    return f"{who} in {row['stage']}, {duration(row['ns_per_step'])}"
