"""What the kinds of pieces of a critical path are called."""

from __future__ import annotations

from dptrace.replay.paths import LINK_KINDS
from dptrace.viewers.base.path_kinds import PATH_KINDS, step_words


def test_every_kind_of_piece_has_words() -> None:
    """In the order in which a path lists its time by kind."""
    assert LINK_KINDS == tuple(PATH_KINDS)


def test_a_recording_without_steps_is_not_called_one() -> None:
    """Steps have numbers; the whole of a recording has none."""
    assert ["step 4", "the whole trace"] == [step_words(name) for name in ("ProfilerStep#4", "whole trace")]
