"""Runs that are recorded once for all tests that read them: real processes, a small model, few steps."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support.forking import run_python

STEPS = 2
WAIT, WARMUP = 4, 2


def dptrace(*arguments: str, cwd: Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command line in *cwd*; with *ok*, it must succeed."""
    completed = run_python("-m", "dptrace", *arguments, cwd=cwd, env=environment())
    assert not ok or completed.returncode == 0, completed.stderr
    return completed


def environment() -> dict[str, str]:
    """Return an environment in which recordings are the same on all machines: on CPU even if there are GPUs."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "132"}


@cache
def scratch() -> Path:
    """Return a folder that is deleted when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="dptrace-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def recorded(mode: str, ranks: int) -> Path:
    """Record a mode with 256 samples a step, and return the run folder; its parameters are saved next to it."""
    name = f"{mode}{ranks}"
    gpus = [] if mode == "single" else ["--gpus", str(ranks)]
    training = ["--model", "small", "--batch-size", "256", "--lr", "0.1", "--save-parameters", f"{name}.npz"]
    schedule = ["--steps", str(STEPS), "--warmup", str(WARMUP), "--wait", str(WAIT)]
    dptrace("record", "--mode", mode, *gpus, *training, *schedule, "-o", name, cwd=scratch())
    return scratch() / name


def parameters_of(run: Path) -> Path:
    """Return the file with the parameters after the last step of a run."""
    return run.with_name(f"{run.name}.npz")
