"""Two watched runs side by side, from their ``summary.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dptrace.core.units import duration, sanitize, signed_duration
from dptrace.errors import DptraceError
from dptrace.watch.verdict import SUMMARY_FILE, suspect_line


def is_watch(path: str) -> bool:
    """Return whether a path is the folder of a watch that has a summary."""
    return Path(path, SUMMARY_FILE).is_file() and next(Path(path).glob("rank*.steps"), None) is not None


def compare(before: str, after: str) -> dict[str, Any]:
    """Return the figures of both runs and their differences; which suspects are new, and which are gone."""
    one, other = read_summary(before), read_summary(after)
    named = {name: (one["step_ns"][name], other["step_ns"][name]) for name in ("median", "p95", "mean", "worst")}
    for stage, times in one["stages"].items():
        named[stage] = times["own_ns"], other["stages"][stage]["own_ns"]
    waits = [sum(times["waiting_ns"] for times in side["stages"].values()) for side in (one, other)]
    named["waiting"] = waits[0], waits[1]
    keys = [[(row["rank"], row["stage"]) for row in side["suspects"]] for side in (one, other)]
    return {
        "schema": 1,
        "kind": "watch",
        "before": {"path": before, "steps": one["steps"], "ranks": one["ranks"], "mean_ns": one["step_ns"]["mean"]},
        "after": {"path": after, "steps": other["steps"], "ranks": other["ranks"], "mean_ns": other["step_ns"]["mean"]},
        "figures": [
            {"figure": name, "before_ns": a, "after_ns": b, "change_ns": b - a} for name, (a, b) in named.items()
        ],
        "new_suspects": [row for row, key in zip(other["suspects"], keys[1], strict=True) if key not in keys[0]],
        "gone_suspects": [row for row, key in zip(one["suspects"], keys[0], strict=True) if key not in keys[1]],
    }


def read_summary(folder: str) -> dict[str, Any]:
    """Return the summary of a watch.

    Raises:
        DptraceError: it is none.
    """
    path = Path(folder, SUMMARY_FILE)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == "dptrace-watch-summary" and content["schema"] == 1:
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DptraceError(f"{path} is no summary of dptrace watch. Write it again: dptrace watch {folder}")


def text(content: Mapping[str, Any]) -> str:
    """Return a comparison as text."""
    sides = (content["before"], content["after"])
    lines = [f"{mark}  {side['path']}: {side['steps']:,} steps" for mark, side in zip("AB", sides, strict=True)]
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
