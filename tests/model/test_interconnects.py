"""The table of known interconnects, and the nearest to a link."""

from __future__ import annotations

import pytest

from dptrace.model.interconnects import INTERCONNECTS, Interconnect, nearest_interconnect

MEDIA = sorted({one.medium for one in INTERCONNECTS})


@pytest.mark.parametrize("known", INTERCONNECTS, ids=lambda one: one.name)
def test_each_is_most_like_itself(known: Interconnect) -> None:
    """At nominal speed and latency, both ratios are 1; every entry has a source."""
    found = nearest_interconnect(known.bytes_per_s, known.alpha_s, MEDIA)

    assert (known, 1.0, 1.0) == (found.interconnect, found.bandwidth_ratio, found.latency_ratio)
    assert known.source


def test_latency_decides_between_links_of_one_bandwidth() -> None:
    """400 Gb/s are 50 GB/s for Ethernet and for InfiniBand."""
    assert "InfiniBand NDR" == nearest_interconnect(45e9, 2e-6, ["network"]).interconnect.name
    assert "400 Gb Ethernet" == nearest_interconnect(45e9, 60e-6, ["network"]).interconnect.name


def test_only_what_comes_into_question_is_compared() -> None:
    """GPUs of one machine are not linked by a network; an unmeasured latency is not compared."""
    found = nearest_interconnect(27e9, 0.0, ["nvlink", "pcie"])

    assert "PCIe 4.0 x16" == found.interconnect.name
    assert found.latency_ratio is None
    assert found.bandwidth_ratio == pytest.approx(27 / 31.5)
