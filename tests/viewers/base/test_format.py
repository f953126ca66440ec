"""How a gain reads."""

from __future__ import annotations

import pytest

from dptrace.analysis.findings.finding import Gain
from dptrace.viewers.base.format import gain_sentence

MS = 1_000_000


@pytest.mark.parametrize(
    ("gain", "parts"),
    [
        (Gain("no copies", 10 * MS, 5 * MS, 15 * MS), ["10.0 ms a step", "5.00 ms", "15.0 ms", "no copies"]),
        (Gain("no copies", 0, 0, 2 * MS, reason="Hidden."), ["nothing", "2.00 ms", "Hidden."]),
        (Gain("schedule ddp", -3 * MS, -4 * MS, -2 * MS), ["lose 3.00 ms", "schedule ddp"]),
        (Gain(reason="The recording is too short."), ["unknown", "The recording is too short."]),
    ],
)
def test_a_gain_is_a_sentence(gain: Gain, parts: list[str]) -> None:
    """It says how much, in which range, what is different, and why it is less; or why it is not known."""
    text = gain_sentence(gain)

    assert [part for part in parts if part in text] == parts
    assert text.endswith(".")
