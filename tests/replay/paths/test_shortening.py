"""What a step would gain if something took a tenth less."""

from __future__ import annotations

import numpy as np

import dptrace
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.paths.path import step_ends
from dptrace.replay.paths.shortening import Shortening


def test_a_tenth_less_of_the_transfer_is_its_gain(run: dptrace.Run) -> None:
    """An all-reduce of 100 µs that all wait for gains 10, and nothing gains nothing."""
    model = run.replay.model
    shortening = Shortening(model, step_ends(model))

    assert 10_000 == shortening.of_tasks(model.graph.of(TaskKind.TRANSFER))
    assert 0 == shortening.of_tasks(np.zeros(len(model.graph.duration_ns), bool))
