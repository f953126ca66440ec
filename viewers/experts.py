"""How evenly a mixture's tokens were spread over its experts, in a line for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.experts import expert_loads

__all__ = ["MOST_LAYERS", "expert_lines"]

MOST_LAYERS = 8


def expert_lines(info: Mapping[str, Any], every: bool = False) -> list[str]:
    """Name each layer's most and least loaded expert; nothing for a run without experts.

    Args:
        info: the contents of run.json.
        every: leave no layer out, however many there are.
    """
    loads = expert_loads(info)
    if not loads:
        return []
    even = f"{100 * loads[0].even:.1f} %"
    lines = [f"Tokens of each expert, in all steps (alike: {even} each):"]
    lines += [
        f"  layer {load.layer}: most {100 * load.shares[load.most]:.1f} % (expert {load.most}), "
        f"least {100 * load.shares[load.least]:.1f} % (expert {load.least})"
        for load in (loads if every else loads[:MOST_LAYERS])
    ]
    if not every and len(loads) > MOST_LAYERS:
        lines.append(f"  {len(loads) - MOST_LAYERS:,} more layers; --all shows them.")
    return lines
