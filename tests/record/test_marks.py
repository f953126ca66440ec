"""Marks of phases and of modules, which are named by attribute paths and have no effect on training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from dptrace.record.marks import MODULE, ModuleMarks, phase


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.out = nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.act(self.out(self.norm(x)))


class Model(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.again = nn.ModuleList([Block(), Block()]), nn.Linear(4, 2), again

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return self.head(x)


class DistributedDataParallel(nn.Module):
    """Wraps a module as torch's class of this name does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


@contextmanager
def marking(marks: ModuleMarks) -> Iterator[None]:
    marks.start()
    try:
        yield
    finally:
        marks.stop()


def marked(model: nn.Module, marks: ModuleMarks | None = None, backward: bool = False) -> list[str]:
    with marking(marks or ModuleMarks()), profile() as recorded:
        loss = model(torch.ones(2, 4)).sum()
        if backward:
            loss.backward()
    return [event.name.removeprefix(MODULE) for event in recorded.events() if event.name.startswith(MODULE)]


BLOCKS = [f"layers.{i}{part}" for i in (0, 1) for part in ("", ".norm", ".out", ".act")]


@pytest.mark.parametrize("wrap", [lambda model: model, DistributedDataParallel])
def test_modules_have_their_attribute_paths(wrap: Any) -> None:
    """Without what a wrapper adds; the root has the name of its class."""
    names = marked(wrap(Model()))

    assert ["Model", *BLOCKS, "head"] == [name for name in names if name != "DistributedDataParallel"]


def test_repeated_layers_keep_their_paths() -> None:
    """Activation checkpointing calls them once more in backward, without the model around them."""
    names = marked(Model(again=True), backward=True)

    assert {"Model", *BLOCKS, "head"} == set(names)
    assert 4 == sum(name in ("layers.0", "layers.1") for name in names)


def test_a_second_model_is_distinguished() -> None:
    """Its modules have its class before their paths."""
    marks = ModuleMarks()
    marks.add(Model())
    names = marked(nn.Sequential(nn.Linear(4, 4)), marks)

    assert ["Sequential", "Sequential.0"] == names


def test_nothing_stays_behind() -> None:
    """No hook, neither on a module nor globally; without a profiler nothing is marked."""
    model, marks = Model(), ModuleMarks()
    before = copy.deepcopy(model.state_dict())
    marked(model, marks, backward=True)

    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with marking(marks):
        model(torch.ones(2, 4))
    assert [] == marks._calls()


@pytest.mark.heavy
def test_gradients_are_the_same() -> None:
    """With an activation that works in place, which full backward hooks break."""
    gradients = []
    for on in (False, True):
        torch.manual_seed(0)
        model = Model(again=True)
        if on:
            marked(model, backward=True)
        else:
            model(torch.ones(2, 4)).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])

    assert all(torch.equal(plain, with_marks) for plain, with_marks in zip(*gradients, strict=True))


def test_a_module_that_fails_closes_its_mark() -> None:
    """And those around it."""
    model, marks = Model(), ModuleMarks()
    with marking(marks), profile(), pytest.raises(RuntimeError):
        model(torch.ones(2, 5))

    assert [] == marks._calls()


def test_a_phase_has_one_of_four_names() -> None:
    """A mark that the timeline does not know is refused."""
    with pytest.raises(ValueError, match="forward, backward, optimizer, other"):
        phase("bakward")  # type: ignore[arg-type]
