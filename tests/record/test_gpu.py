"""Recordings on a GPU, held against CUDA events and planted causes; skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dptrace
from dptrace.flight.hang import find_hang
from tests.support.paths import ROOT

torch = pytest.importorskip("torch", reason="recording needs torch")

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
SCRIPT = """
import json, sys, time, torch
layers = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()
batch = torch.randn(8192, 4096, device="cuda")
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
pairs = []
for step in range(60):
    torch.cuda.synchronize()
    time.sleep(0.02)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    loss = layers(batch).square().mean()
    end.record()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    pairs.append((start, end))
torch.cuda.synchronize()
json.dump([start.elapsed_time(end) for start, end in pairs], open(sys.argv[1], "w"))
"""


def record(*arguments: str, cwd: Path) -> None:
    line = [sys.executable, "-m", "dptrace", "record", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_trainer_runs_on_the_gpu(tmp_path: Path) -> None:
    """Kernels of each phase, the device's name, and NCCL as its backend; all of a step's time is told."""
    record("--mode", "single", "--steps", "3", "-o", "run", cwd=tmp_path)
    run, info = dptrace.open(str(tmp_path / "run")), json.loads((tmp_path / "run" / "run.json").read_text())
    total = run.totals().sum()

    assert ("nccl", torch.cuda.get_device_name(0)) == (info["backend"], info["ranks"][0]["device"])
    assert min(total["forward_ns"], total["backward_ns"], total["optimizer_ns"]) > 0
    parts = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
    assert total["wall_ns"] == sum(total[part] for part in parts)


def test_the_split_agrees_with_cuda_events(tmp_path: Path) -> None:
    """Forward is as long as events around it say, and the GPU idles for as long as the host is made to sleep."""
    (tmp_path / "train.py").write_text(SCRIPT)
    record("--steps", "8", "-o", "run", "train.py", "events.json", cwd=tmp_path)
    mean = dptrace.open(str(tmp_path / "run")).totals().sum() / 8e6
    forward = sorted(json.loads((tmp_path / "events.json").read_text())[5:])

    assert mean["forward_ns"] == pytest.approx(forward[len(forward) // 2], rel=0.05)
    assert mean["idle_ns"] == pytest.approx(20, rel=0.15)


def test_each_planted_culprit_is_named_over_nccl(tmp_path: Path) -> None:
    """The jobs that hang over gloo, with three ranks that share a GPU."""
    from tests.support.hanging_jobs import VARIANTS, culprit_of

    script = ROOT / "tests" / "support" / "hanging_jobs.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_FR_BUFFER_SIZE": "100"}
    line = [sys.executable, str(script), "--nccl", str(tmp_path), *VARIANTS]
    subprocess.run(line, env=environment, check=True, timeout=600, capture_output=True)

    found = {variant: find_hang([tmp_path / variant])["culprits"] for variant in VARIANTS}
    assert {variant: [culprit_of(variant)] for variant in VARIANTS} == found
