"""Loops of many shapes, unchanged: how many steps are recorded, and what their split is made of."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pandas as pd
import pytest

import dptrace
from dptrace.record.messages import LauncherSettings
from tests.support.forking import run_python
from tests.support.paths import ROOT
from tests.support.recordings import environment

pytest.importorskip("torch")

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SETUP = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)

model, data = network(), torch.randn(256, 64)
"""

CLOSURE = """
optimizer = torch.optim.Adam(model.parameters())
def closure():
    optimizer.zero_grad()
    loss = (model(data) ** 2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss
for _ in range(6):
    optimizer.step(closure)
"""

GAN = """
critic, generator = network(), nn.Linear(8, 64)
critic_optimizer, optimizer = sgd(critic), sgd(generator)
for _ in range(6):
    fake = generator(torch.randn(256, 8))
    critic_optimizer.zero_grad()
    (critic(fake.detach()).mean() - critic(data).mean()).backward()
    critic_optimizer.step()
    optimizer.zero_grad()
    (-critic(fake).mean()).backward()
    optimizer.step()
"""

ACCUMULATION = """
optimizer = sgd(model)
for number in range(18):
    (model(data) ** 2).mean().backward()
    if number % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""

EVALUATION = """
optimizer = sgd(model)
for _ in range(6):
    model.train()
    optimizer.zero_grad()
    (model(data) ** 2).mean().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(20):
            model(data)
"""

SHORT_LIVED = """
kept = []
for epoch in range(3):
    optimizer = sgd(model)
    kept.append(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    for _ in range(2):
        optimizer.zero_grad()
        (model(data) ** 2).mean().backward()
        optimizer.step()
"""

UNEVEN = """
import dptrace.record
critic, generator = network(), nn.Linear(8, 64)
critic_optimizer, optimizer = sgd(critic), sgd(generator)
for _ in range(6):
    for _ in range(2):
        critic_optimizer.zero_grad()
        critic(data).mean().backward()
        critic_optimizer.step()
    optimizer.zero_grad()
    (-critic(generator(torch.randn(256, 8))).mean()).backward()
    optimizer.step()
    {step}
"""

NO_OPTIMIZER = """
from dptrace.record import step
for _ in range(6):
    loss = (model(data) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
    step(loss)
"""


PASSES = """
for _ in range(8):
    loss = (model(data) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
"""
FUNCTIONAL = """
parameters = tuple(model.parameters())
for _ in range(8):
    gradients = torch.autograd.grad((model(data) ** 2).mean(), parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter -= 1e-3 * gradient
"""


def _record(script: str, folder: Path) -> dict[str, object]:
    """Record two steps of a script after two of warm-up, and return this rank's part of run.json."""
    (folder / "train.py").write_text(SETUP + script)
    settings = LauncherSettings(str(folder), "runs/x", steps=2, warmup=2, wait=0).environment()
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    variables = environment() | settings | paths
    start = str(ROOT / "dptrace" / "record" / "launch" / "start.py")
    done = run_python(start, "dptrace.record.script.runner", "train.py", cwd=folder, env=variables)
    assert 0 == done.returncode, done.stderr
    piece: dict[str, object] = json.loads((folder / "window1" / "rank0.piece.json").read_text())
    return piece


def _split(folder: Path) -> pd.DataFrame:
    return dptrace.open(folder / "window1" / "rank0.pt.trace.json.gz").steps()


def _products(folder: Path) -> int:
    """Return how many products of matrices the trace has."""
    with gzip.open(folder / "window1" / "rank0.pt.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return sum(event.get("name") in ("aten::mm", "aten::addmm") for event in events)


@pytest.mark.parametrize(
    ("script", "multiplications"),
    [(CLOSURE, 3 + 5), (GAN, 27), (ACCUMULATION, 3 * (3 + 5)), (SHORT_LIVED, 3 + 5), (NO_OPTIMIZER, 3 + 5)],
    ids=["closure", "gan", "accumulation", "short-lived", "no-optimizer"],
)
def test_a_step_is_a_pass_with_forward_backward_and_update(script: str, multiplications: int, tmp_path: Path) -> None:
    """Two steps are recorded, each with one pass's matrix products and all phases, and there is nothing to note."""
    piece = _record(script, tmp_path)

    assert (2, []) == (piece["recorded_steps"], piece["notes"])
    split = _split(tmp_path)
    assert 2 == len(split)
    assert (split[["forward_ns", "backward_ns"]] > 0).all(axis=None)
    assert ((split["optimizer_ns"] + split["other_ns"]) > 0).all()
    assert 2 * multiplications == _products(tmp_path)


@pytest.mark.parametrize("script", [PASSES, FUNCTIONAL])
def test_without_an_optimizer_a_pass_is_a_step_and_said_to_be(script: str, tmp_path: Path) -> None:
    """By backward() or by autograd.grad(): as many products of matrices as a pass has."""
    piece = _record(script, tmp_path)

    assert 2 == piece["recorded_steps"]
    assert "each backward pass counts as a step" in str(piece["notes"])
    assert 2 * (3 + 5) == _products(tmp_path)


def test_evaluation_between_steps_is_no_forward(tmp_path: Path) -> None:
    """Twenty evaluated batches take longer than one forward; they are other work."""
    _record(EVALUATION, tmp_path)

    split = _split(tmp_path)
    assert (split["other_ns"] > split["forward_ns"]).all()
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)


def test_optimizers_with_different_rates_get_the_advice(tmp_path: Path) -> None:
    """The note names the function to call; calling it makes a pass one step."""
    guessed, told = tmp_path / "guessed", tmp_path / "told"
    guessed.mkdir()
    told.mkdir()
    notes = _record(UNEVEN.format(step=""), guessed)["notes"]
    piece = _record(UNEVEN.format(step="dptrace.record.step()"), told)

    assert "dptrace.record.step()" in str(notes)
    assert (2, []) == (piece["recorded_steps"], piece["notes"])
    assert 2 * (2 * (3 + 5) + 4 + 7) == _products(told)
