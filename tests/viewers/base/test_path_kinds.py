"""What the kinds of pieces of a critical path are called."""

from __future__ import annotations

from dptrace.replay.path import LINK_KINDS
from dptrace.viewers.base.path_kinds import PATH_KINDS


def test_every_kind_of_piece_has_words() -> None:
    """In the order in which a path lists its time by kind."""
    assert LINK_KINDS == tuple(PATH_KINDS)
