"""However a recording ends, its complete steps are kept, no process and no hidden folder stays, and the end is said."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import start_python
from tests.support.interruptions import STEPS, interrupt
from tests.support.processes import processes_in, wait_until
from tests.support.recordings import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

BOTH, FEW = {0, 1}, 3
"""The ranks, and the steps that have ended when a script ends in the window."""
MANY = 1200
"""Operators of a step that make writing take half a second."""


@pytest.mark.parametrize(
    ("how", "when", "who", "code", "run", "steps", "says"),
    [
        ("SIGINT", "in", "0", 130, "t", FEW, "Recorded, and kept: t"),
        pytest.param("SIGINT", "writing", "0", 130, "t", STEPS, "writing the traces of", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "writing", "0", 143, "t", STEPS, "Recorded, and kept: t", marks=pytest.mark.slow),
        ("os._exit(0)", "in", "all", 0, "t", FEW, f"{FEW} of {STEPS} steps"),
        pytest.param("os._exit(3)", "in", "all", 3, "t.failed", FEW, "exit code 3", marks=pytest.mark.slow),
        pytest.param(
            "os._exit(0)", "writing", "all", None, "t", STEPS, "", marks=pytest.mark.slow
        ),  # the second one to end may lose the first
        pytest.param(
            "return", "in", "1", 1, "t.failed", FEW, "rank 1 ended without an error first", marks=pytest.mark.slow
        ),
        pytest.param(
            "SIGTERM to rank", "writing", "1", 143, "t", STEPS, "Rank 1 was ended by SIGTERM", marks=pytest.mark.slow
        ),
        pytest.param("kill recorder", "in", "0", -9, "t.failed", FEW, "", marks=pytest.mark.slow),
        pytest.param("kill recorder", "writing", "0", -9, "t.failed", STEPS, "", marks=pytest.mark.slow),
        pytest.param("kill torchrun", "in", "0", 137, "t.failed", FEW, "was ended by SIGKILL", marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("how", "code", "steps", "says"),
    [
        ("raise", 1, {0: FEW, 1: FEW}, "died: ValueError: boom"),
        ("kill rank", 137, {0: FEW}, "was ended by SIGKILL"),  # which can write nothing; its peer writes
    ],
)
def test_a_rank_that_dies_ends_the_run_within_seconds(
    how: str, code: int, steps: dict[int, int], says: str, tmp_path: Path
) -> None:
    """Its peer waits in an all-reduce; the message contains rank, reason, last lines, and the kept files."""
    left = interrupt(tmp_path, how, "in", "1")
    report = left.said[left.said.index("Error: Rank 1") :]  # before that, rank 0 says what it saw, as without dptrace
    kept = tmp_path / "t.failed"
    info = json.loads((kept / "run.json").read_text())

    assert (code, {"t.failed": steps}) == (left.code, left.runs)
    assert report.startswith(f"Error: Rank 1 {says}")
    assert "Traceback (most recent call last)" not in report.split("Its last lines:")[0]
    assert (how == "raise") == ('    raise ValueError("boom")' in report)
    assert ("failed", 1) == (info["status"], info["failure"]["rank"])
    assert all(path.name in left.said for path in kept.glob("rank*"))
    assert ([], 0) == (left.hidden, left.orphans)
    # A second or two, where nothing else runs; torchrun alone would wait half a minute, and gloo half an hour.
    assert (kept / "run.json").stat().st_mtime - (tmp_path / "acting").stat().st_mtime < 25


SPAWNING = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, meet):
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 20:
            open("ready", "w").close()

if __name__ == "__main__":
    mp.start_processes(train, args=("file://" + sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["trainer", "spawned"])
def test_other_ranks_than_a_scripts_write_when_they_are_terminated_too(ranks: str, tmp_path: Path) -> None:
    """Those of a trainer of dptrace, and those that a script spawns: SIGTERM to one of them loses no step."""
    (tmp_path / "train.py").write_text(SPAWNING)
    program = ["--mode", "naive", "--model", "small", "--batch-size", "64", "--gpus", "2"]
    if ranks == "spawned":
        program = ["--gpus", "1", "train.py", str(tmp_path / "meet")]
    command = ["-m", "dptrace", "record", "--warmup", "2", "--wait", "0", "--steps", "5000", "-o", "t"]
    recorder = start_python(*command, *program, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment())
    staging = tmp_path / ".t.recording"
    steps = staging / "rank1.steps"
    # A rank may be about to write the file.
    wait_until(lambda: steps.exists() and int((steps.read_text().split() + ["0"] * 3)[2]) >= FEW)
    os.kill(int((staging / "rank1.stacks").read_text().split()[2]), signal.SIGTERM)
    _, said = recorder.communicate(timeout=120)

    assert 143 == recorder.returncode, said
    info = json.loads((tmp_path / "t.failed" / "run.json").read_text())
    assert BOTH == {rank["rank"] for rank in info["ranks"] if rank["recorded_steps"] >= FEW}, said
    assert [] == processes_in(tmp_path)


SAVING = """
import sys, time
import torch

parameter = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
try:
    for step in range(4000):
        parameter.sum().backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 20:
            open("ready", "w").close()
except KeyboardInterrupt:
    time.sleep(float(sys.argv[1]))
    print("saved")
"""


def _interrupted(
    folder: Path, script: str, numbers: Sequence[int], *words: str, ignored: bool = False
) -> tuple[int, str, str]:
    """Signal a recorder once its training is in the window; return its exit code and what it printed.

    Args:
        ignored: whether the recorder is started with these signals ignored, as nohup and a shell's ``&`` do.
    """
    (folder / "train.py").write_text(script)
    options = ["--warmup", "2", "--steps", "5000", "-o", "t", *words[:2]]
    command = ["-m", "dptrace", "record", *options, "train.py", *words[2:]]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if ignored:  # a real start: a fork of the tests has signal handlers of its own
        pipes["preexec_fn"] = lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]
    recorder = start_python(*command, cwd=folder, env=environment(), **pipes)
    wait_until((folder / "ready").exists)
    for number in numbers:
        recorder.send_signal(number)
    printed, said = recorder.communicate(timeout=120)
    wait_until(lambda: not processes_in(folder))
    return recorder.returncode, printed, said


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "seconds", "expected"), [("1", "9", 0), ("2", "0", 130)])
def test_a_script_saves_at_ctrl_c_as_long_as_it_takes(gpus: str, seconds: str, expected: int, tmp_path: Path) -> None:
    """It reaches the script as KeyboardInterrupt, with torchrun or without; one process has its own exit code."""
    code, printed, said = _interrupted(tmp_path, SAVING, [signal.SIGINT], "--gpus", gpus, seconds)

    assert (expected, "saved\n") == (code, printed), said
    assert "waiting for the training to end … (Ctrl-C again gives up)" in said
    assert ["ready", "t", "train.py"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.slow
def test_signals_that_are_ignored_stay_ignored(tmp_path: Path) -> None:
    """Under nohup, or in the background of a script, the training goes on to its end."""
    script = SAVING.replace("4000", "60") + 'print("trained")\n'
    both = (signal.SIGHUP, signal.SIGINT)
    code, printed, said = _interrupted(tmp_path, script, both, "--gpus", "1", "0", ignored=True)

    assert (0, "trained\n") == (code, printed), said


@pytest.mark.slow
@pytest.mark.parametrize("gpus", ["1", "2"])
def test_a_closed_terminal_has_its_exit_code(gpus: str, tmp_path: Path) -> None:
    """SIGHUP ends the training as SIGTERM does, and the code is that of SIGHUP."""
    code, printed, said = _interrupted(tmp_path, SAVING, [signal.SIGHUP], "--gpus", gpus, "0")

    assert (129, "") == (code, printed), said
    assert ["ready", "t", "train.py"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("script", [SAVING, SPAWNING])
def test_one_process_whose_recorder_is_killed_keeps_the_run(script: str, tmp_path: Path) -> None:
    """No torchrun could: the process that trains does, or that has started the ranks."""
    meet = tmp_path / "meet"
    argument = "0" if script is SAVING else str(meet)
    _, _, said = _interrupted(tmp_path, script, [signal.SIGKILL], "--gpus", "1", argument)

    meet.unlink(missing_ok=True)
    assert ["ready", "t.failed", "train.py"] == sorted(path.name for path in tmp_path.iterdir()), said
    ranks = json.loads((tmp_path / "t.failed" / "run.json").read_text())["ranks"]
    assert [1 if script is SAVING else 2, True] == [len(ranks), all(rank["recorded_steps"] > FEW for rank in ranks)]


@pytest.mark.slow
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
