"""Facts as sentences: memory of the ranks, load of the experts, the profiler's overhead, what the steps compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dptrace.analysis.matching.calls import place
from dptrace.analysis.per_gpu.device import expert_loads
from dptrace.core.units import byte_size, duration, number, share
from dptrace.model.training.layout import held_activations
from dptrace.run.utilization import Utilization

__all__ = [
    "MAX_LAYERS",
    "expert_lines",
    "in_flight_lines",
    "memory_sentence",
    "mesh_lines",
    "profiler_sentence",
    "utilization_sentence",
]

_HELD = {
    "parameters_bytes": "of parameters",
    "gradients_bytes": "of gradients",
    "optimizer_bytes": "of optimizer state",
}


def memory_sentence(info: Mapping[str, Any]) -> str:
    """Return what a rank holds in memory, and its peak; empty where that was not recorded.

    Args:
        info: the contents of run.json.
    """
    ranks = info.get("ranks")
    memories = [rank["memory"] for rank in ranks if _has_memory(rank)] if isinstance(ranks, list) else []
    held = {what: values for key, what in _HELD.items() if (values := _values(memories, key))}
    clauses = []
    if held:
        several = any(min(values) < max(values) for values in held.values())
        who = "A rank holds up to" if several else "Each rank holds" if len(memories) > 1 else "The rank holds"
        amounts = [f"{byte_size(max(values)) if max(values) else '0 B'} {what}" for what, values in held.items()]
        clauses.append(f"{who} {', '.join(amounts[:-1])} and {amounts[-1]}" if amounts[1:] else f"{who} {amounts[0]}")
    if peaks := _values(memories, "peak_allocated_bytes"):
        clauses.append(f"GPU memory peaked at {byte_size(max(peaks))}")
    elif peaks := _values(memories, "peak_process_bytes"):
        clauses.append(f"a process used up to {byte_size(max(peaks))}, including Python and torch")
    return f"Memory: {'; '.join(clauses)}." if clauses else ""


def profiler_sentence(info: Mapping[str, Any]) -> str:
    """Return the length of a step without and with the profiler; empty where that was not measured.

    Args:
        info: the contents of run.json.
    """
    overhead, ranks = info.get("profiler_overhead"), info.get("ranks")
    limits, cpu = info.get("profiler_overhead_range"), info.get("profiler_cpu_overhead")
    if not isinstance(ranks, list) or (not isinstance(overhead, float | int) and not isinstance(limits, list)):
        return ""
    from statistics import fmean, median  # only for runs that dptrace recorded

    try:
        plain = fmean(
            median(rank["unprofiled_ns"]) for rank in ranks if isinstance(rank, dict) and rank["unprofiled_ns"]
        )
        windows = f"{_signed(limits[0])} to {_signed(limits[1])} by window" if isinstance(limits, list) else ""
        processor = f"processor time {_signed(cpu)}" if isinstance(cpu, float | int) else ""
    except (KeyError, IndexError, TypeError, ValueError):  # not measured, or edited by hand
        return ""
    text = f"Steps timed apart from these take {duration(plain)} without the profiler"
    if not isinstance(overhead, float | int):
        seen = "; ".join(filter(None, (windows, processor)))
        return f"{text}. What it costs cannot be told on a machine as busy as this ({seen})."
    # Steps that are faster with the profiler show how much steps vary, not what the profiler costs.
    profiled = f" and {duration(plain * (1 + overhead))} with it" if overhead > 0 else ""
    cost = _signed(overhead) if overhead > 0 else "no overhead seen"
    return f"{text}{profiled} ({'; '.join(filter(None, (cost, windows, processor)))})."


def _signed(fraction: float) -> str:
    return f"+{share(fraction)}" if fraction >= 0 else f"-{share(-fraction)}"


def utilization_sentence(found: Utilization) -> str:
    """Return FLOP/s, MFU, samples and tokens per second; empty where none is known."""
    clauses = []
    if found.tflops is not None:
        clauses.append(f"{number(found.tflops)} TFLOP/s of the model on each rank")
    if found.mfu is not None and found.peak_tflops is not None:
        of = " ".join(part for part in (found.gpu, found.dtype) if part)
        clauses.append(f"MFU {share(found.mfu)} of {number(found.peak_tflops)} TFLOP/s{f' ({of})' if of else ''}")
    if found.hfu is not None and found.mfu is not None and found.hfu > found.mfu * 1.001:
        clauses.append(f"HFU {share(found.hfu)}")
    rates = ((found.samples_per_s, "samples/s"), (found.tokens_per_s, "tokens/s"))
    clauses += [f"{number(rate)} {what}" for rate, what in rates if rate is not None]
    if not clauses:
        return ""
    source = f" FLOPs: {found.source}." if found.source else ""
    return f"{', '.join(clauses)}.{source}{f' {found.note}' if found.note else ''}"


def _has_memory(rank: object) -> bool:
    return isinstance(rank, dict) and isinstance(rank.get("memory"), dict)


def _values(memories: Sequence[Mapping[str, Any]], key: str) -> list[int]:
    return [value for memory in memories if type(value := memory.get(key)) is int and value >= 0]


MAX_LAYERS = 8
"""Most layers or ranks that are listed without --all."""


def expert_lines(info: Mapping[str, Any], every: bool = False) -> list[str]:
    """Return each layer's most and least loaded expert, a line each; empty for a run without experts.

    Args:
        info: the contents of run.json.
        every: leave no layer out.
    """
    loads = expert_loads(info)
    if not loads:
        return []
    even = f"{100 * loads[0].even_share:.1f} %"
    lines = [f"Tokens of each expert, all steps (an even load is {even}):"]
    lines += [
        f"  layer {load.layer}: most {100 * load.shares[load.most_loaded]:.1f} % (expert {load.most_loaded}), "
        f"least {100 * load.shares[load.least_loaded]:.1f} % (expert {load.least_loaded})"
        + ("" if load.dropped is None else f", dropped {100 * load.dropped:.1f} %")
        for load in (loads if every else loads[:MAX_LAYERS])
    ]
    if not every and len(loads) > MAX_LAYERS:
        lines.append(f"  {len(loads) - MAX_LAYERS:,} more layers; --all shows them.")
    return lines


def in_flight_lines(info: Mapping[str, Any], every: bool = False) -> list[str]:
    """Return how many micro-batches' activations each rank of a pipeline held, next to the schedule's, a line each.

    Args:
        info: the contents of run.json.
        every: leave no rank out.
    """
    found = held_activations(info)
    if not found:
        return []
    lines = [f"Activations in flight, by {found[0].schedule} (micro-batches that a rank held at once):"]
    for held in found if every else found[:MAX_LAYERS]:
        expected = "no formula" if held.expected is None else f"expected {held.expected}"
        size = "" if held.bytes is None else f", {byte_size(held.bytes)}"
        lines.append(f"  rank {held.rank}: {held.micro_batches} ({expected}){size}")
    if not every and len(found) > MAX_LAYERS:
        lines.append(f"  {len(found) - MAX_LAYERS:,} more ranks; --all shows them.")
    return lines


def mesh_lines(mesh: Mapping[int, Mapping[str, int]], every: bool = False) -> list[str]:
    """Return where each rank stands in the mesh of the job, a line each; empty without a mesh.

    Args:
        mesh: the numbers of each rank in the dimensions.
        every: leave no rank out.
    """
    if not mesh:
        return []
    names = dict.fromkeys(name for numbers in mesh.values() for name in numbers)
    sizes = {name: len({numbers[name] for numbers in mesh.values() if name in numbers}) for name in names}
    lines = [f"Mesh: {' × '.join(f'{name} {size}' for name, size in sizes.items())}"]
    shown = list(mesh.items()) if every else list(mesh.items())[:MAX_LAYERS]
    lines += [f"  rank {rank}: {place(numbers)}" for rank, numbers in shown]
    if len(shown) < len(mesh):
        lines.append(f"  {len(mesh) - len(shown):,} more ranks; --all shows them.")
    return lines
