"""Gather the parts of one run, which machines without a shared folder have recorded, in one run folder."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dptrace.core.inputs import note_output
from dptrace.errors import DptraceError
from dptrace.record.collect.parts import Part, find_parts
from dptrace.record.run_folder.folder import RUN_FILE, RunFolder
from dptrace.record.run_folder.manifest import is_missing_ranks_note, missing_ranks_note, overhead
from dptrace.record.run_folder.messages import write_json

__all__ = ["collect", "merged_manifest"]

_SAME_ON_ALL = ("schema", "world_size", "nnodes", "mode", "model", "options", "schedule", "backend")
_ON_EACH_ITS_OWN = dict.fromkeys(("--node-rank", "--rdzv-endpoint", "--output", "--out", "-o", "--gpus", "--links"), 1)
_ON_EACH_ITS_OWN |= dict.fromkeys(("--force", "-q", "--quiet", "-v", "--verbose"), 0)
"""Options that may differ between the machines of one job, with the number of their values."""
_LONGEST_APART = timedelta(hours=1)
"""The machines of a job end together; their clocks may be wrong."""


def collect(destination: Path, sources: Sequence[Path], force: bool) -> dict[str, Any]:
    """Write one run folder with the ranks of all sources; return its run.json, with ``folder``, its path.

    Raises:
        UsageError: the destination may not be written, or is or holds a source.
        DptraceError: a source cannot be used, or the sources are not parts of one job.
    """
    run = RunFolder(destination)
    run.begin(force)
    try:
        # In the same file system, and gone with the staging folder if this process is killed.
        with tempfile.TemporaryDirectory(dir=run.staging) as scratch:
            parts = []
            for number, source in enumerate(sources):
                (unpacked := Path(scratch, str(number))).mkdir()
                parts += find_parts(source, unpacked)
            note_output(destination)
            content = merged_manifest(parts)
            (files := run.staging / "run").mkdir()
            for part in parts:
                _copy(part, parts, files)
        write_json(files / RUN_FILE, content)
        return content | {"folder": str(run.complete(files))}
    finally:
        run.discard()


def _copy(part: Part, parts: Sequence[Part], target: Path) -> None:
    """Copy a part's traces and logs.

    Raises:
        DptraceError: another part has the same file with other content.
    """
    for file in part.files:
        copy = target / file.name
        if not copy.exists():
            shutil.copyfile(file, copy)
        elif not filecmp.cmp(file, copy, shallow=False):
            first = next(other.name for other in parts if (other.folder / file.name).exists())
            raise DptraceError(
                f"{file.name} is in {first} and in {part.name}, and the two differ: they are of different runs. Name "
                "the parts of one run only."
            )


def merged_manifest(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the run.json of all parts together.

    Raises:
        DptraceError: they are not parts of one job; the message says what differs.
    """
    for part in parts[1:]:
        _check_same_job(parts[0], part)
    # Rank 0's part has what only rank 0 reports.
    ordered = sorted(parts, key=lambda part: min((entry["rank"] for entry in part.metadata["ranks"]), default=1 << 30))
    everything = [part.metadata for part in ordered]
    ranks = {entry["rank"]: entry for metadata in reversed(everything) for entry in metadata["ranks"]}
    failed = [metadata for metadata in everything if metadata.get("status") != "complete"]
    failures = sorted(
        filter(None, (metadata.get("failure") for metadata in failed)), key=lambda f: f.get("rank") is None
    )
    world_size = _known(everything, "world_size")
    notes = [note for metadata in everything for note in metadata.get("notes") or () if not is_missing_ranks_note(note)]
    if ranks and isinstance(world_size, int) and len(ranks) < world_size and not failed:
        notes.append(missing_ranks_note(len(ranks), world_size))
    entries = [ranks[rank] for rank in sorted(ranks)]
    restarts = [restart for metadata in everything for restart in metadata.get("restarts") or ()]
    return {
        **{key: _known(everything, key) for metadata in everything for key in metadata},
        "status": "failed" if failed else "complete",
        "failure": failures[0] if failures else None,
        "restarts": [restart for number, restart in enumerate(restarts) if restart not in restarts[:number]],
        "losses": _mean_losses(everything),
        "profiler_overhead": overhead(entries),
        "notes": list(dict.fromkeys(notes)),
        "ranks": entries,
    }


def _known(everything: Sequence[dict[str, Any]], key: str) -> Any:
    """Return the first value of a key that is known; a part in which no rank wrote a trace has null."""
    return next((metadata[key] for metadata in everything if metadata.get(key) is not None), None)


def _mean_losses(everything: Sequence[dict[str, Any]]) -> list[float | None]:
    """Return the mean over the ranks of each step's loss; a part's losses are the means over its own ranks."""
    weighted = [(metadata["losses"], len(metadata["ranks"])) for metadata in everything if metadata.get("losses")]
    total = sum(ranks for _, ranks in weighted)
    steps = zip(*(losses for losses, _ in weighted), strict=False)
    return [
        None if None in losses else sum(loss * ranks for loss, (_, ranks) in zip(losses, weighted, strict=True)) / total
        for losses in steps
    ]


def _check_same_job(first: Part, other: Part) -> None:
    for key in _SAME_ON_ALL:
        both = first.metadata.get(key), other.metadata.get(key)
        if None not in both and both[0] != both[1]:
            _refuse(first, other, key.replace("_", " "), *both)
    scripts = [Path(part.metadata.get("script") or "").name for part in (first, other)]
    if scripts[0] != scripts[1]:
        _refuse(first, other, "script", *scripts)
    commands = [_shared_command(part.metadata.get("command")) for part in (first, other)]
    if commands[0] != commands[1]:
        _refuse(first, other, "command", *map(" ".join, commands))
    ended = [_ended(part) for part in (first, other)]
    if abs(ended[0] - ended[1]) > _LONGEST_APART:
        _refuse(first, other, "end", *(f"{time:%Y-%m-%d %H:%M}" for time in ended))


def _refuse(first: Part, other: Part, what: str, *values: Any) -> None:
    raise DptraceError(
        f"{first.name} and {other.name} are not of one job: {what} {_short(values[0])}, not {_short(values[1])}. Name "
        "the parts of one run only."
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _ended(part: Part) -> datetime:
    try:
        ended = datetime.fromisoformat(part.metadata.get("created") or "")
    except (TypeError, ValueError):
        raise DptraceError(f"{part.name}: {RUN_FILE} does not say when it was created.") from None
    return ended if ended.tzinfo else ended.astimezone()


def _shared_command(command: Any) -> list[str]:
    """Return the words of a command that are the same on all machines of a job."""
    words = iter([str(word) for word in command] if isinstance(command, list) else [])
    kept = []
    for word in words:
        values = _ON_EACH_ITS_OWN.get(word.partition("=")[0])
        if values is None:
            kept.append(word)
        elif values and "=" not in word:
            next(words, None)
    return kept
