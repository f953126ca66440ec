"""The checkpoints of a training: the last two are kept, and a training continues from the newest that is intact.

A checkpoint is a folder with a file of each rank, or of rank 0 alone where every rank holds the whole model. It gets
its name when all files are written. torch.distributed.checkpoint is not used: it reads its index with pickle.load and
its objects with weights_only=False, so that a stranger's checkpoint could run any code.
"""

from __future__ import annotations

import os
import pickle
import textwrap
import time
import warnings
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from dptrace.core.units import sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.record.distributed import RankStore
from dptrace.record.messages import restart_count
from dptrace.record.options.catalog import Options
from dptrace.record.options.modes import REPLICATED
from dptrace.record.run_folder import check_writable, checkpoint_folder, checkpoint_steps, delete_checkpoint

_SCHEMA = 2
"""Of a file; one of another is not read."""
_KEEP_NEWEST = 2
"""Two, so that there is an older one if the newest is damaged."""
_MAX_WAIT = timedelta(hours=1)
"""How long ranks wait for each other's files, written or read."""
_VISIBLE_AFTER_S = 30
"""A network file system may show other machines' files late."""
_SETTING = (str, int, float, bool, type(None))
"""Types of a training's settings; tensors, for example, can't be compared as these are."""


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: the folder of the checkpoints, created with the first one.
        settings: what must be the same in a training that continues: model, seed, batch size …
        ranks: how the ranks agree without a collective, which would show in the trace.
        each_rank: whether each rank writes a file with what it holds; then a training continues with the same number
            of ranks. Otherwise rank 0 writes one, and all ranks read it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], ranks: RankStore, each_rank: bool = False) -> None:
        self.folder, self.ranks = folder, ranks
        self.settings = settings | ({"ranks": ranks.size} if each_rank else {})
        self.writers = ranks.size if each_rank else 1
        self.damaged: list[str] = []
        """The checkpoints that :meth:`load_newest` could not read, with the reason."""

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.folder / f"step-{step:08}"

    def file(self, step: int) -> Path:
        """Return the file that this rank reads."""
        return self.path(step) / _file_name(self.ranks.rank if self.writers > 1 else 0)

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write this rank's file, if it writes one; when all are written, rank 0 names the folder and deletes old ones.

        Raises:
            DptraceError: it cannot be written, or another rank could not, or the ranks share no folder.
        """
        if self.ranks.rank >= self.writers:
            return
        unfinished = self.folder / f".{self.path(step).name}.part"
        try:
            unfinished.mkdir(parents=True, exist_ok=True)
            with (unfinished / _file_name(self.ranks.rank)).open("wb") as file:
                torch.save({"schema": _SCHEMA, "step": step, "facts": self.settings, **content}, file)
                file.flush()
                os.fsync(file.fileno())  # a crash of the machine must not leave a name without its content
            if self.writers > 1 and not self.ranks.barrier(f"step {step}", _MAX_WAIT):
                raise DptraceError(f"{self.path(step)}: not all ranks have written their part of the checkpoint.")
            if self.ranks.rank == 0:
                self._finish(step, unfinished)
        except (OSError, RuntimeError) as error:
            raise DptraceError(f"{self.path(step)}: the checkpoint cannot be written: {error}.") from None

    def _finish(self, step: int, unfinished: Path) -> None:
        until = time.monotonic() + _VISIBLE_AFTER_S
        while missing := {_file_name(number) for number in range(self.writers)} - set(os.listdir(unfinished)):
            if time.monotonic() > until:
                raise DptraceError(
                    f"{self.folder} lacks the files of {len(missing)} ranks: in this mode the machines must share the "
                    "folder of the checkpoints. Choose such a folder with --checkpoints."
                )
            time.sleep(0.1)
        path = self.path(step)
        if path.exists():  # a damaged one, from which this training could not continue
            delete_checkpoint(path)
        unfinished.rename(path)
        old = [self.path(number) for number in checkpoint_steps(self.folder)[:-_KEEP_NEWEST]]
        # Also what attempts before this step have left unfinished.
        old += [part for part in self.folder.glob(".step-*.part") if part.name < unfinished.name]
        for checkpoint in old:
            delete_checkpoint(checkpoint)

    def load_newest(self, before: int) -> dict[str, Any] | None:
        """Read the newest checkpoint of a step less than *before* that is intact on all ranks; None if there is none.

        Its tensors are on the CPU: torch leaves AdamW's step counts where they are.

        Raises:
            UsageError: it belongs to another training; the message says what differs.
            DptraceError: all checkpoints are damaged.
        """
        self.damaged = []
        found = checkpoint_steps(self.folder)
        if self.ranks.rank == 0:  # all ranks try the steps that rank 0 finds
            self.ranks.publish("steps", ",".join(map(str, found)))
        elif self.ranks.size > 1:
            found = [int(step) for step in self.ranks.receive("steps").split(",") if step]
        steps = [step for step in found if step < before]
        for step in reversed(steps):
            content = self._read(step)
            if self.ranks.any(f"damaged {step}", content is None, _MAX_WAIT) is False and content is not None:
                self._check_same_training(content["facts"], self.path(step))
                return content
        if steps:
            raise DptraceError(
                f"No checkpoint can be read: {'; '.join(self.damaged) or 'the parts of other ranks are damaged'}. To "
                f"train from the start, remove {self.folder} or choose another folder with --checkpoints, and leave "
                "--resume out."
            )
        return None

    def _read(self, step: int) -> dict[str, Any] | None:
        path = self.file(step)
        try:
            return _read_file(path, step)
        except Exception as error:  # foreign and damaged files fail in many ways
            reason = str(error).splitlines()[0] if str(error) else ""
            self.damaged.append(f"{path} ({type(error).__name__}: {reason})")
            return None

    def _check_same_training(self, saved: dict[str, Any], path: Path) -> None:
        for name in sorted(self.settings.keys() | saved.keys(), key=str):
            both = saved.get(name), self.settings.get(name)
            if both[0] != both[1]:
                theirs, ours = ("none" if value is None else _in_a_line(value) for value in both)
                what = _in_a_line(name).replace("_", "-")
                raise UsageError(
                    f"{path} belongs to another training: {what} {theirs}, not {ours}. Choose another folder with "
                    "--checkpoints."
                )


def _read_file(path: Path, step: int) -> dict[str, Any]:
    """Return what a rank has written for a step; executes nothing that is in the file.

    Raises:
        Exception: it is damaged or from elsewhere.
    """
    if not path.is_file():  # opening a pipe would wait for a writer forever
        raise ValueError("it is not a file")
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            # torch.save compresses nothing; torch before 2.6 runs TorchScript even with weights_only.
            if entry.compress_type != zipfile.ZIP_STORED or entry.filename.endswith("constants.pkl"):
                raise ValueError("torch.save did not write it")
        if broken := archive.testzip():  # torch reads changed numbers without an error
            raise ValueError(f"{broken} is damaged")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd files, which are then refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch's own message recommends to read the file in the way that runs what is in it.
        raise ValueError("it holds other things than tensors, numbers and texts, which might run code") from None
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA or content.get("step") != step:
        raise ValueError(f"it is not a checkpoint of step {step} of dptrace")
    settings = content.get("facts")
    if not isinstance(settings, dict) or not all(isinstance(value, _SETTING) for value in settings.values()):
        raise ValueError("it does not say which training it belongs to")
    return content


def _in_a_line(value: object) -> str:
    """Return a value from a file as text that fits into a message."""
    return textwrap.shorten(sanitize(str(value)), 80, placeholder="…")


def _file_name(number: int) -> str:
    return f"rank{number:05}.pt"


def checkpoints_of(options: Options) -> Checkpoints | None:
    """Return the checkpoints that a training writes or continues from; None if it does neither.

    Raises:
        UsageError: checkpoints exist and --resume is missing; --resume without checkpoints; or the folder cannot be
            written to.
    """
    if options.checkpoint_every is None and not options.resume:
        return None
    folder = checkpoint_folder(options.mode, options.checkpoints)
    steps = checkpoint_steps(folder)
    begins = restart_count() == 0
    if begins and not options.resume and steps:
        raise UsageError(
            f"{folder} holds checkpoints up to step {steps[-1]}. Continue from the last one with --resume; "
            "to train from the start, remove the folder or choose another with --checkpoints."
        )
    if begins and options.resume and not steps:
        raise UsageError(f"{folder} holds no checkpoint to continue from: leave --resume out.")
    ranks = RankStore("checkpoints")
    if options.checkpoint_every is not None and ranks.rank == 0:
        check_writable(folder)
    return Checkpoints(folder, options.checkpoint_settings, ranks, each_rank=options.mode not in REPLICATED)
