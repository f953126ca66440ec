"""Kill ranks of a real training at moments of chance, and see what becomes of it.

``python -m tests.support.elastic KILLS`` kills so many in all, over several trainings, and prints what it saw.
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

from tests.support.recordings import environment

__all__ = ["trained"]

TRAINING = ("--mode", "ddp", "--gpus", "2", "--model", "small", "--batch-size", "2048", "--steps", "12", "--lr", "0.1")
_IN_ONE = 3
"""Kills in one training."""


def _ranks(launcher: int) -> list[psutil.Process]:
    """Give the processes that train, once they do."""
    found = []
    for process in psutil.Process(launcher).children(recursive=True):
        try:
            if "RANK" in process.environ() and process.cmdline()[1:2][-1:] and "ddp.py" in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return [one for one in found if "agent" not in " ".join(one.cmdline())]


def trained(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Train, and kill *kills* ranks on the way, each at a step of chance; give what is to be known of it."""
    name = f"run{kills}"
    saving = ["--checkpoint-every", "5", "--checkpoints", str(folder / f"{name}-checkpoints")]
    out = ["-o", str(folder / name), "--save-parameters", str(folder / f"{name}.npz"), "--max-restarts", str(kills)]
    command = [sys.executable, "-m", "dptrace", "record", *TRAINING, *saving, *out]
    launcher = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    progress = folder / f".{name}.recording" / "progress"
    killed = []
    for _ in range(kills):
        found = _kill(launcher, progress, chance)
        if found is not None:
            killed.append(found)
    _, told = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, told
    return {
        "killed": killed,
        "told": told,
        "run": json.loads((folder / name / "run.json").read_text()),
        "parameters": dict(np.load(folder / f"{name}.npz")),
        "leftover": list(folder.glob(f"{name}-checkpoints/.*")),
    }


def _kill(launcher: subprocess.Popen[str], progress: Path, chance: random.Random) -> tuple[int, int] | None:
    """Kill a rank of chance once training has begun, after a wait of chance; give its rank and the last step told."""
    progress.unlink(missing_ok=True)
    until = time.monotonic() + 90
    while not progress.exists() and launcher.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 5))
    ranks = _ranks(launcher.pid) if launcher.poll() is None else []
    if not ranks:
        return None
    victim = chance.choice(ranks)
    try:
        number, step = int(victim.environ()["RANK"]), int(progress.read_text().split()[0])
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.Error, OSError, ValueError, IndexError):
        return None
    return number, step


def main(kills: int) -> None:
    """Kill so many in all, and print each training's fate."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        calm = trained(Path(name), 0, chance)["parameters"]
    done = 0
    while done < kills:
        with tempfile.TemporaryDirectory() as name:
            found = trained(Path(name), min(_IN_ONE, kills - done), chance)
        same = all(np.array_equal(calm[key], found["parameters"][key]) for key in calm)
        went_on = [note for note in found["run"]["notes"] if "went on" in note]
        print(
            f"killed (rank, after step) {found['killed']}: parameters equal {same}; {went_on[-1:]}; "
            f"restarts told {[(r['rank'], r['message']) for r in found['run']['restarts']]}",
            flush=True,
        )
        done += max(len(found["killed"]), 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
