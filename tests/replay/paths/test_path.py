"""The chain of a whole recording."""

from __future__ import annotations

import numpy as np

import dptrace
from dptrace.replay.paths.path import longest_pieces, path_of_run
from dptrace.replay.simulation.simulate import simulate


def test_the_chain_of_a_recording_has_no_gap(run: dptrace.Run) -> None:
    """Each piece begins where the one before it ends, and the longest is the forward kernel of 400 µs."""
    model = run.replay.model
    links = path_of_run(model, simulate(model.graph))

    assert np.array_equal(links.end_ns[:-1], links.start_ns[1:])
    assert links.end_ns[-1] - links.start_ns[0] == sum(links.by_kind().values())
    assert ["forward"] == [piece.name for piece in longest_pieces(model, links, 1)]
