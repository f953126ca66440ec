"""A training of two ranks that is interrupted at a given moment, under ``dptrace record`` with real processes."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forking import run_python
from tests.support.processes import processes_in
from tests.support.recordings import environment

STEPS = 6
"""Steps of the window, after one that begins the count and two of warm-up."""

_TRAINING = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist

how, when, who, operators = *sys.argv[1:4], int(sys.argv[4])
dist.init_process_group("gloo")
torch.manual_seed(1)
rank = dist.get_rank()
acts = who in ("all", str(rank))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kill = os.kill  # kept by those that are signaled

def act():
    open("acting", "w").close()
    if how in ("SIGINT", "SIGTERM"):
        kill(int(os.environ["DPTRACE_LAUNCHER"]), getattr(signal, how))
    elif how == "kill recorder":
        kill(int(os.environ["DPTRACE_LAUNCHER"]), signal.SIGKILL)
    elif how == "kill torchrun":
        kill(int(os.environ["DPTRACE_AGENT"]), signal.SIGKILL)
    elif how == "kill rank":
        kill(os.getpid(), signal.SIGKILL)
    elif how == "SIGTERM to rank":
        kill(os.getpid(), signal.SIGTERM)
    elif how.startswith("os._exit"):
        os._exit(int(how[9:-1]))
    elif how == "return":
        sys.exit(0)
    elif how == "raise":
        raise ValueError("boom")

def act_while_writing():
    while not os.path.exists(f".t.recording/rank{rank}.writing"):
        time.sleep(0.001)
    time.sleep(0.05)
    act()

if acts and when == "writing":
    threading.Thread(target=act_while_writing, daemon=True).start()
moments = {"before": 1, "in": 6}
for step in range(400):
    if acts and step == moments.get(when):
        act()
    if acts and when == "after" and os.path.exists("t"):
        act()
        acts = False
    if rank:
        print("." * 9000, flush=True)  # more than a pipe holds, in all steps
    for _ in range(operators):
        torch.ones(1)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if how == "nothing" and step == 20:
        break
print("last parameter", model.weight[0, 0].item(), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """What an interrupted recording has left."""

    code: int
    said: str
    printed: str
    runs: dict[str, dict[int, int]]
    """The recorded steps of each rank, by the name of the run."""
    hidden: list[str]
    """Hidden files and folders."""
    orphans: int
    """Processes that stay."""
    seconds: float


def interrupt(
    folder: Path, how: str, when: str = "in", who: str = "all", operators: int = 10, fault: dict[str, str] | None = None
) -> Outcome:
    """Record a training to ``t`` that does *how* to itself, to its recorder or to torchrun.

    Args:
        when: ``before``, ``in`` or ``after`` the window, or ``writing``.
        who: the rank that does it; ``all`` for both.
        operators: further operators of each step, which make writing take longer.
        fault: what ``faults.setting`` returns.
    """
    (folder / "train.py").write_text(_TRAINING)
    began = time.monotonic()
    options = ["--gpus", "2", "--warmup", "2", "--steps", str(STEPS), "-o", "t"]
    words = ["-m", "dptrace", "record", *options, "train.py", how, when, who, str(operators)]
    ended: subprocess.CompletedProcess[str] = run_python(*words, cwd=folder, env=environment() | (fault or {}))
    seconds = time.monotonic() - began
    until = time.monotonic() + 30
    while processes_in(folder) and time.monotonic() < until:
        time.sleep(0.05)
    runs = {path.parent.name: _steps(json.loads(path.read_text())) for path in folder.glob("*/run.json")}
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    return Outcome(ended.returncode, ended.stderr, ended.stdout, runs, hidden, len(processes_in(folder)), seconds)


def _steps(info: dict[str, Any]) -> dict[int, int]:
    return {rank["rank"]: rank["recorded_steps"] for rank in info["ranks"]}
