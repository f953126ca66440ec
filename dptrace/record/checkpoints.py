"""Checkpoints of a training: written beside their place and renamed, read without running anything in them."""

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
"""The last ones: where the newest is damaged, one before it is there."""
SCHEMA = 1


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: where they lie; made when the first is written.
        facts: what must be the same in a training that goes on: model, seed, batch size …
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts = folder, facts
        self.damaged: list[str] = []
        """What :meth:`newest` could not read, with the reason."""

    def steps(self) -> list[int]:
        """Give the steps after which there is a checkpoint, in order."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        """Give the place of the checkpoint after so many steps."""
        return self.folder / f"step-{step:08}.pt"

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write a checkpoint: there whole or not at all, also when the machine goes down; then forget old ones.

        Raises:
            DptraceError: it can't be written.
        """
        path = self.path(step)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(".step-*.part"):
                stale.unlink(missing_ok=True)  # of a rank that died while it wrote
            with temporary.open("wb") as file:
                torch.save({"schema": SCHEMA, "step": step, "facts": self.facts, **content}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            for old in self.steps()[:-_KEEP_NEWEST]:
                self.path(old).unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                temporary.unlink()
            raise DptraceError(f"{path}: the checkpoint can't be written: {error}.") from None

    def load_newest(self, before: int, device: torch.device) -> dict[str, Any] | None:
        """Read the newest checkpoint after fewer than *before* steps; where it is damaged, the one before it.

        Raises:
            UsageError: it is of another training; the message says what differs.
            DptraceError: all are damaged.
        """
        self.damaged = []
        for step in reversed([step for step in self.steps() if step < before]):
            try:
                self._check(self.path(step))
                content = torch.load(self.path(step), map_location=device, weights_only=True)
                assert isinstance(content, dict)
                assert content["step"] == step
            except Exception as error:  # a file of a stranger or a torn disk fails in many ways
                self.damaged.append(
                    f"{self.path(step)} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
                )
                continue
            self._check_same_training(content["facts"], self.path(step))
            return content
        if self.damaged:
            raise DptraceError(
                f"No checkpoint can be read: {'; '.join(self.damaged)}. To train from the start, remove "
                f"{self.folder} or name another folder with --checkpoints, and leave --resume out."
            )
        return None

    def _check(self, path: Path) -> None:
        """Hold every part of a file against its checksum: torch reads changed numbers without a word."""
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"{broken} in it is damaged")

    def _check_same_training(self, facts: dict[str, Any], path: Path) -> None:
        for name in self.facts.keys() | facts.keys():
            there, here = facts.get(name), self.facts.get(name)
            if there != here:
                raise UsageError(
                    f"{path}: belongs to another training: {name.replace('_', '-')} {_display(there)}, not "
                    f"{_display(here)}. Name another folder with --checkpoints."
                )


def _display(value: object) -> str:
    return "none" if value is None else str(value)
