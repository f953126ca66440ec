"""run.json: what a run's traces cannot say, put together from what each rank noted. Described in docs/run-folder.md."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dptrace.record.launch.messages import read_messages, write_json
from dptrace.record.launch.run_folder import RUN_FILE, SCHEMA

__all__ = ["launch_metadata", "manifest", "missing_ranks_note", "overhead", "write_manifest"]

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
    "memory",
)


def launch_metadata(
    command: Sequence[str], mode: str | None, script: str | None, failure: dict[str, Any] | None
) -> dict[str, Any]:
    """Say how a run was started, when, and whether it came to its end."""
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
    """Give how much longer a step takes with the profiler, as a fraction: medians of steps, averaged over ranks."""
    both = [rank for rank in ranks if rank["unprofiled_ns"] and rank["profiled_ns"]]
    if not both:
        return None
    with_it, without = (fmean(median(rank[key]) for rank in both) for key in ("profiled_ns", "unprofiled_ns"))
    return round(with_it / without - 1, 4)


def manifest(ranks_metadata: Sequence[dict[str, Any]], launch_metadata: dict[str, Any]) -> dict[str, Any]:
    """Put a run.json together.

    Args:
        pieces: what each rank noted of itself, in the order of ranks; those of ranks that died may be missing.
        facts: what the launcher knows: command, status, mode …; they win over what the ranks say.
    """
    ranks = [{key: rank_metadata[key] for key in _RANK_FIELDS} for rank_metadata in ranks_metadata]
    of_the_run: dict[str, Any] = {key: ranks_metadata[0][key] if ranks_metadata else None for key in _RUN_FIELDS}
    notes = [_restart_note(restart) for restart in launch_metadata.get("restarts", ())]
    notes += [note for rank_metadata in ranks_metadata for note in rank_metadata["notes"]]
    if (
        ranks_metadata
        and len(ranks_metadata) < ranks_metadata[0]["world_size"]
        and launch_metadata["status"] == "complete"
    ):
        # Machines without a common folder each keep their own ranks.
        notes.append(missing_ranks_note(len(ranks_metadata), ranks_metadata[0]["world_size"]))
    return {
        "schema": SCHEMA,
        **of_the_run,
        **launch_metadata,
        "losses": _mean_losses([rank_metadata["losses"] for rank_metadata in ranks_metadata]),
        "profiler_overhead": overhead(ranks),
        "notes": list(dict.fromkeys(notes)),
        "ranks": ranks,
    }


def missing_ranks_note(here: int, ranks: int) -> str:
    """Say that other machines hold the rest; a reader drops the note, and tells by the traces what is missing."""
    return f"{here} of {ranks} ranks are here; copy the others' traces beside them."


def _restart_note(restart: dict[str, Any]) -> str:
    who = "A rank" if restart["rank"] is None else f"Rank {restart['rank']}"
    return f"{who} failed ({restart['message']}); all ranks were started anew."


def _mean_losses(of_ranks: Sequence[Sequence[float]]) -> list[float | None]:
    # Each rank's loss is the mean over its own shard; only the mean over ranks is that of the batch. Of a pipeline's
    # ranks only those of the last stage have one.
    means = [fmean(losses) for losses in zip(*filter(None, of_ranks), strict=False)]
    return [mean if math.isfinite(mean) else None for mean in means]  # JSON has no NaN


def write_manifest(folder: Path, launch_metadata: dict[str, Any]) -> dict[str, Any]:
    """Write run.json from the notes in *folder*, take the notes away, and give what was written."""
    content = manifest(read_messages(folder, "piece"), launch_metadata)
    write_json(folder / RUN_FILE, content)
    for kind in ("piece", "failure"):
        for note in folder.glob(f"rank*.{kind}.json"):
            note.unlink()
    return content
