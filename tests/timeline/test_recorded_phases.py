"""Phases and waiting in real processes that torch's profiler records on CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dptrace
from tests.support.recordings import environment

pytestmark = pytest.mark.spawn

CLOSURE = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())

def closure():  # in the order of Lightning's: training step, zero_grad, backward
    loss = model(torch.randn(128, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    return loss

optimizer.step(closure)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(2):
        optimizer.step(closure)
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
"""

TENSOR_PARALLEL = """
import os
import sys
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.profiler import ProfilerActivity, profile

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.set_num_threads(1)
columns, rows = torch.randn(128, 64), torch.randn(64, 128)

def step(late):
    part = torch.relu(torch.randn(32, 128) @ columns) @ rows
    time.sleep(late * rank)
    return functional.wait_tensor(functional.all_reduce(part, "sum", dist.group.WORLD)).relu()

step(0)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    dist.barrier()  # starting the profiler takes the ranks different times
    step(0.2)
    profiler.step()
profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
dist.barrier()
os._exit(0)  # at times, gloo's threads abort a process in Python's teardown
"""


def test_a_lightning_style_closure_has_all_three_phases(tmp_path: Path) -> None:
    """Recorded on CPU: the nodes of autograd are backward, the model forward, AdamW's operators optimizer."""
    trace = tmp_path / "rank0.json"
    subprocess.run([sys.executable, "-W", "ignore", "-c", CLOSURE, trace], check=True, env=environment(), timeout=300)
    kernels = dptrace.open(trace).kernels()

    phases = {name: set(rows["phase"]) for name, rows in kernels.groupby("name")}
    assert {"forward"} == phases["aten::linear"] == phases["aten::square"]
    assert {"backward"} == phases["AddmmBackward0"] == phases["torch::autograd::AccumulateGrad"]
    assert {"optimizer"} == phases["aten::addcdiv_"]
    assert all(dptrace.open(trace).totals()[f"{phase}_ns"].item() > 0 for phase in ("forward", "backward", "optimizer"))


def test_a_blocking_all_reduce_of_tensor_parallelism_is_exposed(tmp_path: Path) -> None:
    """Rank 0 waits 200 ms for rank 1 in a functional all-reduce: none of the wait is overlapped with compute."""
    command = [sys.executable, "-W", "ignore", "-c", TENSOR_PARALLEL, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment()) for rank in range(2)]
    assert [0, 0] == [process.wait(300) for process in ranks]
    total = dptrace.open(tmp_path).totals().iloc[0]

    assert total["exposed_comm_ns"] > 150_000_000
    assert total["overlapped_comm_ns"] < 0.05 * total["exposed_comm_ns"]
