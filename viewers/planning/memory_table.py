"""Memory of a planned training as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.core.units import byte_size, plural, share
from dptrace.viewers.base.table import TextTable

__all__ = [
    "billions",
    "in_flight_table",
    "memory_facts",
    "memory_table",
    "recorded_table",
    "recorded_title",
    "strategies_table",
]

_PARTS = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state and master weights",
    "gathered_bytes": "gathered parameters",
    "activation_bytes": "activations",
    "recompute_bytes": "what backward computes again",
}


def billions(count: float) -> str:
    """Write a number of parameters.

    >>> billions(7e9), billions(175e9), billions(52.04e6), billions(1.008e12)
    ('7.0 billion', '175 billion', '52.0 million', '1.01 trillion')
    """
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= size:
            value = count / size
            return f"{value:.0f} {word}" if value >= 100 else f"{value:.{2 if size == 1e12 else 1}f} {word}"
    return f"{count:,.0f}"


def memory_facts(content: Mapping[str, Any]) -> list[str]:
    """Return the answer in sentences: the state, the activations, and whether they fit."""
    each = content["bytes_per_parameter"]
    usable = content["gpu_memory_bytes"] * content["usable_share"]
    fits = "fits" if content["fits"] else "does not fit"
    wall = content["ddp_wall_params"]
    state = (
        f"{billions(content['params'])} parameters × {each['total']:g} bytes = "
        f"{byte_size(content['model_state_bytes'])} of state ({each['parameters']:g} weights, {each['gradients']:g} "
        f"gradients, {each['optimizer']:g} optimizer and master weights): the memory of {content['gpus_for_state']} × "
        f"{content['gpu']}."
    )
    every = f" in every {content['recompute_every']}th layer" if content["recompute_every"] > 1 else ""
    activations = (
        f"A micro-batch of {content['micro_batch']} × {plural(content['shape']['seq'], 'token')} keeps "
        f"{byte_size(content['activation_bytes'])} of activations in the layers "
        f"({content['attention']} attention, recompute {content['recompute']}{every})."
    )
    answer = (
        f"{content['layout']} on {plural(content['gpus'], 'GPU')} takes {byte_size(content['per_gpu_bytes'])} on "
        f"each: it {fits} "
        f"into {byte_size(usable)}, {share(content['usable_share'])} of the GPU's memory."
    )
    return [state, activations, answer, f"With DDP, a GPU holds the state of at most {billions(wall)} parameters."]


def memory_table(content: Mapping[str, Any]) -> TextTable:
    """List the parts of one GPU's memory."""
    total = content["per_gpu_bytes"]
    rows = [
        (name, byte_size(content["per_gpu"][key]), share(content["per_gpu"][key] / total))
        for key, name in _PARTS.items()
        if content["per_gpu"][key]
    ]
    rows.append(("together", byte_size(total), ""))
    if content["host_bytes"]:
        rows.append(("in the CPU's memory, for each GPU", byte_size(content["host_bytes"]), ""))
    return TextTable((f"on each GPU, {content['layout']}", "bytes", "share"), tuple(rows))


def strategies_table(content: Mapping[str, Any]) -> TextTable:
    """List what each strategy takes on a GPU, with each kind of recomputation; a star where it fits."""
    rows = []
    for row in content["strategies"]:
        sizes = (
            f"{byte_size(row['per_gpu_bytes'][kind])}{' *' if row['fits'][kind] else '  '}"
            for kind in ("none", "selective", "full")
        )
        rows.append((row["layout"], byte_size(row["state_bytes"]), *sizes))
    columns = (f"on {plural(content['gpus'], 'GPU')}", "state", "recompute none", "selective", "full")
    return TextTable(columns, tuple(rows), note="* fits into a GPU.")


def recorded_table(content: Mapping[str, Any]) -> TextTable:
    """List what a recording's ranks held next to what the formulas give."""
    rows = []
    for row in content["recorded"]["compared"]:
        measured, expected = row["measured_bytes"], row["expected_bytes"]
        off = f"{100 * (measured / expected - 1):+.1f} %" if expected and measured is not None else ""
        shown = "not recorded" if measured is None else byte_size(measured) if measured else "0 B"
        shown_expected = "not computed" if expected is None else byte_size(expected) if expected else "0 B"
        rows.append((row["what"], shown_expected, shown, off))
    return TextTable(("mean of the ranks", "expected", "measured", "off"), tuple(rows))


def in_flight_table(content: Mapping[str, Any]) -> TextTable:
    """List how many micro-batches' activations each rank of a recorded pipeline held, and what its schedule expects."""
    rows = []
    for row in content["recorded"]["in_flight"]:
        expected, size = row["expected_micro_batches"], row["bytes"]
        shown = "not measured" if size is None else byte_size(size)
        rows.append((str(row["rank"]), str(expected or "no formula"), str(row["micro_batches"]), shown))
    note = "A micro-batch counts once for each of the rank's stages; bytes are what autograd kept."
    return TextTable(("rank", "expected", "held", "bytes"), tuple(rows), note=note)


def recorded_title(content: Mapping[str, Any]) -> str:
    """Return the heading over what a recording held."""
    return f"{billions(content['params'])} parameters, {content['strategy']} on {plural(content['gpus'], 'rank')}"
