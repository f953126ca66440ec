"""Kill ranks of a real training at random moments and return the result.

``python -m tests.support.elastic KILLS`` makes this many kills over several trainings and prints the results.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.support.forking import start_python
from tests.support.recordings import environment

TRAINING = ("--gpus", "2", "--model", "small", "--batch-size", "2048", "--steps", "12", "--lr", "0.1")
_IN_ONE = 3
"""Number of kills in one training."""


def _ranks(launcher: int, mode: str) -> list[psutil.Process]:
    """Return the processes that train, if they have started."""
    ranks = []
    for process in psutil.Process(launcher).children(recursive=True):
        try:
            if (
                "RANK" in process.environ()
                and process.cmdline()[1:2][-1:]
                and f"{mode}.py" in " ".join(process.cmdline())
            ):
                ranks.append(process)
        except (psutil.Error, IndexError):
            continue
    return [process for process in ranks if "agent" not in " ".join(process.cmdline())]


def trained(folder: Path, kills: int, chance: random.Random, mode: str = "ddp") -> dict[str, Any]:
    """Train, kill *kills* ranks at random steps meanwhile, and return run.json, parameters and what was killed."""
    name = f"run{kills}"
    saving = ["--checkpoint-every", "5", "--checkpoints", str(folder / f"{name}-checkpoints")]
    out = ["-o", str(folder / name), "--save-parameters", str(folder / f"{name}.npz"), "--max-restarts", str(kills)]
    command = ["-m", "dptrace", "record", "--mode", mode, *TRAINING, *saving, *out]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    about = pipes | {"cwd": folder, "env": environment()}
    launcher = subprocess.Popen([sys.executable, *command], **about) if kills else start_python(*command, **about)
    progress = folder / f".{name}.recording" / "rank0.steps"
    killed = []
    for _ in range(kills):
        rank_and_step = _kill(launcher, mode, progress, chance)
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


def _kill(launcher: subprocess.Popen[str], mode: str, progress: Path, chance: random.Random) -> tuple[int, int] | None:
    """Kill a random rank after a random wait; return its rank and the last reported step."""
    before = _steps_done(progress)
    deadline = time.monotonic() + 90
    while _steps_done(progress) in (0, before) and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 5))
    ranks = _ranks(launcher.pid, mode) if launcher.poll() is None else []
    if not ranks:
        return None
    victim = chance.choice(ranks)
    try:
        number, step = int(victim.environ()["RANK"]), _steps_done(progress)
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.Error, OSError, ValueError, IndexError):
        return None
    return number, step


def main(kills: int) -> None:
    """Make *kills* kills and print the result of each training."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        undisturbed = trained(Path(name), 0, chance)["parameters"]
    done = 0
    while done < kills:
        with tempfile.TemporaryDirectory() as name:
            result = trained(Path(name), min(_IN_ONE, kills - done), chance)
        same = all(np.array_equal(undisturbed[key], result["parameters"][key]) for key in undisturbed)
        resumed = [note for note in result["run"]["notes"] if "continued" in note]
        print(
            f"killed (rank, after step) {result['killed']}: parameters equal {same}; {resumed[-1:]}; "
            f"restarts {[(r['rank'], r['message']) for r in result['run']['restarts']]}",
            flush=True,
        )
        done += max(len(result["killed"]), 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
