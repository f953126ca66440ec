"""Links of a plan from a file of ``dptrace links``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.errors import DptraceError

if TYPE_CHECKING:
    from dptrace.model.planning.describe import Description

__all__ = ["with_measured_links"]


def with_measured_links(description: Description, path: Path) -> Description:
    """Replace the link that a measurement is of: between nodes if it was on several, else within a node.

    Raises:
        DptraceError: the file holds no fitted line.
    """
    from msgspec.structs import replace

    from dptrace.bench.links.launch import read_links
    from dptrace.model.training.network import Link

    content = read_links(path)
    lines = {
        kind: found["link"]
        for kind, found in content["collectives"].items()
        if found["link"] and found["link"]["beta_s_per_byte"] > 0
    }
    if not lines:
        raise DptraceError(f"{path}: no line was fitted to its times. Measure again: dptrace links -o {path}")
    kind = "all_reduce" if "all_reduce" in lines else next(iter(lines))
    line = lines[kind]
    link = Link(f"{path.name} ({kind.replace('_', '-')})", line["alpha_s"], 1 / line["beta_s_per_byte"])
    several = content["nodes"] > 1
    return replace(description, **{"measured_between" if several else "measured_within": link})
