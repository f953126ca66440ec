"""Runs made of the traces of any torch.profiler use."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dptrace
from dptrace.errors import UsageError
from tests.support.forking import run_python
from tests.support.paths import ROOT
from tests.support.recordings import environment

torch = pytest.importorskip("torch")

from dptrace.record import trace_handler  # noqa: E402
from dptrace.record.integrations.trace_handler import recorded_steps  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default", "ignore:Profiler won't be using warmup")  # torch's own

SCRIPT = """
import contextlib, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from dptrace.record import trace_handler

out, profiling = sys.argv[1], sys.argv[2].split(",")
rank = os.environ.get("RANK", "0")
model = nn.Linear(64, 64)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
profiler = profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=trace_handler(out),
)
with profiler if rank in profiling else contextlib.nullcontext():
    for _ in range(8):
        model(torch.ones(8, 64)).mean().backward()
        if rank in profiling:
            profiler.step()
if dist.is_initialized():
    dist.destroy_process_group()
print("trained")
"""


def _run(folder: Path, profiling: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = environment() | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = run_python(*torchrun, "train.py", "runs/x", profiling, cwd=folder, env=variables)
    assert (0, ranks) == (done.returncode, done.stdout.count("trained")), done.stderr
    return done


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.spawn
def test_each_cycle_of_one_process_is_a_run(tmp_path: Path) -> None:
    """Both cycles of a schedule are there, complete, with their steps, and the log has the split of each."""
    done = _run(tmp_path, "0")

    assert ["x", "x-2"] == _names(tmp_path / "runs")
    for name, steps in (("x", (2, 3)), ("x-2", (6, 7))):
        run = dptrace.open(tmp_path / "runs" / name)
        assert ("complete", 2) == (run.metadata["status"], run.metadata["ranks"][0]["recorded_steps"])
        assert [f"ProfilerStep#{step}" for step in steps] == list(run.steps()["step"])
    assert 2 == done.stderr.count("\nA step takes ")
    with pytest.raises(UsageError, match="already contains a run"):
        trace_handler(tmp_path / "runs" / "x")


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("profiling", ["0,1", "1"])
def test_ranks_that_profile_make_one_run(profiling: str, tmp_path: Path) -> None:
    """All ranks or only one, rank 0 or another: one run with what is there, and a word where ranks are missing."""
    done = _run(tmp_path, profiling, ranks=2)

    ranks = [int(rank) for rank in profiling.split(",")]
    assert ["x", "x-2"] == _names(tmp_path / "runs")
    for name in ("x", "x-2"):
        run = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        assert (2, "gloo", ranks) == (run["world_size"], run["backend"], [rank["rank"] for rank in run["ranks"]])
        assert [f"rank{rank}.pt.trace.json.gz" for rank in ranks] == _names(tmp_path / "runs" / name)[:-1]
    assert (0 if len(ranks) == 2 else 2) == done.stderr.count("Only 1 of 2 ranks profiled")


def test_what_holds_files_is_refused_before_the_training(tmp_path: Path) -> None:
    """Not when the trace is there and nowhere to go."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="x exists"):
        trace_handler(tmp_path / "x")


def test_an_error_is_one_line_and_the_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profiler that cannot write its trace."""

    def fail(path: str) -> None:
        raise OSError("disk full")

    trace_handler(tmp_path / "x")(SimpleNamespace(export_chrome_trace=fail))  # type: ignore[arg-type]

    (line,) = capsys.readouterr().err.splitlines()
    assert "disk full" in line
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "at", "expected"),
    [
        ({"wait": 1, "warmup": 1, "active": 3}, 5, 3),
        ({"wait": 1, "warmup": 1, "active": 3, "repeat": 2}, 10, 3),
        ({"wait": 0, "warmup": 0, "active": 2}, 4, 2),
        ({"wait": 1, "warmup": 1, "active": 3}, 4, 2),
        ({"wait": 1, "warmup": 1, "active": 3}, 2, 0),
    ],
    ids=["one-cycle", "second-cycle", "without-a-pause", "cut-short", "cut-in-its-first-step"],
)
def test_whole_steps_are_counted_from_the_schedule(settings: dict[str, Any], at: int, expected: int) -> None:
    """A trace is handed over after the last step of a cycle, or where the profiler was stopped."""
    from torch.profiler import schedule

    profiler: Any = SimpleNamespace(schedule=schedule(**settings), step_num=at)
    assert expected == recorded_steps(profiler)
