"""Running a script that was not changed."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.forking import run_python
from tests.support.recordings import dptrace

pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


def test_a_rank_that_failed_ends_whatever_its_recording_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even if closing the recording fails: its peers would wait for it."""
    from dptrace.record.script import runner, spawn
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    class Left(BaseException):
        pass

    def leave(code: int) -> None:
        raise Left(code)

    def fail(self: object, error: BaseException | None) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(runner, "_leave", leave)
    monkeypatch.setattr(OptimizerSteps, "close", fail)
    (tmp_path / "train.py").write_text("raise ValueError")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which a program replaces
    ranks = spawn.OwnRanks(spawn._Start("train.py", {}, os.getpid()), print)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    try:
        with pytest.raises(Left, match="1"):
            runner._run(str(tmp_path / "train.py"), False, OptimizerSteps(), ranks)
    finally:
        for number, handler in handlers.items():  # which a rank that ends ignores
            signal.signal(number, handler)


FORKING = """
import os, sys, torch

def fork():
    if os.fork() == 0:
        sys.exit(0)
    os.wait()

fork()
parameter = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(6):
    parameter.sum().backward()
    optimizer.step()
    if step == 3:
        fork()
fork()
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_a_child_that_the_script_forks_leaves_the_recording_alone(tmp_path: Path) -> None:
    """The end of the child is not the end of the script: the recording is complete."""
    (tmp_path / "forks.py").write_text(FORKING)
    options = ["--gpus", "1", "--steps", "2", "--warmup", "2", "--wait", "0", "-o", "run"]
    dptrace("record", *options, "forks.py", cwd=tmp_path)

    assert "complete" == json.loads((tmp_path / "run" / "run.json").read_text())["status"]


HOLDING = """
import os, sys, threading, time
from dptrace.record.distributed import exit_now

kept = open("kept", "w")
kept.write("kept")
full = os.fdopen(os.pipe()[1], "wb")
threading.Thread(target=full.write, args=(bytes(1 << 20),), daemon=True).start()
time.sleep(0.5)
if os.fork() == 0:
    exit_now(3)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.spawn
def test_a_child_ends_though_a_thread_of_its_parent_held_a_file_when_it_forked(tmp_path: Path) -> None:
    """No thread of the child's ever releases the file; those that nobody holds are written."""
    (tmp_path / "holds.py").write_text(HOLDING)
    ended = run_python("holds.py", cwd=tmp_path)

    assert 3 == ended.returncode
    assert "kept" == (tmp_path / "kept").read_text()


TERMINATED = """
import os, signal, torch

class Boom(Exception):
    def with_traceback(self, trace):  # what the runner calls before it shows the traceback
        os.kill(os.getpid(), signal.SIGTERM)
        return super().with_traceback(trace)

parameter = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(12):
    if step == 8:
        raise Boom("in step 8")
    parameter.sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_sigterm_while_a_failure_is_reported_loses_nothing(tmp_path: Path) -> None:
    """As of the peer of a rank that died: the failure, its traceback and the steps are kept; no process crashes."""
    (tmp_path / "boom.py").write_text(TERMINATED)
    options = ["--gpus", "1", "--steps", "30", "--warmup", "2", "--wait", "0", "-o", "run"]
    ended = dptrace("record", *options, "boom.py", cwd=tmp_path, ok=False)

    assert 1 == ended.returncode
    assert "Rank 0 died: Boom: in step 8" in ended.stderr
    assert 'raise Boom("in step 8")' in ended.stderr
    info = json.loads((tmp_path / "run.failed" / "run.json").read_text())
    assert [5] == [rank["recorded_steps"] for rank in info["ranks"]]


WRITING = """
import atexit, gzip, sys, torch

atexit.register(lambda: open("handled", "w").close())
rows, packed = open("rows", "w"), gzip.open("rows.gz", "wt")
parameter = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(12):
    print(step, file=rows)
    print(step, file=packed)
    parameter.sum().backward()
    optimizer.step()
sys.stdout.close()
if sys.argv[1] == "fail":
    raise ValueError("boom")
if sys.argv[1] == "exit":
    sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("how", "code"), [("succeed", 0), ("fail", 1), ("exit", 3)])
def test_the_scripts_own_files_are_whole(how: str, code: int, tmp_path: Path) -> None:
    """A script need not close its files, and may close standard output; its exit handlers run, as without dptrace."""
    (tmp_path / "writes.py").write_text(WRITING)
    options = ["--gpus", "1", "--steps", "3", "--warmup", "2", "--wait", "0", "-o", "run"]
    ended = dptrace("record", *options, "writes.py", how, cwd=tmp_path, ok=False)

    assert code == ended.returncode, ended.stderr
    assert (tmp_path / "handled").exists()
    assert [str(step) for step in range(12)] == (tmp_path / "rows").read_text().split()
    with gzip.open(tmp_path / "rows.gz", "rt") as file:
        assert [str(step) for step in range(12)] == file.read().split()
