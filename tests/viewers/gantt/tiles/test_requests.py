"""Bytes of answers."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.viewers.gantt.tiles.requests import Message, compressed, quantized


@pytest.mark.heavy
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.sampled_from([1.0, 64.0, 1e6]))
def test_rounded_shares_do_not_drift(shares: list[float], column: float) -> None:
    """Each is off by at most one, but for the least that is shown, a full column is 255, and any time is at least 1."""
    cover = np.array([0, *shares], np.float64).cumsum()[None] * column
    found = quantized(cover.astype(np.float64), column)[0].astype(int)
    for share, value in zip(shares, found, strict=True):
        assert abs(share * 255 - value) <= 1
        assert value >= (share > 1e-3)
    assert [255] * 7 == quantized(np.linspace(0, 21, 8)[None], 3.0)[0].tolist()


def test_a_full_column_between_halves_is_not_drawn_idle() -> None:
    """Edges that round to 256 of a column, which would be 0 in a byte."""
    assert [255, 255] == quantized(np.array([[0.49999, 2.5, 4.50001]]) / 2, 1.0)[0].tolist()


def test_a_message_is_a_head_and_planes() -> None:
    """All first bytes, then all second bytes."""
    message = Message()
    message.add(np.array([0x0201, 0x0403]), "<u2")
    message.add(np.array([7]), "u1")
    data = message.encode({"a": "é"})
    length = int.from_bytes(data[:4], "little")

    assert {"a": "é"} == json.loads(data[4 : 4 + length])
    assert bytes([1, 3, 2, 4, 7]) == data[4 + length :]
    assert data == gzip.decompress(compressed(data))
