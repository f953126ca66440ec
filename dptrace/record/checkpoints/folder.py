"""The folder of a training's checkpoints, for the launcher; imports no torch."""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from dptrace.errors import DptraceError, UsageError

__all__ = ["check_writable", "checkpoint_folder", "checkpoint_steps", "delete_checkpoint", "kept_checkpoints_message"]

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

    Folders that are created for the check are removed again.

    Raises:
        UsageError: the folder cannot be created or written to; the message says why.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"--checkpoints {folder}: no checkpoint can be written there: {reason}. Choose another folder."
        ) from None
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


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
