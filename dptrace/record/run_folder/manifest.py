"""run.json: a run's metadata, combined from that of each rank; docs/reference/run-folder.md describes it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dptrace.core.units import duration, plural
from dptrace.record.run_folder.folder import RUN_FILE, SCHEMA
from dptrace.record.run_folder.messages import read_messages, write_json

__all__ = [
    "add_overhead",
    "cpu_overhead",
    "launch_metadata",
    "manifest",
    "mean_losses",
    "missing_ranks_note",
    "overhead",
    "overhead_figures",
    "overhead_range",
    "restart_notes",
    "write_manifest",
]

_RUN_FIELDS = ("model", "parameters", "options", "schedule", "world_size", "backend", "versions", "ddp")
_RANK_FIELDS = (
    "rank",
    "node",
    "local_rank",
    "host",
    "device",
    "threads",
    "file",
    "recorded_steps",
    "unprofiled_ns",
    "profiled_ns",
    "overhead_windows",
    "memory",
)
_STEADY = 0.1
"""A range of overheads that is no wider is that of a machine that does nothing else."""
_LONG_HELD_UP_NS = 2_000_000_000
_LATER_RANK_FIELDS = ("flops", "coordinates", "pipeline", "experts")
"""Fields that a rank of another machine may lack, since an older dptrace wrote it."""


def launch_metadata(
    command: Sequence[str], mode: str | None, script: str | None, failure: dict[str, Any] | None
) -> dict[str, Any]:
    """Return how and when a run was started, and whether it is complete."""
    return {
        "status": "failed" if failure else "complete",
        "failure": failure,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "mode": mode,
        "script": script,
        "nnodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        "restarts": [],
    }


def overhead(ranks: Sequence[dict[str, Any]]) -> float | None:
    """Return how much longer a step takes with the profiler, as a fraction; None if that is unknown.

    It is the mean of the windows with the profiler over that of the windows without it, a window being the median of
    its steps, averaged over ranks. Without such windows, all steps that were timed without the profiler, and the
    recorded ones, take their place. It is unknown, too, where :func:`overhead_range` is wider than 10 % and than the
    overhead itself: other programs keep the machine busy.

    Args:
        ranks: ``overhead_windows`` and ``profiled_ns`` of each rank, as in run.json.
    """
    found, limits = _ratio(ranks, "step_ns"), overhead_range(ranks)
    if found is None or (limits is not None and limits[1] - limits[0] > max(_STEADY, abs(found))):
        return None
    return found


def overhead_range(ranks: Sequence[dict[str, Any]]) -> list[float] | None:
    """Return the least and the greatest overhead that the windows of any rank show; None without windows.

    Each window with the profiler is compared with those next to it. What windows without it differ from those next to
    them widens the range, since that is what a comparison shows where there is nothing to see.
    """
    seen: list[float] = []
    nothing = 0.0
    for rank in ranks:
        steps = [(window["profiled"], median(window["step_ns"])) for window in _windows(rank, "step_ns")]
        plain = [step for profiled, step in steps if not profiled]
        for number, (profiled, step) in enumerate(steps):
            beside = [other for kind, other in steps[max(number - 1, 0) : number + 2] if not kind]
            seen += [step / fmean(beside) - 1] if profiled and beside and min(beside) else []
        for before, step, after in zip(plain, plain[1:], plain[2:], strict=False):
            nothing = max(nothing, abs(step / fmean((before, after)) - 1) if before and after else 0.0)
    return [round(min(seen) - nothing, 4), round(max(seen) + nothing, 4)] if seen else None


def cpu_overhead(ranks: Sequence[dict[str, Any]]) -> float | None:
    """Return how much more processor time a step takes with the profiler, as a fraction; None if that is unknown."""
    return _ratio(ranks, "cpu_ns")


def overhead_figures(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what run.json says about the profiler's overhead."""
    return {
        "profiler_overhead": overhead(ranks),
        "profiler_cpu_overhead": cpu_overhead(ranks),
        "profiler_overhead_range": overhead_range(ranks),
    }


def _ratio(ranks: Sequence[dict[str, Any]], key: str) -> float | None:
    """Return by which fraction windows with the profiler exceed those without."""
    pairs = []
    for rank in ranks:
        medians = _medians(rank, key)
        if key == "step_ns":
            for kind, steps in ((True, rank["profiled_ns"]), (False, rank["unprofiled_ns"])):
                medians[kind] = medians[kind] or ([median(steps)] if steps else [])
        if all(medians.values()):
            pairs.append((fmean(medians[True]), fmean(medians[False])))
    profiled, plain = (sum(times) for times in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return round(profiled / plain - 1, 4) if plain else None


def _medians(rank: dict[str, Any], key: str) -> dict[bool, list[float]]:
    """Return the median of each window of a rank, with and without the profiler."""
    medians: dict[bool, list[float]] = {True: [], False: []}
    for window in _windows(rank, key):
        medians[window["profiled"]].append(median(window[key]))
    return medians


def _windows(rank: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [window for window in rank.get("overhead_windows", ()) if window.get(key)]


def manifest(ranks_metadata: Sequence[dict[str, Any]], launch_metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of run.json.

    Args:
        ranks_metadata: the metadata of each rank, in order; that of ranks that died may be missing.
        launch_metadata: see :func:`launch_metadata`; takes precedence over the ranks' metadata.
    """
    ranks = [
        {key: rank_metadata[key] for key in _RANK_FIELDS} | {key: rank_metadata.get(key) for key in _LATER_RANK_FIELDS}
        for rank_metadata in ranks_metadata
    ]
    run_metadata: dict[str, Any] = {key: ranks_metadata[0][key] if ranks_metadata else None for key in _RUN_FIELDS}
    notes = restart_notes(launch_metadata.get("restarts", ()))
    notes += [note for rank_metadata in ranks_metadata for note in rank_metadata["notes"]]
    held_up = max((rank_metadata.get("held_up_ns", 0) for rank_metadata in ranks_metadata), default=0)
    if held_up > _LONG_HELD_UP_NS:
        notes.append(
            f"After the recorded steps, the training waited {duration(held_up)} for the profiler to make a trace of "
            "its events. Record fewer steps to shorten that."
        )
    world_size = run_metadata["world_size"]
    if ranks and len(ranks) < world_size and launch_metadata["status"] == "complete":
        if any(rank_metadata["schedule"] is None for rank_metadata in ranks_metadata):
            notes.append(profiled_ranks_note([rank["rank"] for rank in ranks], world_size))
        else:  # machines without a shared folder each keep their own ranks
            notes.append(missing_ranks_note(len(ranks), world_size))
    counts = {rank["recorded_steps"] for rank in ranks}
    if len(counts) > 1 and launch_metadata["status"] == "complete":
        notes.append(f"The ranks recorded different numbers of steps: {min(counts)} to {max(counts)}.")
    return {
        "schema": SCHEMA,
        **run_metadata,
        **launch_metadata,
        "losses": mean_losses([rank_metadata["losses"] for rank_metadata in ranks_metadata]),
        **overhead_figures(ranks),
        "notes": list(dict.fromkeys(notes)),
        "ranks": ranks,
    }


def missing_ranks_note(here: int, ranks: int) -> str:
    """Return the note that other machines hold the remaining ranks; dptrace.load replaces it by its own check."""
    return (
        f"{here} of {ranks} ranks are here; read those of other machines together with them: dptrace analyze HERE THERE"
    )


def profiled_ranks_note(profiled: Sequence[int], ranks: int) -> str:
    """Return the note that the script profiles only some of its ranks."""
    return (
        f"The script profiled {plural(len(profiled), 'rank')} of {ranks} ({', '.join(map(str, profiled))}); without "
        "the others' traces, waiting and transfer cannot be separated."
    )


def restart_notes(restarts: Sequence[dict[str, Any]]) -> list[str]:
    """Return one note per rank and reason; a rank that failed repeatedly for one reason is counted, not repeated."""
    counts = Counter((restart["rank"], restart["message"]) for restart in restarts)
    return [_restart_note(rank, message, count) for (rank, message), count in counts.items()]


def _restart_note(rank: int | None, message: str, count: int) -> str:
    who = "A rank" if rank is None else f"Rank {rank}"
    often, each = (f" {count} times", " each time") if count > 1 else ("", "")
    return f"{who} failed{often} ({message}); all ranks were restarted{each}."


def mean_losses(losses_by_rank: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean over the ranks of each step's loss; None if it is not finite.

    A rank's loss is the mean over its shard; the mean over ranks is that of the batch. In a pipeline only the ranks
    of the last stage have a loss.
    """
    by_step = zip(*filter(None, losses_by_rank), strict=False)
    means = [fmean(math.nan if loss is None else loss for loss in losses) for losses in by_step]
    return [mean if math.isfinite(mean) else None for mean in means]  # JSON has no NaN


def write_manifest(folder: Path, launch_metadata: dict[str, Any]) -> dict[str, Any]:
    """Write run.json from the ranks' files in *folder*, delete these, and return the contents."""
    content = manifest(read_messages(folder, "piece"), launch_metadata)
    write_json(folder / RUN_FILE, content)
    for kind in ("piece", "failure"):
        for path in folder.glob(f"rank*.{kind}.json"):
            path.unlink()
    return content


def add_overhead(run: Path, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add the overhead that was measured after a run was written to its run.json, and return the new contents.

    Args:
        run: the folder of the run.
        measured: ``rank``, ``unprofiled_ns`` and ``overhead_windows`` of each rank.
    """
    content: dict[str, Any] = json.loads((run / RUN_FILE).read_text(encoding="utf-8-sig"))
    by_rank = {entry["rank"]: entry for entry in measured}
    for rank in content["ranks"]:
        entry = by_rank.get(rank["rank"])
        if entry is not None:
            rank |= {key: entry[key] for key in ("unprofiled_ns", "overhead_windows")}
    content |= overhead_figures(content["ranks"])
    write_json(run / RUN_FILE, content)
    return content
