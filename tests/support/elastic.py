"""Kill ranks of a real training at random moments and return the result."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.forking import start_python
from tests.support.recordings import environment

TRAINING = ("--gpus", "2", "--model", "small", "--batch-size", "512", "--steps", "12", "--lr", "0.1")


def trained(folder: Path, kills: int, chance: random.Random, mode: str = "ddp") -> dict[str, Any]:
    """Train, kill *kills* ranks at random steps meanwhile, and return run.json, parameters and what was killed."""
    name = f"run{kills}"
    saving = ["--checkpoint-every", "5", "--checkpoints", str(folder / f"{name}-checkpoints")]
    out = ["-o", str(folder / name), "--save-parameters", str(folder / f"{name}.npz"), "--max-restarts", str(kills)]
    command = ["-m", "dptrace", "record", "--mode", mode, *TRAINING, *saving, *out]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    launcher = start_python(*command, cwd=folder, env=environment(), **pipes)
    progress = folder / f".{name}.recording" / "rank0.steps"
    killed = []
    for _ in range(kills):
        rank_and_step = _kill(launcher, progress, chance)
        if rank_and_step is not None:
            killed.append(rank_and_step)
    _, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, errors
    return {
        "killed": killed,
        "run": json.loads((folder / name / "run.json").read_text()),
        "parameters": dict(np.load(folder / f"{name}.npz")),
        "leftover": list(folder.glob(f"{name}-checkpoints/.*")),
    }


def _steps_done(progress: Path) -> int:
    try:
        return int(progress.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _kill(launcher: subprocess.Popen[str], progress: Path, chance: random.Random) -> tuple[int, int] | None:
    """Kill a random rank after a random wait; return its rank and the last reported step."""
    before = _steps_done(progress)
    deadline = time.monotonic() + 90
    while _steps_done(progress) in (0, before) and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 1.5))
    rank = chance.randrange(2)
    with suppress(OSError, IndexError):  # it has ended
        process, step = int((progress.parent / f"rank{rank}.stacks").read_text().split()[2]), _steps_done(progress)
        os.kill(process, signal.SIGKILL)
        return rank, step
    return None
