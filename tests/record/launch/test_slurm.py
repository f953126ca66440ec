"""What srun's variables mean, and recordings that a simulated srun starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.record.launch.slurm import expand_host_list, slurm_task
from tests.support.srun import srun, task_environment


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("rack[1-2]node[1,3]-ib", ["rack1node1-ib", "rack1node3-ib", "rack2node1-ib", "rack2node3-ib"]),
        ("a,b[2],c.example.org", ["a", "b2", "c.example.org"]),
    ],
)
def test_host_lists_are_expanded(text: str, names: list[str]) -> None:
    """Ranges keep their leading zeros, several brackets are combined, names without brackets stay."""
    assert names == expand_host_list(text)


@pytest.mark.parametrize("text", ["", "gpu[1-", "gpu[a-b]", "a,,b", "gpu[]", "a]"])
def test_a_broken_host_list_is_refused(text: str) -> None:
    """The message says what to give instead."""
    with pytest.raises(UsageError, match="--rdzv-endpoint"):
        expand_host_list(text)


def test_one_task_per_machine_is_a_launcher_of_its_machine() -> None:
    """Its number is the machine's, and all know the first machine; the port depends on the job."""
    tasks = [slurm_task(task_environment(number, 1, 3)) for number in range(3)]

    assert [0, 1, 2] == [task.launcher for task in tasks if task]
    assert {(3, False, "localhost:24242")} == {(t.launchers, t.starts_one_rank, t.endpoint) for t in tasks if t}
    other = slurm_task(task_environment(0, 1, 3, job=4243))
    assert other is not None
    assert "localhost:24243" == other.endpoint


def test_one_task_per_gpu_is_one_rank() -> None:
    """Its number is the rank; on one machine no other machine needs to reach the first task."""
    tasks = [slurm_task(task_environment(number, 2, 2)) for number in range(4)]

    assert [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)] == [(t.launcher, t.machine, t.local_task) for t in tasks if t]
    assert {(4, True, 2)} == {(t.launchers, t.starts_one_rank, t.local_tasks) for t in tasks if t}
    alone = slurm_task(task_environment(0, 2, 1))
    assert alone is not None
    assert "127.0.0.1" == alone.endpoint.rpartition(":")[0]


def test_machines_may_have_different_numbers_of_tasks() -> None:
    """Slurm writes runs of equal counts as 4(x2)."""
    five = task_environment(4, 2, 3) | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NUM_TASKS": "5"}
    task = slurm_task(five)

    assert task is not None
    assert (5, 1) == (task.tasks, task.local_tasks)


def test_shells_and_single_tasks_are_no_step() -> None:
    """A shell of salloc, a batch script, a shell of srun --pty, and a single task record on their machine as usual."""
    started = task_environment(0, 2, 2)
    salloc = {name: value for name, value in started.items() if name not in ("SLURM_STEP_ID", "SLURM_PROCID")}

    assert slurm_task({}) is None
    assert slurm_task(salloc) is None
    assert slurm_task(started | {"SLURM_STEP_ID": str(0xFFFF_FFFA)}) is None
    assert slurm_task(started | {"SLURM_STEP_ID": str(0xFFFF_FFFB)}) is None
    assert slurm_task(started | {"SLURM_PTY_PORT": "40000"}, on_terminal=True) is None
    assert slurm_task(task_environment(0, 1, 1)) is None
    assert slurm_task(started) is not None


def test_variables_that_slurm_would_not_set_are_refused() -> None:
    """The message names the variable."""
    with pytest.raises(UsageError, match="SLURM_NODEID"):
        slurm_task(task_environment(0, 2, 2) | {"SLURM_NODEID": "first"})
    without = {name: value for name, value in task_environment(0, 2, 2).items() if "NODELIST" not in name}
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        slurm_task(without)


SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
open(f"seen{os.environ['RANK']}", "w").write(json.dumps([os.environ[name] for name in names] + sys.argv))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if sys.argv[1:] == ["die"] and step == 8 and dist.get_rank() == 1:
        raise ValueError("boom in step 8")
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""
RECORD = ("record", "--steps", "2", "--warmup", "2", "--wait", "2")


@pytest.mark.slow
@pytest.mark.spawn
def test_each_task_of_a_machine_is_a_rank_of_one_run(tmp_path: Path) -> None:
    """The script sees the numbers of its task, the job is in the folder's name, and only task 0 speaks."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    ends = srun(*RECORD, "train.py", "an argument", cwd=tmp_path, per_machine=2, machines=1)

    assert [0, 0] == [end.returncode for end in ends], [end.stderr for end in ends]
    run = json.loads((tmp_path / "runs" / "train-4242" / "run.json").read_text())
    assert (2, 1) == (run["world_size"], run["nnodes"])
    assert [(0, 0, 0), (1, 0, 1)] == [(rank["rank"], rank["node"], rank["local_rank"]) for rank in run["ranks"]]
    for rank in range(2):
        assert [str(rank), "2", "0", "2", "train.py", "an argument"] == json.loads(
            (tmp_path / f"seen{rank}").read_text()
        )
    assert ("dptrace analyze" in ends[0].stderr, "") == (True, ends[1].stderr)


@pytest.mark.slow
@pytest.mark.spawn
def test_a_task_per_machine_starts_its_ranks_and_a_dead_rank_ends_all(tmp_path: Path) -> None:
    """Two machines with two ranks each; machine 1's rank dies: both end, and machine 0 names it and keeps its log."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    ends = srun(*RECORD, "--gpus", "2", "-o", "four", "train.py", cwd=tmp_path, per_machine=1, machines=2)

    assert [0, 0] == [end.returncode for end in ends], [end.stderr for end in ends]
    run = json.loads((tmp_path / "four" / "run.json").read_text())
    where = [(rank["rank"], rank["node"], rank["local_rank"]) for rank in run["ranks"]]
    assert [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)] == where
    assert (4, 2) == (run["world_size"], run["nnodes"])

    ends = srun(*RECORD, "--gpus", "1", "-o", "dead", "train.py", "die", cwd=tmp_path, per_machine=1, machines=2)
    assert [1, 1] == [end.returncode for end in ends]
    assert "Error: Rank 1 died: ValueError: boom in step 8" in ends[0].stderr
    assert (tmp_path / "dead.failed" / "rank1.log").exists()
