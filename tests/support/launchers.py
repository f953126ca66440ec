"""Launchers that need not be installed: a stand-in of accelerate, and ranks as ``srun`` and ``mpirun`` start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forking import start_python
from tests.support.recordings import environment


def fake_accelerate(folder: Path) -> Path:
    """Write a command ``accelerate`` that starts torchrun, and return its folder."""
    place = folder / "with accelerate"
    place.mkdir()
    command = place / "accelerate"
    command.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -m torch.distributed.run --standalone "$@"\n')
    command.chmod(0o755)
    return place


def launched(
    command: Sequence[str], ranks: Sequence[Mapping[str, str]], cwd: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command of Python in a process for each rank, with its variables, and return how each ended."""
    tasks = [
        start_python(
            *command,
            cwd=cwd,
            env=environment() | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in ranks
    ]
    ends = [task.communicate(timeout=300) for task in tasks]
    return [
        subprocess.CompletedProcess(task.args, task.returncode, *end) for task, end in zip(tasks, ends, strict=True)
    ]
