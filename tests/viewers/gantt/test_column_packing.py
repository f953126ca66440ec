"""Packed columns unpack to the same values."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.viewers.gantt.column_packing import pack, unpack


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "Uint8"),
        ([0, 255], "Uint8"),
        ([0, 256], "Uint16"),
        ([65_536], "Uint32"),
        ([2**32 - 2], "Uint32"),
        ([1, 2**32 - 1, 2**32, 2**53 - 1, 3], "Uint32"),
    ],
)
def test_round_trip(values: list[int], kind: str) -> None:
    """Integers of any size are packed in the narrowest type, from 2**32 - 1 on as escapes."""
    packed = pack(np.array(values, np.int64))

    assert kind == packed["type"]
    assert values == unpack(packed).tolist()
    assert len(packed["escapes"]) == sum(value >= 2**32 - 1 for value in values)


def test_the_same_values_pack_to_the_same_text() -> None:
    """The compressed data has no time stamp, so a run gives the same page twice."""
    values = np.arange(1000, dtype=np.int64)

    assert pack(values) == pack(values)
    assert len(pack(np.zeros(100_000, np.int64))["data"]) < 1_000
