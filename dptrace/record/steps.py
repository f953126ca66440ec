"""Where the steps of a training end: at an optimizer's steps, or where no optimizer of torch steps, backward passes.

A step ends when the optimizer that made the very first step makes its next one; :class:`CountedOptimizer` says when
another takes its place. So several optimizers in one loop count once; an optimizer that steps k times in a pass counts
k steps; and a pass whose step a GradScaler skips counts with the next. Where that does not fit, the script calls
``dptrace.record.step()``. The recorder and ``dptrace watch`` both ask here.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from typing import Literal

import torch
from torch.optim import Optimizer

from dptrace.record.hooks import Listener

# Choose the optimizer whose steps are the steps of a training.
#
# It is the one that made the very first step, so that several optimizers in one loop count once. It hands over
#
# - to any other, once it is gone: a script may make a new optimizer in each epoch, or in each pass;
# - to a new one that trains a parameter of it, because the old one may linger, held by its scheduler;
# - to one that has made many steps since its last one: the script has gone on to another model.


_GIVEN_UP_AFTER = 20
"""Steps of another optimizer after which the counted one counts as given up. A GAN's critic makes fewer in a pass."""


class CountedOptimizer:
    """Decides which of the steps of all optimizers end a step of the training."""

    def __init__(self, first: Optimizer) -> None:
        self.name = type(first).__name__
        self.uneven = False
        """Whether optimizers step at different rates, so that a step of one may not be a pass of the loop."""
        self._counted = weakref.ref(first)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet([first])
        self._others: Counter[int] = Counter()
        """Steps of each other optimizer, by its id, since the last step of the counted one."""
        self._own = 0
        """Steps of the counted optimizer since another one stepped."""

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Return whether this step of an optimizer ends a step of the training."""
        counted = self._counted()
        if optimizer is counted and not self._others:
            self._own += 1
            return True
        if optimizer is not counted and (counted is None or self._replaces(optimizer, counted)):
            self._counted, self.name = weakref.ref(optimizer), type(optimizer).__name__
            counted = optimizer
            self._own = 0
        known = optimizer in self._known
        self._known.add(optimizer)
        if optimizer is counted:
            self._own += 1
            self._others.clear()
            return True
        self._others[id(optimizer)] += 1
        self.uneven |= known and (self._own > 1 or self._others[id(optimizer)] > 1)
        self._own = 0
        return False

    def _replaces(self, optimizer: Optimizer, counted: Optimizer) -> bool:
        if self._others[id(optimizer)] >= _GIVEN_UP_AFTER:
            return True
        return optimizer not in self._known and not _parameters(optimizer).isdisjoint(_parameters(counted))


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


_PASSES_BEFORE_A_STEP = 100
"""Backward passes without a step of an optimizer after which none is expected, though there is one: a step may
accumulate the gradients of many."""
EXPLICIT = "dptrace.record.script.explicit_step"
"""The module of ``dptrace.record.step``, which is imported once a script asks for that function."""

_generation = 0
"""How many forks this process is from the one that was started: a child that the script forks inherits the hooks but is
no rank. Its process id says so too, and a system call in each step costs more than what it asks for."""


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)
_running: StepEnds | None = None


def current_counter() -> StepEnds | None:
    """Return what counts the steps of this process; None in one that nothing of dptrace runs a script in."""
    return _running


def set_counter(counter: StepEnds | None) -> None:
    """Make this what ``dptrace.record.step()`` talks to."""
    global _running
    _running = counter


def _has_optimizer() -> bool:
    """Return whether an optimizer of torch was made; its base class marks the step of each class that it makes."""
    kinds: list[type[Optimizer]] = [Optimizer]
    for kind in kinds:  # grows during the loop
        kinds += kind.__subclasses__()
    return any(getattr(vars(kind).get("step"), "hooked", False) for kind in kinds)


class StepEnds(Listener):
    """Hears where the steps of a training end, and calls :meth:`end_step` there."""

    def __init__(self) -> None:
        self._generation = _generation
        self.counted: CountedOptimizer | None = None
        self.first: weakref.ref[Optimizer] | None = None
        """The optimizer that stepped first."""
        self.explicit = False
        """Whether the script says itself where its steps end."""
        self._passes = Counter[bool]()
        """Backward passes without an optimizer of torch, by whether they accumulate gradients."""

    def end_step(self, by: Literal["optimizer", "passes", "script"], loss: torch.Tensor | float | None = None) -> None:
        """End a step here, and say by what that is known."""
        raise NotImplementedError

    def counts(self) -> bool:
        """Return whether what is heard counts: not in a forked child."""
        if EXPLICIT in sys.modules:
            self.explicit = True
        return self._generation == _generation

    def is_settled(self) -> bool:
        """Return whether backward passes are the steps, so that an optimizer's first step changes nothing any more."""
        return False

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer."""
        if not self.counts():
            return
        if self.first is None:
            self.first = weakref.ref(optimizer)
        if self.explicit:
            return
        if self.counted is None:
            if not self.is_settled():
                self.counted = CountedOptimizer(optimizer)
                self.end_step("optimizer")
        elif self.counted.ends_step(optimizer):
            self.end_step("optimizer")

    def after_backward(self, accumulates: bool) -> None:
        """Count a backward pass, if nothing else tells where steps end."""
        if self.counted is not None or not self.counts() or self.explicit:
            return
        self._passes[accumulates] += 1
        if self._passes[True] and not accumulates:
            return  # autograd.grad() beside backward() is a part of a step
        passes = self._passes[accumulates]
        if passes >= (_PASSES_BEFORE_A_STEP if _has_optimizer() else 2):
            self.end_step("passes")

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return self._generation != _generation

    @property
    def passes(self) -> int:
        """The number of backward passes while no optimizer had stepped."""
        return self._passes.total()
