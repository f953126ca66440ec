"""Links of a plan from a file of ``dptrace links``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.errors import DptraceError

if TYPE_CHECKING:
    from dptrace.model.planning.describe import Description

__all__ = ["measured_gamma", "with_measured_links"]


def measured_gamma(path: Path) -> float | None:
    """Return the measured time to add a byte, in seconds; None where ``--algorithms`` was not measured."""
    from dptrace.bench.links import read_links

    found = read_links(path).get("algorithms")
    gamma: float | None = found["gamma_s_per_byte"] if found else None
    return gamma


def with_measured_links(description: Description, path: Path, preferred: str = "all_reduce") -> Description:
    """Replace the link that a measurement is of: between nodes if it was on several, else within a node.

    Args:
        preferred: the collective whose line counts, if it was measured. That of all-reduce includes the additions.

    Raises:
        DptraceError: the file holds no fitted line.
    """
    from msgspec.structs import replace

    from dptrace.bench.links import read_links
    from dptrace.model.training.communication import Link

    content = read_links(path)
    lines = {
        kind: found["link"]
        for kind, found in content["collectives"].items()
        if found["link"] and found["link"]["beta_s_per_byte"] > 0
    }
    if not lines:
        raise DptraceError(f"{path}: no line was fitted to its times. Measure again: dptrace links -o {path}")
    kind = preferred if preferred in lines else next(iter(lines))
    line = lines[kind]
    link = Link(f"{path.name} ({kind.replace('_', '-')})", line["alpha_s"], 1 / line["beta_s_per_byte"])
    several = content["nodes"] > 1
    return replace(description, **{"measured_between" if several else "measured_within": link})
