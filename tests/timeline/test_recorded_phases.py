"""Phases and waiting in real processes that torch's profiler records on CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from tests.support.forking import run_python, start_python
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

SPLIT_BACKWARD = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, record_function

weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

def chunk(labels):
    forward, backward, weights = labels
    with record_function(forward):
        y = x @ weight
    with torch.no_grad(), record_function(backward):  # without autograd, as in DualPipe
        for _ in range(2):
            torch.bmm(x[None], weight[None])
    y.sum().backward()
    with torch.no_grad(), record_function(weights):
        for _ in range(3):
            torch.bmm(x[None], x[None])

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(4):
        chunk(sys.argv[2:])
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


@pytest.mark.slow
def test_a_lightning_style_closure_has_all_three_phases(tmp_path: Path) -> None:
    """Recorded on CPU: the nodes of autograd are backward, the model forward, AdamW's operators optimizer."""
    trace = tmp_path / "rank0.json"
    (tmp_path / "train.py").write_text(CLOSURE)
    run_python("train.py", str(trace), cwd=tmp_path, env=environment()).check_returncode()
    kernels = dptrace.open(trace).kernels()

    phases = {name: set(rows["phase"]) for name, rows in kernels.groupby("name")}
    assert {"forward"} == phases["aten::linear"] == phases["aten::square"]
    assert {"backward"} == phases["AddmmBackward0"] == phases["torch::autograd::AccumulateGrad"]
    assert {"optimizer"} == phases["aten::addcdiv_"]
    assert all(dptrace.open(trace).totals()[f"{phase}_ns"].item() > 0 for phase in ("forward", "backward", "optimizer"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "rules"),
    [
        (("attn(F)", "attn(B)", "attn(W)"), ()),
        (("run", "first half", "second half"), ("half$=backward",)),
    ],
)
def test_a_backward_that_labels_split_is_backward(
    labels: tuple[str, str, str], rules: tuple[str, ...], tmp_path: Path
) -> None:
    """In each of 4 chunks, 2 products before autograd's nodes and 3 after them, outside of autograd."""
    trace = tmp_path / "rank0.json"
    (tmp_path / "train.py").write_text(SPLIT_BACKWARD)
    run_python("train.py", str(trace), *labels, cwd=tmp_path, env=environment()).check_returncode()
    run = dptrace.open(trace, phase_labels=rules)
    operators = run.kernels()

    phases = {name: rows["phase"].tolist() for name, rows in operators.groupby("name")}
    assert ["forward"] * 4 == phases["aten::matmul"]
    assert ["backward"] * 20 == phases["aten::bmm"]
    lasted = (operators["end_ns"] - operators["start_ns"]).groupby(operators["phase"]).sum()
    assert lasted["backward"] == run.totals()["backward_ns"].item()


@pytest.mark.slow
def test_a_blocking_all_reduce_of_tensor_parallelism_is_exposed(tmp_path: Path) -> None:
    """Rank 0 waits 200 ms for rank 1 in a functional all-reduce: none of the wait is overlapped with compute."""
    (tmp_path / "train.py").write_text(TENSOR_PARALLEL)
    ranks = [start_python("train.py", str(tmp_path), str(rank), cwd=tmp_path, env=environment()) for rank in range(2)]
    assert [0, 0] == [process.wait(300) for process in ranks]
    total = dptrace.open(tmp_path).totals().iloc[0]

    assert total["exposed_comm_ns"] > 150_000_000
    assert total["overlapped_comm_ns"] < 0.05 * total["exposed_comm_ns"]
