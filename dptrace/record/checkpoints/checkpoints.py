"""The checkpoints of a training: the last two are kept, and a training continues from the newest that is intact.

Where every rank holds the whole model, one rank writes a file. Otherwise each rank writes a file with what it holds,
and the folder of these files gets its name when all have been written. torch.distributed.checkpoint is not used: it
reads its index with pickle.load and its objects with weights_only=False, so that a stranger's checkpoint could run any
code.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dptrace.core.text import sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.record.checkpoints.file import read_checkpoint, write_checkpoint
from dptrace.record.checkpoints.folder import check_writable, checkpoint_folder, checkpoint_steps
from dptrace.record.options.modes import REPLICATED
from dptrace.record.options.parse import Options
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.run_folder.messages import rank, restart_count

__all__ = ["Checkpoints", "Peers", "ShardedCheckpoints", "checkpoints_of"]

_KEEP_NEWEST = 2
"""Two, so that there is an older one if the newest is damaged."""
_LONGEST_WRITE = timedelta(hours=1)
_VISIBLE_AFTER_S = 30
"""A network file system may show other machines' files late."""


class Checkpoints:
    """The checkpoints in one folder, each a file that one rank writes.

    Args:
        folder: the folder of the checkpoints, created with the first one.
        settings: what must be the same in a training that continues: model, seed, batch size …
    """

    ending = ".pt"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self.damaged: list[str] = []
        """The checkpoints that :meth:`load_newest` could not read, with the reason."""

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        return checkpoint_steps(self.folder, self.ending)

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.folder / f"step-{step:08}{self.ending}"

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write a checkpoint; then delete old ones.

        Raises:
            DptraceError: it cannot be written.
        """
        for stale in self.folder.glob(".step-*.pt.*.part"):
            with suppress(OSError):
                stale.unlink()  # from a rank that died while writing
        write_checkpoint(self.path(step), step, self.settings, content)
        for old in self.steps()[:-_KEEP_NEWEST]:
            with suppress(OSError):  # what has such a name and is no file stays
                self.path(old).unlink()

    def load_newest(self, before: int, device: torch.device) -> dict[str, Any] | None:
        """Read the newest intact checkpoint of a step less than *before*; None if there is no checkpoint.

        Raises:
            UsageError: it belongs to another training; the message says what differs.
            DptraceError: all checkpoints are damaged.
        """
        self.damaged = []
        steps = [step for step in self._common_steps() if step < before]
        for step in reversed(steps):
            content = self._read(step, device)
            if self._all_can_read(content is not None) and content is not None:
                self._check_same_training(content["facts"], self.path(step))
                return content
        if steps:
            raise DptraceError(
                f"No checkpoint can be read: {'; '.join(self.damaged) or 'the parts of other ranks are damaged'}. To "
                f"train from the start, remove {self.folder} or choose another folder with --checkpoints, and leave "
                "--resume out."
            )
        return None

    def file(self, step: int) -> Path:
        """Return the file that this rank reads."""
        return self.path(step)

    def _common_steps(self) -> list[int]:
        return self.steps()

    def _all_can_read(self, can_read: bool) -> bool:
        return can_read

    def _read(self, step: int, device: torch.device) -> dict[str, Any] | None:
        path = self.file(step)
        try:
            return read_checkpoint(path, step, device)
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


class Store(Protocol):
    """What the ranks need to agree without a collective, which would show in the trace; see RankStore."""

    def barrier(self, barrier_name: str, timeout: timedelta) -> bool: ...

    def publish(self, what: str, text: str) -> None: ...

    def receive(self, what: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks that write a checkpoint together."""

    rank: int
    size: int
    store: Store
    all_true: Callable[[bool], bool]
    """Return on every rank whether all ranks pass True; called before the recording."""


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of ranks that hold different things: a folder for each, with a file of each rank.

    A training continues with the same number of ranks, and each gets back bit for bit what it had.
    """

    ending = ""

    def __init__(self, folder: Path, settings: dict[str, Any], peers: Peers) -> None:
        super().__init__(folder, settings)
        self.peers = peers

    def file(self, step: int) -> Path:
        """Return this rank's file."""
        return self.path(step) / _file_name(self.peers.rank)

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write this rank's file; when all ranks have, rank 0 names the folder and deletes old ones.

        Raises:
            DptraceError: it cannot be written, or another rank could not, or the ranks share no folder.
        """
        unfinished = self.folder / f".{self.path(step).name}.part"
        write_checkpoint(unfinished / _file_name(self.peers.rank), step, self.settings, content)
        if not self.peers.store.barrier(f"step {step}", _LONGEST_WRITE):
            raise DptraceError(f"{self.path(step)}: not all ranks have written their part of the checkpoint.")
        if self.peers.rank == 0:
            self._check_shared(unfinished)
            try:
                self._rename(unfinished, self.path(step))
            except OSError as error:
                raise DptraceError(f"{self.path(step)}: the checkpoint cannot be written: {error}.") from None
            self._delete_old(step)

    def _check_shared(self, unfinished: Path) -> None:
        names = {_file_name(number) for number in range(self.peers.size)}
        until = time.monotonic() + _VISIBLE_AFTER_S
        while missing := names - set(os.listdir(unfinished)):
            if time.monotonic() > until:
                raise DptraceError(
                    f"{self.folder} lacks the files of {len(missing)} ranks: in this mode the machines must share the "
                    "folder of the checkpoints. Choose such a folder with --checkpoints."
                )
            time.sleep(0.1)

    def _rename(self, unfinished: Path, path: Path) -> None:
        if path.exists():  # a damaged one, from which this training could not continue
            path.rename(replaced := path.with_name(f".{path.name}.replaced"))
            shutil.rmtree(replaced, ignore_errors=True)
        unfinished.rename(path)

    def _delete_old(self, step: int) -> None:
        """Delete all but the newest checkpoints, and what attempts before this step have left unfinished."""
        stale = [path for path in self.folder.glob(".step-*.part") if _is_before(path, step)]
        for path in (*(self.path(old) for old in self.steps()[:-_KEEP_NEWEST]), *stale):
            for file in path.glob("*rank*.pt*"):
                with suppress(OSError):
                    file.unlink()
            with suppress(OSError):  # what holds other files stays
                path.rmdir()

    def _common_steps(self) -> list[int]:
        """Return the steps that rank 0 finds, so that all ranks try the same ones."""
        if self.peers.rank == 0:
            steps = self.steps()
            self.peers.store.publish("steps", ",".join(map(str, steps)))
            return steps
        text = self.peers.store.receive("steps")
        return [int(step) for step in text.split(",") if step]

    def _all_can_read(self, can_read: bool) -> bool:
        return self.peers.all_true(can_read)


def _in_a_line(value: object) -> str:
    """Return a value from a file as text that fits into a message."""
    return textwrap.shorten(sanitize(str(value)), 80, placeholder="…")


def _file_name(number: int) -> str:
    return f"rank{number:05}.pt"


def _is_before(unfinished: Path, step: int) -> bool:
    match = re.fullmatch(r"\.step-(\d{8})\.part", unfinished.name)
    return match is not None and int(match[1]) < step


def checkpoints_of(options: Options, device: torch.device) -> Checkpoints | None:
    """Return the checkpoints that a training writes or continues from; None if it does neither.

    Raises:
        UsageError: checkpoints exist and --resume is missing; --resume without checkpoints; or the folder cannot be
            written to.
    """
    if options.checkpoint_every is None and not options.resume:
        return None
    folder, settings = checkpoint_folder(options.mode, options.checkpoints), options.checkpoint_settings
    checkpoints = Checkpoints(folder, settings)
    if options.mode not in REPLICATED:
        peers = _peers(device)
        checkpoints = ShardedCheckpoints(folder, settings | {"ranks": peers.size}, peers)
    steps = checkpoints.steps()
    begins = restart_count() == 0
    if begins and not options.resume and steps:
        raise UsageError(
            f"{checkpoints.folder} holds checkpoints up to step {steps[-1]}. Continue from the last one with --resume; "
            "to train from the start, remove the folder or choose another with --checkpoints."
        )
    if begins and options.resume and not steps:
        raise UsageError(f"{checkpoints.folder} holds no checkpoint to continue from: leave --resume out.")
    if options.checkpoint_every is not None and rank() == 0:
        check_writable(checkpoints.folder)
    return checkpoints


def _peers(device: torch.device) -> Peers:
    def all_true(mine: bool) -> bool:
        flag = torch.tensor(int(mine), device=device)
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)

    store = RankStore("checkpoints")
    return Peers(store.rank, store.size, store, all_true)
