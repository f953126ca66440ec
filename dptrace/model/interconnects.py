"""Nominal figures of known interconnects, and which of them a measured link resembles most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dptrace.core.numbers import Number
from dptrace.errors import UsageError

__all__ = [
    "BANDWIDTH_GBPS",
    "INTERCONNECTS",
    "LATENCY_US",
    "SHORT_NAMES",
    "Interconnect",
    "InterconnectMatch",
    "interconnect_named",
    "nearest_interconnect",
]

LATENCY_US, BANDWIDTH_GBPS = Number(0, 1_000_000), Number(1e-6, 1e12)
"""What a user may say of a link: up to a second, and from 1 kB/s to what is as good as free."""
_LATENCY_COUNTS = 0.25
"""Weight of latency against bandwidth: the share of software in latency varies widely."""


class Interconnect(msgspec.Struct, frozen=True):
    """One kind of link at its nominal speed."""

    name: str
    medium: str
    """``nvlink``, ``pcie``, ``network`` or ``memory``."""
    bytes_per_s: float
    """One direction, per GPU or per port."""
    alpha_s: float
    """Typical latency of one message as software sees it."""
    source: str


class InterconnectMatch(msgspec.Struct, frozen=True):
    """The known interconnect that a measured link resembles most."""

    interconnect: Interconnect
    bandwidth_ratio: float
    """Measured / nominal: 0.5 is half as fast."""
    latency_ratio: float | None
    """Measured / typical; None if the measured latency is 0."""


_GUIDE = "latency: the guide 'Distributed Training', section 5.1"
_NVLINK_US, _PCIE_US, _IB_US, _ETHERNET_US = 3e-6, 5e-6, 1.5e-6, 50e-6

INTERCONNECTS = (
    Interconnect(
        "NVLink 3 (A100)", "nvlink", 300e9, _NVLINK_US, f"NVIDIA A100 data sheet: 600 GB/s both ways; {_GUIDE}"
    ),
    Interconnect(
        "NVLink 4 (H100)", "nvlink", 450e9, _NVLINK_US, f"NVIDIA H100 data sheet: 900 GB/s both ways; {_GUIDE}"
    ),
    Interconnect(
        "NVLink 5 (B200)", "nvlink", 900e9, _NVLINK_US, f"NVIDIA B200 data sheet: 1.8 TB/s both ways; {_GUIDE}"
    ),
    Interconnect("PCIe 3.0 x16", "pcie", 15.75e9, _PCIE_US, "PCI-SIG: 8 GT/s, 128b/130b, 16 lanes"),
    Interconnect("PCIe 4.0 x16", "pcie", 31.5e9, _PCIE_US, "PCI-SIG: 16 GT/s, 128b/130b, 16 lanes"),
    Interconnect("PCIe 5.0 x16", "pcie", 63.0e9, _PCIE_US, "PCI-SIG: 32 GT/s, 128b/130b, 16 lanes"),
    Interconnect("InfiniBand HDR", "network", 25e9, _IB_US, f"IBTA: 4 lanes, 200 Gb/s; {_GUIDE}"),
    Interconnect("InfiniBand NDR", "network", 50e9, _IB_US, f"IBTA: 4 lanes, 400 Gb/s; {_GUIDE}"),
    Interconnect("10 Gb Ethernet", "network", 1.25e9, _ETHERNET_US, f"IEEE 802.3ae; {_GUIDE}"),
    Interconnect("25 Gb Ethernet", "network", 3.125e9, _ETHERNET_US, f"IEEE 802.3by; {_GUIDE}"),
    Interconnect("100 Gb Ethernet", "network", 12.5e9, _ETHERNET_US, f"IEEE 802.3ba, 802.3bj; {_GUIDE}"),
    Interconnect("400 Gb Ethernet", "network", 50e9, _ETHERNET_US, f"IEEE 802.3bs; {_GUIDE}"),
    # Not from a standard: kernel copies on one core of a 2020s server, the order of magnitude that iperf3 shows between
    # two processes on one machine.
    Interconnect(
        "TCP over loopback", "memory", 2.5e9, 50e-6, "order of magnitude: one core copying through the kernel"
    ),
)

SHORT_NAMES = {
    "nvlink3": "NVLink 3 (A100)",
    "nvlink4": "NVLink 4 (H100)",
    "nvlink5": "NVLink 5 (B200)",
    "pcie3": "PCIe 3.0 x16",
    "pcie4": "PCIe 4.0 x16",
    "pcie5": "PCIe 5.0 x16",
    "ib-hdr": "InfiniBand HDR",
    "ib-ndr": "InfiniBand NDR",
    "eth-10": "10 Gb Ethernet",
    "eth-25": "25 Gb Ethernet",
    "eth-100": "100 Gb Ethernet",
    "eth-400": "400 Gb Ethernet",
    "loopback": "TCP over loopback",
}
"""The names of the known interconnects on the command line."""


def interconnect_named(name: str) -> Interconnect:
    """Return the interconnect with this short name.

    Raises:
        UsageError: there is none.

    >>> interconnect_named("ib-ndr").bytes_per_s
    50000000000.0
    """
    full = SHORT_NAMES.get(name.strip().lower())
    if full is None:
        raise UsageError(f"--link {name}: choose from {', '.join(SHORT_NAMES)}.")
    return next(interconnect for interconnect in INTERCONNECTS if interconnect.name == full)


def nearest_interconnect(bytes_per_s: float, alpha_s: float, media: Sequence[str]) -> InterconnectMatch:
    """Find the interconnect nearest to a link, by the ratio of bandwidths and, with less weight, of latencies.

    Args:
        bytes_per_s: bandwidth of one link, above 0.
        alpha_s: latency of one message over it; 0 if it was too short to measure.
        media: the media to consider.

    >>> nearest_interconnect(400e9, 4e-6, ["nvlink", "pcie"]).interconnect.name
    'NVLink 4 (H100)'
    """

    def distance(candidate: Interconnect) -> float:
        latency = abs(math.log(alpha_s / candidate.alpha_s)) if alpha_s > 0 else 0.0
        return abs(math.log(bytes_per_s / candidate.bytes_per_s)) + _LATENCY_COUNTS * latency

    nearest = min((candidate for candidate in INTERCONNECTS if candidate.medium in media), key=distance)
    return InterconnectMatch(
        nearest, bytes_per_s / nearest.bytes_per_s, alpha_s / nearest.alpha_s if alpha_s > 0 else None
    )
