"""However a recording ends, its complete steps are kept, no process and no hidden folder stays, and the end is said."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.interruptions import STEPS, interrupt
from tests.support.processes import processes_in
from tests.support.recordings import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

BOTH, FEW = {0, 1}, 3
"""The ranks, and the steps that have ended when a script ends in the window."""
MANY = 2500
"""Operators of a step that make writing take a second."""


@pytest.mark.parametrize(
    ("how", "when", "who", "code", "run", "steps", "says"),
    [
        ("SIGINT", "in", "0", 130, "t", FEW, "Recorded, and kept: t"),
        ("SIGINT", "writing", "0", 130, "t", STEPS, "writing the traces of"),
        ("SIGTERM", "writing", "0", 143, "t", STEPS, "Recorded, and kept: t"),
        ("os._exit(0)", "in", "all", 0, "t", FEW, f"{FEW} of {STEPS} steps"),
        ("os._exit(3)", "in", "all", 1, "t.failed", FEW, "exit code 3"),
        ("os._exit(0)", "writing", "all", None, "t", STEPS, ""),  # the second one to end may lose the first
        ("return", "in", "1", 1, "t.failed", FEW, "rank 1 ended without an error first"),
        ("raise", "in", "1", 1, "t.failed", FEW, "Rank 1 died: ValueError: boom"),
        ("SIGTERM to rank", "writing", "1", 1, "t", STEPS, "Rank 1 died"),
        ("kill recorder", "in", "0", -9, "t.failed", FEW, ""),
        ("kill recorder", "writing", "0", -9, "t.failed", STEPS, ""),
        ("kill torchrun", "in", "0", 1, "t.failed", FEW, "was killed by SIGKILL"),
    ],
)
def test_complete_steps_are_kept(
    tmp_path: Path, how: str, when: str, who: str, code: int | None, run: str, steps: int, says: str
) -> None:
    """Signals, exits, exceptions and kills, in the recorded steps and while these are written."""
    left = interrupt(tmp_path, how, when, who, MANY if when == "writing" else 10)

    assert code in (left.code, None), left.said
    assert [run] == [name for name, ranks in left.runs.items() if ranks], left.said  # besides logs without traces
    assert BOTH == set(left.runs[run])
    assert min(left.runs[run].values()) >= steps
    assert says in left.said
    assert ([], 0) == (left.hidden, left.orphans)


def test_a_killed_rank_loses_its_own_steps_only(tmp_path: Path) -> None:
    """Nothing can be written by a process that is killed; its peer writes, and the run is not called complete."""
    left = interrupt(tmp_path, "kill rank", "in", "1")

    assert (1, {"t.failed": {0: FEW}}) == (left.code, left.runs)
    assert "Rank 1 died: killed by SIGKILL" in left.said
    assert ([], 0) == (left.hidden, left.orphans)


SPAWNING = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, meet):
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)

if __name__ == "__main__":
    mp.spawn(train, args=("file://" + sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize("ranks", ["trainer", "spawned"])
def test_other_ranks_than_a_scripts_write_when_they_are_terminated_too(ranks: str, tmp_path: Path) -> None:
    """Those of a trainer of dptrace, and those that a script spawns: SIGTERM to one of them loses no step."""
    (tmp_path / "train.py").write_text(SPAWNING)
    program = ["--mode", "naive", "--model", "small", "--batch-size", "64", "--gpus", "2"]
    if ranks == "spawned":
        program = ["--gpus", "1", "train.py", str(tmp_path / "meet")]
    command = [sys.executable, "-m", "dptrace", "record", "--warmup", "2", "--wait", "0", "--steps", "5000", "-o", "t"]
    recorder = subprocess.Popen(
        [*command, *program], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment()
    )
    staging, until = tmp_path / ".t.recording", time.monotonic() + 120
    while not (steps := staging / "rank1.steps").exists() or int(steps.read_text().split()[2] or 0) < FEW:
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(int((staging / "rank1.stacks").read_text().split()[2]), signal.SIGTERM)
    _, said = recorder.communicate(timeout=120)

    assert 1 == recorder.returncode, said
    info = json.loads((tmp_path / "t.failed" / "run.json").read_text())
    assert BOTH == {rank["rank"] for rank in info["ranks"] if rank["recorded_steps"] >= FEW}, said
    assert [] == processes_in(tmp_path)


def test_what_a_killed_recorder_has_left_is_kept_by_the_next(tmp_path: Path) -> None:
    """If torchrun is killed, too, traces stay in the hidden folder until somebody records to the same name."""
    left = tmp_path / ".t.recording" / "window1"
    recorded = interrupt(tmp_path, "nothing")
    assert recorded.runs, recorded.said
    (tmp_path / "t").rename(tmp_path / "first")
    left.mkdir(parents=True)
    (left.parent / "owner").write_text(f"999999999 {platform.node()}")
    for path in (tmp_path / "first").glob("rank*"):
        path.rename(left / path.name)

    again = interrupt(tmp_path, "nothing")
    assert 0 == again.code
    assert "t.failed" in again.said
    assert {"t", "t.failed", "first"} == set(again.runs)
    assert 2 == len(list((tmp_path / "t.failed").glob("rank*.gz")))
