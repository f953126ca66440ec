"""Where a training's checkpoints lie, and what of them stays when it is broken off; told without loading torch."""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from dptrace.errors import UsageError

__all__ = ["check_writable", "checkpoint_folder", "checkpoint_steps", "kept_checkpoints_message"]

_NAME = re.compile(r"step-(\d{8})\.pt")


def checkpoint_folder(mode: str, named: str | None) -> Path:
    """Give the folder of a training's checkpoints: that which was named, or the mode's own."""
    return Path(named or f"checkpoints/{mode}")


def checkpoint_steps(folder: Path) -> list[int]:
    """Give the steps after which there is a checkpoint in a folder, in order; none where there is no folder."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which no checkpoint could be written, rather than fail after the first steps.

    What had to be made to find out is taken away again.

    Raises:
        UsageError: it can't be made, or not written to; the message says why.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"--checkpoints {folder}: no checkpoint can be written there: {why}. Name another folder."
        ) from None
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def kept_checkpoints_message(folder: Path | None) -> str:
    """Say which checkpoints a training that was broken off left, and how to go on from them; nothing without any.

    Args:
        folder: that of its checkpoints; None for a training without.
    """
    steps = [] if folder is None else checkpoint_steps(folder)
    if folder is None or not steps:
        return ""
    return (
        f"The checkpoints in {shlex.quote(str(folder))} stay, the last of step {steps[-1]}: --resume goes on from it."
    )
