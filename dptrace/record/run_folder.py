"""The run folder: written under a hidden name and renamed at the end, so that no incomplete run appears."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dptrace.core.termination import signals_held
from dptrace.core.units import duration, plural
from dptrace.errors import DptraceError, UsageError
from dptrace.record.messages import read_messages, window_folder, write_json
from dptrace.record.processes import is_running

RUN_FILE = "run.json"  # also in dptrace.readers.run_file: recording does not import the readers
SCHEMA = 1
"""Version of run.json; docs/reference/run-folder.md describes it."""

_OWNER_TIMEOUT_S = 24 * 3600
"""How long another machine's recording counts as running although it writes nothing."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_RUN_FILE_NAMES = re.compile(r"run\.json|rank\d+\.pt\.trace\.json\.gz|rank\d+\.log")


def trace_name(rank: int) -> str:
    """Return the file name of a rank's trace."""
    return f"rank{rank}.pt.trace.json.gz"


def is_run_folder(path: Path) -> bool:
    """Return whether a folder is a recorded run and contains nothing else, so that it may be replaced."""
    try:
        manifest = json.loads((path / RUN_FILE).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    is_run = isinstance(manifest, dict) and {"schema", "status", "world_size"} <= manifest.keys()
    return is_run and all(
        _RUN_FILE_NAMES.fullmatch(file.name) and file.is_file() and not file.is_symlink() for file in path.iterdir()
    )


class RunFolder:
    """A run that will be at *path*; until it is complete, its files are in the hidden folder ``staging`` next to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Absolute, because a script may change its working directory.
        self._target = Path(os.path.abspath(path))
        if Path.cwd().is_relative_to(self._target):
            raise UsageError(f"{path} is the folder you are in, or contains it. Choose a new folder.")
        self.staging = self._target.with_name(f".{self._target.name}.recording")
        self._owner = self.staging / "owner"
        self._force = False

    @classmethod
    def of_staging(cls, staging: Path) -> RunFolder | None:
        """Return the run that belongs to a staging folder; None if it is none."""
        name = re.fullmatch(r"\.(.+)\.recording", staging.name)
        return None if name is None else cls(staging.with_name(name[1]))

    def begin(self, force: bool) -> list[Path]:
        """Check that the run may be written to its path, and create the staging folder.

        Return where the traces are now that an earlier recording to this path, whose process was killed, has left.

        Args:
            force: replace a run that is there.

        Raises:
            UsageError: see :meth:`check`.
            DptraceError: another recording to the same path is running, or the folder cannot be created.
        """
        self.check(force)
        self._force = force
        machine = next(filter(None, map(self._other_owner, (self._owner, self.staging / "owner.agent"))), None)
        if machine is not None:
            raise DptraceError(
                f"{self.path}: another recording to this folder is in progress on {machine}. Choose another -o; "
                f"if that recording has died, remove {self.staging}."
            )
        try:
            if self.staging.exists() and any(self.staging.iterdir()) and not self._owner.exists():
                raise DptraceError(f"{self.staging} exists and is not from a recording; move it elsewhere.")
            recovered = recover(self)
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)
            try:
                self._owner.write_text(f"{os.getpid()} {platform.node()}")
            except OSError:
                self.discard()
                raise
        except OSError as error:
            raise DptraceError(f"{self.path} cannot be created: {error.strerror or error}.") from None
        return recovered

    def check(self, force: bool) -> None:
        """Check that writing the run replaces nothing: no run without *force*, and with it nothing but a run.

        Raises:
            UsageError: the path exists and may not be replaced, or its name contains control characters.
        """
        if _UNPRINTABLE.search(str(self.path)):
            raise UsageError(
                f"{str(self.path)!r}: a run's name can't hold line breaks or control characters. Choose another -o."
            )
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or self.path.is_symlink():
            raise UsageError(f"{self.path} exists and is not a folder. Choose another -o.")
        if not any(self.path.iterdir()):
            return
        if not is_run_folder(self.path):
            raise UsageError(
                f"{self.path} exists and contains more than a recorded run; even --force does not replace it. "
                "Choose another -o."
            )
        if not force:
            raise UsageError(
                f"{self.path} already contains a run. Replace it with --force (in Python, force=True), or choose "
                "another -o."
            )

    def _other_owner(self, note: Path) -> str | None:
        """Return the machine on which the process that a file names runs; None if it has ended, or is this one."""
        try:
            owner, _, host = note.read_text().partition(" ")
            if host and host != platform.node():
                # Its process ids mean nothing here; a folder that it left long ago may be reused.
                newest = max(file.stat().st_mtime for file in self.staging.iterdir())
                return host if time.time() - newest < _OWNER_TIMEOUT_S else None
            running = int(owner) != os.getpid() and is_running(int(owner))
        except (OSError, ValueError, OverflowError):
            return None
        return "this machine" if running else None

    @signals_held()
    def complete(self, files: Path, number: int = 1) -> Path:
        """Move the files of a finished run to its path and return the path; an old run is removed only now.

        Other files that have appeared there meanwhile, such as the script's own checkpoints, stay: the run's files are
        added to them or, if names collide, the run gets another name.

        Args:
            files: the folder in ``staging`` that holds the run's files.
            number: which run of the job it is; from the second on, the number is part of the name.
        """
        target = self._numbered(self._target, number)
        if not target.exists() or (self._force and is_run_folder(target)):
            self._replace(files, target)
            return self.numbered(number)
        if number == 1 and target.is_dir() and not {f.name for f in files.iterdir()} & set(os.listdir(target)):
            # run.json last: it marks the run as complete.
            for file in sorted(files.iterdir(), key=lambda file: file.name == RUN_FILE):
                file.rename(target / file.name)
            files.rmdir()
            return self.path
        return self._rename(files, "run")

    def numbered(self, number: int) -> Path:
        """Return the folder of the job's run of this number."""
        return self._numbered(self.path, number)

    def _numbered(self, path: Path, number: int) -> Path:
        return path if number == 1 else path.with_name(f"{path.name}-{number}")

    def _replace(self, files: Path, target: Path) -> None:
        old = target.with_name(f".{target.name}.replaced-{os.getpid()}")
        if target.exists():
            target.rename(old)
        files.rename(target)
        shutil.rmtree(old, ignore_errors=True)

    def keep_failed(self, files: Path) -> Path:
        """Rename an incomplete run to ``<name>.failed`` and return the path."""
        return self._rename(files, "failed")

    def _rename(self, files: Path, ending: str) -> Path:
        """Rename a folder in staging to the first free name next to the target."""
        name, number = f"{self._target.name}.{ending}", 1
        while os.path.lexists(self._target.with_name(name)):
            number += 1
            name = f"{self._target.name}.{ending}-{number}"
        files.rename(self._target.with_name(name))
        return self.path.with_name(name)

    def discard(self) -> None:
        """Delete what is left in staging: nothing after the run has been moved, else all of it."""
        shutil.rmtree(self.staging, ignore_errors=True)


# run.json: a run's metadata, combined from that of each rank; docs/reference/run-folder.md describes it.


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
"""Time that training waited for the profiler, after the recorded steps, from which a note says so."""
_LATER_RANK_FIELDS = ("device_uuid", "coordinates", "pipeline", "experts", "core_wait_ns")
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
    recorded ones, take their place. It is unknown, too, where :func:`overhead_range` is wider than 10 % and than half
    of the overhead: other programs keep the machine busy, or the steps are too short to be compared.

    Args:
        ranks: ``overhead_windows`` and ``profiled_ns`` of each rank, as in run.json.
    """
    found, limits = _ratio(ranks, "step_ns"), overhead_range(ranks)
    if found is None or (limits is not None and limits[1] - limits[0] > max(_STEADY, abs(found) / 2)):
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


def overhead_figures(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what run.json says about the profiler's overhead."""
    return {
        "profiler_overhead": overhead(ranks),
        "profiler_cpu_overhead": _ratio(ranks, "cpu_ns"),
        "profiler_overhead_range": overhead_range(ranks),
    }


def _ratio(ranks: Sequence[dict[str, Any]], key: str) -> float | None:
    """Return by which fraction windows with the profiler exceed those without."""
    pairs = []
    for rank in ranks:
        medians: dict[bool, list[float]] = {True: [], False: []}
        for window in _windows(rank, key):
            medians[window["profiled"]].append(median(window[key]))
        if key == "step_ns":
            for kind, steps in ((True, rank["profiled_ns"]), (False, rank["unprofiled_ns"])):
                medians[kind] = medians[kind] or ([median(steps)] if steps else [])
        if all(medians.values()):
            pairs.append((fmean(medians[True]), fmean(medians[False])))
    profiled, plain = (sum(times) for times in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return round(profiled / plain - 1, 4) if plain else None


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
    incomplete = ranks and len(ranks) < world_size and launch_metadata["status"] == "complete"
    if incomplete and any(rank_metadata["schedule"] is None for rank_metadata in ranks_metadata):
        notes.append(profiled_ranks_note([rank["rank"] for rank in ranks], world_size))
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


def ranks_elsewhere_note(info: Mapping[str, Any]) -> str:
    """Return the note that other machines hold ranks of a run, as machines without a shared folder do; empty for none.

    It is not in run.json: where that is read, other ranks may have been copied to it.
    """
    here, ranks = len(info["ranks"]), info["world_size"]
    if not 0 < here < ranks or info["status"] != "complete" or info["schedule"] is None:
        return ""
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
    notes = []
    for (rank, message), count in Counter((entry["rank"], entry["message"]) for entry in restarts).items():
        who = "A rank" if rank is None else f"Rank {rank}"
        often, each = (f" {count} times", " each time") if count > 1 else ("", "")
        notes.append(f"{who} failed{often} ({message}); all ranks were restarted{each}.")
    return notes


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


# Keep what is there of a recording that did not come to its end.


_LAUNCH_FILE = "launch.json"


def note_launch(run: RunFolder, metadata: dict[str, Any]) -> None:
    """Write what the launcher knows of a run, for those who keep it if the launcher is killed."""
    with suppress(OSError):
        write_json(run.staging / _LAUNCH_FILE, metadata)


def keep_incomplete(
    run: RunFolder, run_metadata: dict[str, Any], number: int, logs_suffice: bool = False
) -> Path | None:
    """Rename the traces of an incomplete window, and the ranks' logs, to ``NAME.failed``; return None without any.

    Args:
        logs_suffice: keep logs without a trace, too.
    """
    folder = window_folder(run.staging, number)
    logs = list(run.staging.glob("rank*.log"))
    if not (logs and logs_suffice) and not any(folder.glob("rank*.gz")):
        return None
    folder.mkdir(exist_ok=True)
    for log in logs:
        log.replace(folder / log.name)
    with suppress(OSError):  # on a full disk, traces can be renamed, and read without run.json
        write_manifest(folder, run_metadata)
    return run.keep_failed(folder)


def keep_logs(run: RunFolder, folder: Path) -> None:
    """Append what the ranks have printed to the logs in the folder of a complete run."""
    for log in run.staging.glob("rank*.log"):
        if log.stat().st_size:
            with log.open("rb") as printed, (folder / log.name).open("ab") as kept:
                shutil.copyfileobj(printed, kept)


def recover(run: RunFolder) -> list[Path]:
    """Keep the traces that a killed launcher has left in a run's staging folder, and return where they are."""
    metadata = launch_metadata([], None, None, None)
    with suppress(OSError, ValueError):
        metadata = json.loads((run.staging / _LAUNCH_FILE).read_text(encoding="utf-8"))
    kept = []
    for folder in sorted(run.staging.glob("window*"), key=lambda folder: (len(folder.name), folder.name)):
        number = int(folder.name.removeprefix("window"))
        killed = {"status": "failed", "failure": {"rank": None, "message": "its recorder was killed"}}
        kept.append(keep_incomplete(run, metadata | killed, number))
    return [path for path in kept if path is not None]


def finish_for_launcher(staging: Path, launcher: int) -> None:
    """Keep what there is and remove the staging folder, if its launcher has died."""
    run = RunFolder.of_staging(staging)
    if run is None or is_running(launcher):
        return
    with suppress(OSError):
        owner = (staging / "owner").read_text()
        if owner != f"{launcher} {platform.node()}":
            return  # another machine's launcher keeps the runs of all
    with suppress(OSError, ValueError):
        numbers = sorted(int(marker.name.removeprefix("recorded")) for marker in staging.glob("recorded*"))
        whole = [folder for folder in map(run.numbered, numbers) if (folder / RUN_FILE).exists()]
        kept = ", ".join(map(str, whole + recover(run)))
        run.discard()
        what = f"what they had recorded is in {kept}" if kept else "no recorded step was left to keep"
        print(f"dptrace record was killed. Its ranks are ended; {what}.", file=sys.stderr)


def note_agent(staging: Path) -> None:
    """Note that this process, torchrun's, writes to a staging folder, even if its launcher is killed."""
    with suppress(OSError):
        (staging / "owner.agent").write_text(f"{os.getpid()} {platform.node()}")


# The folder of a training's checkpoints, for the launcher; imports no torch.


_NAME = re.compile(r"step-(\d{8})")


def checkpoint_folder(mode: str, chosen: str | None) -> Path:
    """Return the folder of a training's checkpoints: the chosen one, or the default of its mode."""
    return Path(chosen or f"checkpoints/{mode}")


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in a folder, in order; empty if the folder does not exist.

    Raises:
        DptraceError: the folder cannot be read.
    """
    try:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise DptraceError(f"{folder}: the checkpoints cannot be read: {error.strerror or error}.") from None
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint; what holds other files, or is no folder, stays."""
    with suppress(OSError):
        for file in checkpoint.glob("rank*.pt"):
            file.unlink()
        checkpoint.rmdir()


def check_writable(folder: Path) -> None:
    """Check that checkpoints can be written to a folder, so that the training does not fail after its first steps.

    Nothing is created: other ranks may look for checkpoints there at the same time.

    Raises:
        UsageError: the folder cannot be created or written to; the message says why.
    """
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"--checkpoints {folder}: no checkpoint can be written there: {reason}. Choose another folder."
        ) from None


def kept_checkpoints_message(folder: Path | None) -> str:
    """Return a sentence on the checkpoints that an ended training has left and how to resume; "" without any.

    Args:
        folder: the folder of its checkpoints; None for a training without checkpoints.
    """
    steps = [] if folder is None else checkpoint_steps(folder)
    if folder is None or not steps:
        return ""
    return (
        f"The checkpoints in {shlex.quote(str(folder))} stay, the last of step {steps[-1]}: --resume continues from it."
    )
