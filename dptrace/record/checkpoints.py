"""Checkpoints of a training: written atomically, verified, and read without running any code in them."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dptrace.errors import DptraceError, UsageError
from dptrace.record.launch.checkpoint_folder import checkpoint_steps

__all__ = ["Checkpoints"]

_KEEP_NEWEST = 2
"""Two, so that there is an older one if the newest is damaged."""
SCHEMA = 1


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: the folder of the checkpoints, created with the first one.
        settings: what must be the same in a training that continues: model, seed, batch size …
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self.damaged: list[str] = []
        """The checkpoints that :meth:`load_newest` could not read, with the reason."""

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.folder / f"step-{step:08}.pt"

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write a checkpoint atomically, also with respect to a crash of the machine; then delete old ones.

        Raises:
            DptraceError: it cannot be written.
        """
        path = self.path(step)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(".step-*.part"):
                stale.unlink(missing_ok=True)  # from a rank that died while writing
            with temporary.open("wb") as file:
                torch.save({"schema": SCHEMA, "step": step, "facts": self.settings, **content}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            for old in self.steps()[:-_KEEP_NEWEST]:
                self.path(old).unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                temporary.unlink()
            raise DptraceError(f"{path}: the checkpoint cannot be written: {error}.") from None

    def load_newest(self, before: int, device: torch.device) -> dict[str, Any] | None:
        """Read the newest intact checkpoint of a step less than *before*; None if there is no checkpoint.

        Raises:
            UsageError: it belongs to another training; the message says what differs.
            DptraceError: all checkpoints are damaged.
        """
        self.damaged = []
        for step in reversed([step for step in self.steps() if step < before]):
            try:
                _check_intact(self.path(step))
                content = torch.load(self.path(step), map_location=device, weights_only=True)
                assert isinstance(content, dict)
                assert content["step"] == step
            except Exception as error:  # foreign and damaged files fail in many ways
                self.damaged.append(
                    f"{self.path(step)} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
                )
                continue
            self._check_same_training(content["facts"], self.path(step))
            return content
        if self.damaged:
            raise DptraceError(
                f"No checkpoint can be read: {'; '.join(self.damaged)}. To train from the start, remove "
                f"{self.folder} or choose another folder with --checkpoints, and leave --resume out."
            )
        return None

    def _check_same_training(self, saved: dict[str, Any], path: Path) -> None:
        for name in self.settings.keys() | saved.keys():
            both = saved.get(name), self.settings.get(name)
            if both[0] != both[1]:
                theirs, ours = ("none" if value is None else value for value in both)
                raise UsageError(
                    f"{path} belongs to another training: {name.replace('_', '-')} {theirs}, not {ours}. Choose "
                    "another folder with --checkpoints."
                )


def _check_intact(path: Path) -> None:
    """Verify the checksum of every part of a file, because torch reads changed numbers without an error."""
    with zipfile.ZipFile(path) as archive:
        if broken := archive.testzip():
            raise ValueError(f"{broken} is damaged")
