"""The gain of a finding as plain data."""

from __future__ import annotations

from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.gain import Gain


def test_a_finding_has_the_keys_of_its_gain() -> None:
    """Keys of gains are added to those of a finding; without a gain there are none."""
    plain = Finding("copies", "text", "advice", 10, 0.1)
    gained = Finding("copies", "text", "advice", 10, 0.1, gain=Gain("no copies", 5, 4, 6, 5))

    assert plain.to_dict().items() <= gained.to_dict().items()
    assert {"gain_ns": 5, "gain_low_ns": 4, "gain_high_ns": 6, "gain_change": "no copies"}.items() <= (
        gained.to_dict().items()
    )
    assert not [key for key in plain.to_dict() if key.startswith("gain")]


def test_an_unknown_gain_is_null() -> None:
    """Where no number is known there is none, and a reason."""
    data = Gain(reason="The recording is too short to tell.").to_dict()

    assert data["gain_ns"] is None
    assert data["gain_change"] is None
    assert "The recording is too short to tell." == data["gain_reason"]
