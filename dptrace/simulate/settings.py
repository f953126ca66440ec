"""What a simulation is asked for, and the links that its cost is computed for."""

from __future__ import annotations

import msgspec

from dptrace.core.numbers import COUNT, Number
from dptrace.core.units import duration
from dptrace.errors import UsageError
from dptrace.model.interconnects import BANDWIDTH_GBPS, LATENCY_US, interconnect_named

__all__ = ["DEFAULT_BYTES", "DEFAULT_LINK", "MOST_MICRO_BATCHES", "MOST_RANKS", "Link", "Settings", "links_of"]

MOST_MICRO_BATCHES = 64
DEFAULT_BYTES = 100e6
DEFAULT_LINK = "nvlink4"

MOST_RANKS = 32
"""Most ranks of a picture: a state of n ranks has n² cells, and a ring 2(n−1) states."""


_BYTES = Number(above=0, most=1e18)
_NUMBERS = {
    "ranks": Number(2, MOST_RANKS, whole=True),
    "size_bytes": _BYTES,
    "micro_batches": Number(1, MOST_MICRO_BATCHES, whole=True),
    **dict.fromkeys(("node_size", "chunks", "layers", "tokens", "top_k", "stage"), COUNT),
    "bucket_bytes": _BYTES,
    "capacity_factor": Number(above=0, most=1e6),
}
"""What all explanations take; some take less."""
_MAY_BE_UNSET = ("node_size", "micro_batches", "layers", "bucket_bytes")


class Link(msgspec.Struct, frozen=True):
    """One link by the alpha-beta model."""

    name: str
    alpha_s: float
    bytes_per_s: float

    def __str__(self) -> str:
        speed = f"alpha = {duration(self.alpha_s * 1e9)}, 1/beta = {self.bytes_per_s / 1e9:,.4g} GB/s"
        return f"{self.name}: {speed}" if self.name else speed


def links_of(names: str | None, alpha_us: float | None, bandwidth_gbps: float | None) -> tuple[Link, Link]:
    """Return the link within nodes and the one between nodes.

    Args:
        names: ``nvlink4`` or ``nvlink4,ib-ndr``, of ``dptrace.model.interconnects``.
        alpha_us, bandwidth_gbps: latency in µs and bandwidth in GB/s of one typed link, instead of *names*.

    Raises:
        UsageError: a name is unknown, or only half of a link is given, or both a name and figures.
    """
    typed = [value for value in (alpha_us, bandwidth_gbps) if value is not None]
    if typed and names is not None:
        raise UsageError("--link names a link, --alpha and --bandwidth describe one; give either.")
    if alpha_us is not None and bandwidth_gbps is not None:
        LATENCY_US.check(alpha_us, "--alpha")
        BANDWIDTH_GBPS.check(bandwidth_gbps, "--bandwidth")
        own = Link("", alpha_us * 1e-6, bandwidth_gbps * 1e9)
        return own, own
    if typed:
        raise UsageError("--alpha and --bandwidth describe a link together; give both.")
    if names is not None and not isinstance(names, str):
        raise UsageError(f"--link {names!r}: give a name as text, such as {DEFAULT_LINK}.")
    parts = (DEFAULT_LINK if names is None else names).split(",")
    if len(parts) > 2:
        raise UsageError(f"--link {names}: name one link, or one within nodes and one between nodes.")
    found = [interconnect_named(part) for part in parts]
    links = [Link(one.name, one.alpha_s, one.bytes_per_s) for one in found]
    return links[0], links[-1]


class Settings(msgspec.Struct, frozen=True):
    """The options of all explanations; each uses those that its entry in the catalog names."""

    ranks: int
    size_bytes: float
    link: Link
    """Within a node."""
    between: Link
    """Between nodes; the same where there is one kind of link."""
    node_size: int | None = None
    micro_batches: int | None = None
    chunks: int = 2
    layers: int | None = None
    bucket_bytes: float | None = None
    tokens: int = 6
    top_k: int = 1
    capacity_factor: float = 1.25
    stage: int = 3

    def node_of(self, rank: int) -> int:
        """Return the number of a rank's node; all are on node 0 without a node size."""
        return rank // self.node_size if self.node_size else 0

    def check(self) -> None:
        """Refuse values that no explanation can have.

        Raises:
            UsageError: a value is out of range.
        """
        for name, number in _NUMBERS.items():
            if (value := getattr(self, name)) is not None or name not in _MAY_BE_UNSET:
                number.check(value, "--bytes" if name == "size_bytes" else f"--{name.replace('_', '-')}")
        if self.node_size is not None and self.node_size > self.ranks:
            raise UsageError(f"--node-size {self.node_size}: must be from 1 to {self.ranks}, the number of ranks.")
