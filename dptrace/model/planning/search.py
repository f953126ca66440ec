"""The plans of a description, and the best of each layout: the fastest that fits, else the smallest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import Layout
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import StepPrediction, predict_step

__all__ = ["Choice", "best_plan", "choices", "ranked_choices"]


class Choice(msgspec.Struct, frozen=True):
    """A plan with its step."""

    plan: Plan
    step: StepPrediction


def best_plan(description: Description, layout: Layout) -> Choice:
    """Return the fastest plan of a layout that fits, else the one that takes the least memory."""
    found = list(description.plans(layout))
    fitting = [Choice(plan, predict_step(plan)) for plan in found if plan.fits]
    if fitting:
        return min(fitting, key=lambda choice: (choice.step.step_s, choice.plan.memory.total))
    smallest = min(found, key=lambda plan: plan.memory.total)
    return Choice(smallest, predict_step(smallest))


def choices(description: Description) -> Iterator[Choice]:
    """Yield the best plan of each layout; layouts that can't divide the batch are left out where others can.

    Raises:
        UsageError: no layout can.
    """
    refused, found = None, False
    for layout in description.layouts():
        try:
            yield best_plan(description, layout)
            found = True
        except UsageError as error:
            refused = error
    if not found:
        raise refused or UsageError(description.indivisible())


def ranked_choices(compared: Iterable[Choice], most_of_strategy: int = 3) -> list[Choice]:
    """Return what fits, fastest first, then what does not fit, smallest first.

    Args:
        compared: the plans of :func:`choices`.
        most_of_strategy: how many layouts of a strategy to keep.
    """
    order = sorted(compared, key=_rank)
    kept: list[Choice] = []
    for choice in order:
        strategy = choice.plan.layout.strategy
        if sum(one.plan.layout.strategy == strategy for one in kept) < most_of_strategy:
            kept.append(choice)
    return kept


def _rank(choice: Choice) -> tuple[bool, float]:
    fits = choice.plan.fits
    return not fits, choice.step.step_s if fits else choice.plan.memory.total
