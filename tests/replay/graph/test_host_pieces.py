"""Pieces of host time, and what is cut from them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dptrace
from dptrace.replay.graph.host_pieces import KEPT_NS, cut_longest, host_pieces


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, 10**10))
def test_what_is_cut_comes_from_the_longest(lengths: list[int], ns: int) -> None:
    """All that is asked for is cut, as far as 20 µs of each piece remain; no shorter piece loses before a longer."""
    length = np.array(lengths, np.int64)
    cut = cut_longest(length, ns)
    room = np.maximum(length - KEPT_NS, 0)

    assert min(ns, int(room.sum())) == int(cut.sum())
    assert (cut <= room).all()
    assert (cut >= 0).all()
    touched = cut > 0
    assert not touched.any() or (cut[length > length[touched].min()] == room[length > length[touched].min()]).all()


def test_pieces_are_the_calls_and_pauses_of_a_host(run: dptrace.Run) -> None:
    """A job's hosts call for 5 µs each and pause between; the wait for the device is no piece."""
    model = run.replay.model
    pieces = host_pieces(model, model.processes[0])

    assert 10_000 in pieces.length_ns.tolist()
    assert int(pieces.length_ns.max()) < 100_000
    assert (pieces.end_ns >= pieces.start_ns).all()
