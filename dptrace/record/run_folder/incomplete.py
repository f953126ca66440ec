"""Keep what is there of a recording that did not come to its end."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dptrace.record.ranks.process_tree import is_running
from dptrace.record.run_folder.folder import RunFolder
from dptrace.record.run_folder.manifest import launch_metadata, write_manifest
from dptrace.record.run_folder.messages import window_folder, write_json

__all__ = ["finish_for_launcher", "keep_incomplete", "note_agent", "note_launch", "recover"]

_LAUNCH_FILE = "launch.json"
_KILLED = {"rank": None, "message": "dptrace record was killed"}


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


def recover(run: RunFolder) -> list[Path]:
    """Keep the traces that a killed launcher has left in a run's staging folder, and return where they are."""
    metadata = launch_metadata([], None, None, None)
    with suppress(OSError, ValueError):
        metadata = json.loads((run.staging / _LAUNCH_FILE).read_text(encoding="utf-8"))
    kept = []
    for folder in sorted(run.staging.glob("window*"), key=lambda folder: (len(folder.name), folder.name)):
        number = int(folder.name.removeprefix("window"))
        kept.append(keep_incomplete(run, metadata | {"status": "failed", "failure": _KILLED}, number))
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
        kept = ", ".join(map(str, recover(run)))
        run.discard()
        what = f"what they had recorded is in {kept}" if kept else "they had recorded no step"
        print(f"dptrace record was killed. Its ranks are ended; {what}.", file=sys.stderr)


def note_agent(staging: Path) -> None:
    """Note that this process, torchrun's, writes to a staging folder, even if its launcher is killed."""
    with suppress(OSError):
        (staging / "owner.agent").write_text(f"{os.getpid()} {platform.node()}")
