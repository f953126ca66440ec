"""Scripts that start their own ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import processes_in
from tests.support.recordings import dptrace

pytest.importorskip("torch")

SCRIPT = """
import os, signal, socket, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def train(rank, ranks, port, how):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        if rank == 1 and step == 7:
            if how == "raise":
                raise ValueError("boom in step 7")
            if how == "kill":
                # The recording is written while training goes on: the rank dies once it is.
                deadline = time.monotonic() + 60
                while not os.path.exists("runs/own_ranks/run.json") and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank} has no RANK: {'RANK' not in os.environ}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    start, ranks, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    if start == "spawn":
        mp.spawn(train, args=(ranks, port, how), nprocs=ranks)
    elif start == "fork":
        mp.start_processes(train, args=(ranks, port, how), nprocs=ranks, start_method="fork")
    else:
        mp.set_start_method(start.removeprefix("process-"))
        processes = [mp.Process(target=train, args=(rank, ranks, port, how)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    print("the script ends", flush=True)
"""
SCHEDULE = ["--steps", "2", "--warmup", "2", "--wait", "0"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write a script that starts ranks as its first argument says, and as many as its second does."""
    path = tmp_path / "own_ranks.py"
    path.write_text(SCRIPT)
    return path


def _run_info(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("start", "ranks"), [("spawn", 3), ("process-fork", 2)])
def test_the_ranks_that_a_script_starts_are_recorded(start: str, ranks: int, script: Path) -> None:
    """Their number is the script's; each has its trace, and joins its group as without dptrace."""
    words = ("record", "--gpus", "2", *SCHEDULE, script.name, start, str(ranks), "end")
    done = dptrace(*words, cwd=script.parent)

    info = _run_info(script.parent / "runs" / "own_ranks")
    assert ("complete", ranks, "gloo") == (info["status"], info["world_size"], info["backend"])
    assert [(rank, rank, 2) for rank in range(ranks)] == [
        (entry["rank"], entry["local_rank"], entry["recorded_steps"]) for entry in info["ranks"]
    ]
    assert ranks == done.stdout.count("has no RANK: True")
    assert 1 == done.stdout.count("the script ends")
    assert "USDT:" not in done.stderr
    assert (start == "spawn") == ("recording its 3 instead of 2" in done.stderr)
    assert ["own_ranks"] == [path.name for path in (script.parent / "runs").iterdir()]
    assert [] == processes_in(script.parent)


@pytest.mark.slow
@pytest.mark.spawn
def test_a_rank_of_the_script_that_dies_is_named(script: Path) -> None:
    """torchrun sees only the script's process fail; the message names the rank that caused it."""
    done = dptrace("record", "--gpus", "1", *SCHEDULE, script.name, "fork", "2", "kill", cwd=script.parent, ok=False)

    assert 137 == done.returncode
    assert "Error: Rank 1 was ended by SIGKILL" in done.stderr
    # The recording was over before.
    assert "complete" == _run_info(script.parent / "runs" / "own_ranks")["status"]
    assert [] == processes_in(script.parent)


def test_variables_of_the_launcher_are_dropped_and_those_of_the_script_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that has chosen a port keeps its address too, even if the launcher's is the same."""
    from dptrace.record.script.spawn import _Start

    launcher = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    start = _Start("train.py", launcher, 1)
    for port, kept in (("1", {"RANK": "7"}), ("2", {"RANK": "7", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2"})):
        for name, value in (launcher | {"RANK": "7", "MASTER_PORT": port}).items():
            monkeypatch.setenv(name, value)
        start.drop_variables()
        import os

        assert kept == {name: os.environ[name] for name in launcher if name in os.environ}


@pytest.mark.parametrize(
    ("arguments", "environment", "own"),
    [
        ({}, {}, False),
        ({"rank": 1, "world_size": 2}, {}, True),
        ({"init_method": "tcp://localhost:5"}, {}, True),
        ({"init_method": "env://"}, {}, False),
        ({}, {"MASTER_PORT": "5"}, True),
    ],
)
def test_a_group_of_its_own_is_recognized(
    arguments: dict[str, Any], environment: dict[str, str], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a rank starts, and that joins the launcher's group for it, is no rank of its own."""
    from dptrace.record.messages import LauncherSettings
    from dptrace.record.script.spawn import _joins_own_group, _Start

    launcher = {"RANK": "0", "MASTER_PORT": "1"}
    for name, value in (LauncherSettings("f", "f").environment() | launcher | environment).items():
        monkeypatch.setenv(name, value)

    assert own == _joins_own_group(_Start("train.py", launcher, 1), ("gloo",), arguments)
