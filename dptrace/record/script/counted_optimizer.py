"""Choose the optimizer whose steps are the steps of a training.

It is the one that made the very first step, so that several optimizers in one loop count once. It hands over

- to any other, once it is gone: a script may make a new optimizer in each epoch, or in each pass;
- to a new one that trains a parameter of it, because the old one may linger, held by its scheduler;
- to one that has made many steps since its last one: the script has gone on to another model.
"""

from __future__ import annotations

import weakref
from collections import Counter

from torch.optim import Optimizer

__all__ = ["CountedOptimizer"]

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
