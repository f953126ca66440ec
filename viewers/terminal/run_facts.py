"""What the ranks of a run held in memory, in a sentence, as far as run.json tells.

How evenly a mixture's tokens were spread over its experts, in a line for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.analysis.per_gpu.expert_load import expert_loads
from dptrace.viewers.terminal.split_tables import quantity

__all__ = ["MAX_LAYERS", "expert_lines", "memory_sentence"]

_HELD = {
    "parameters_bytes": "of parameters",
    "gradients_bytes": "of gradients",
    "optimizer_bytes": "of optimizer state",
}


def memory_sentence(info: Mapping[str, Any]) -> str:
    """Say what a rank held, and its peak; nothing where that was not recorded.

    Args:
        info: the contents of run.json.
    """
    ranks = info.get("ranks")
    listed = [rank["memory"] for rank in ranks if _has_memory(rank)] if isinstance(ranks, list) else []
    held = {what: values for key, what in _HELD.items() if (values := _values(listed, key))}
    said = []
    if held:
        several = any(min(values) < max(values) for values in held.values())
        who = "A rank holds up to" if several else "Each rank holds" if len(listed) > 1 else "It holds"
        amounts = [f"{quantity(max(values)) if max(values) else 'nothing'} {what}" for what, values in held.items()]
        said.append(f"{who} {', '.join(amounts[:-1])} and {amounts[-1]}" if amounts[1:] else f"{who} {amounts[0]}")
    if peaks := _values(listed, "peak_allocated_bytes"):
        said.append(f"GPU memory peaked at {quantity(max(peaks))}")
    elif peaks := _values(listed, "peak_process_bytes"):
        said.append(f"a process took up to {quantity(max(peaks))}, all of Python and torch in it")
    return f"Memory: {'; '.join(said)}." if said else ""


def _has_memory(rank: object) -> bool:
    return isinstance(rank, dict) and isinstance(rank.get("memory"), dict)


def _values(listed: Sequence[Mapping[str, Any]], key: str) -> list[int]:
    return [value for memory in listed if type(value := memory.get(key)) is int and value >= 0]


MAX_LAYERS = 8


def expert_lines(info: Mapping[str, Any], every: bool = False) -> list[str]:
    """Name each layer's most and least loaded expert; nothing for a run without experts.

    Args:
        info: the contents of run.json.
        every: leave no layer out, however many there are.
    """
    loads = expert_loads(info)
    if not loads:
        return []
    even = f"{100 * loads[0].even_share:.1f} %"
    lines = [f"Tokens of each expert, in all steps (alike: {even} each):"]
    lines += [
        f"  layer {load.layer}: most {100 * load.shares[load.most_loaded]:.1f} % (expert {load.most_loaded}), "
        f"least {100 * load.shares[load.least_loaded]:.1f} % (expert {load.least_loaded})"
        for load in (loads if every else loads[:MAX_LAYERS])
    ]
    if not every and len(loads) > MAX_LAYERS:
        lines.append(f"  {len(loads) - MAX_LAYERS:,} more layers; --all shows them.")
    return lines
