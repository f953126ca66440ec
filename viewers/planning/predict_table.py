"""A predicted step as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dptrace.core.units import byte_size, duration, plural, share
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.planning.tables import billions

__all__ = [
    "predict_facts",
    "predict_tables",
    "recorded_roofline_sentence",
    "recorded_roofline_table",
    "recorded_scaling_table",
    "recorded_step_sentence",
]

_TARGETS = {"mfu": "MFU", "bubble": "bubble", "overlap": "overlap"}


def predict_facts(content: Mapping[str, Any]) -> list[str]:
    """Return the answer in sentences."""
    shape = content["shape"]
    model = (
        f"{billions(content['params'])} parameters, {plural(shape['layers'], 'layer')} of {shape['hidden']:,}, "
        f"{plural(content['batch'], 'sample')} of {plural(shape['seq'], 'token')} in a step, {content['precision']}, "
        f"{content['gpus']} × {content['gpu']}."
    )
    fits = "fits" if content["fits"] else "does not fit"
    step = (
        f"{content['layout']}: {_seconds(content['step_s'])} a step, {_rate(content['samples_per_s'])} samples/s, "
        f"{content['tokens_per_s']:,.0f} tokens/s, MFU {share(content['mfu'])}; "
        f"{byte_size(content['per_gpu_bytes'])} on each GPU, which {fits} (micro-batch {content['micro_batch']}, "
        f"recompute {content['recompute']})."
    )
    days = [f"Training takes {content['training_days']:,.3g} days."] if "training_days" in content else []
    goals = " · ".join(
        f"{_TARGETS[target['name']]} {'–' if target['value'] is None else share(target['value'])} "
        f"(goal {target['goal']}{'' if target['met'] in (True, None) else ', missed'})"
        for target in content["targets"]
    )
    return [model, step, *days, goals]


def predict_tables(content: Mapping[str, Any]) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables with their titles."""
    yield "The step", _step(content)
    if content["communication"]:
        yield "Communication of a GPU in a step", _communication(content)
    if len(content["candidates"]) > 1:
        yield "Strategies, fastest that fits first", _candidates(content)
    yield f"{content['layout']} on other numbers of GPUs", _scaling(content)
    if content["roofline"]:
        yield "Communication roofline", _roofline(content)
    if content["all_reduce"]:
        yield "All-reduce of all gradients by algorithm", _all_reduces(content)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else duration(value * 1e9)


def _step(content: Mapping[str, Any]) -> TextTable:
    total = content["step_s"]
    parts = (
        ("computation", "compute_s"),
        ("bubble of the pipeline", "bubble_s"),
        ("optimizer", "optimizer_s"),
        ("exposed communication", "exposed_s"),
        ("together", "step_s"),
    )
    rows = [(name, _seconds(content[key]), share(content[key] / total)) for name, key in parts if content[key]]
    bounds = (
        ("all communication", "communication_s"),
        ("step without any overlap", "serial_step_s"),
        ("step if the longer of the two hid the other", "ideal_step_s"),
    )
    rows += [(name, _seconds(content[key]), share(content[key] / total)) for name, key in bounds if content[key]]
    return TextTable(("", "time", "of the step"), tuple(rows))


def _communication(content: Mapping[str, Any]) -> TextTable:
    rows = []
    for one in content["communication"]:
        rows.append(
            (
                one["what"],
                one["kind"].replace("_", "-"),
                one["hides_under"] or "nothing",
                f"{one['ranks']:,}",
                f"{one['calls']:,.0f}",
                byte_size(one["bytes"]),
                byte_size(one["sent_bytes"]),
                _seconds(one["total_s"]),
            )
        )
    columns = ("what", "collective", "runs under", "ranks", "calls", "bytes each", "sent in all", "time")
    return TextTable(columns, tuple(rows), 3)


def _candidates(content: Mapping[str, Any]) -> TextTable:
    rows = []
    for one in content["candidates"]:
        rows.append(
            (
                one["layout"],
                "yes" if one["fits"] else "no",
                byte_size(one["per_gpu_bytes"]),
                f"{one['micro_batch']}",
                one["recompute"],
                _seconds(one["step_s"]),
                f"{one['tokens_per_s']:,.0f}",
                share(one["mfu"]),
                share(one["bubble"]),
                _seconds(one["exposed_s"]) if one["exposed_s"] else "–",
            )
        )
    columns = (
        "strategy",
        "fits",
        "on a GPU",
        "micro-batch",
        "recompute",
        "step",
        "tokens/s",
        "MFU",
        "bubble",
        "exposed",
    )
    return TextTable(columns, tuple(rows), 2)


def _scaling(content: Mapping[str, Any]) -> TextTable:
    rows = []
    for row in content["scaling"]:
        strong = row["strong_efficiency"]
        rows.append(
            (
                f"{row['gpus']:,}",
                "yes" if row["fits"] else "no",
                _seconds(row["step_s"]),
                f"{row['tokens_per_s']:,.0f}",
                share(row["communication_share"]),
                share(row["weak_efficiency"]),
                _seconds(row["strong_step_s"]),
                "–" if strong is None else share(strong),
                f"{row['amdahl_ceiling']:,.1f}×",
                share(row["gustafson_efficiency"]),
            )
        )
    of_all = ("fixed batch: step", "efficiency", "Amdahl", "Gustafson")
    columns = ("GPUs", "fits", "step", "tokens/s", "comm.", "efficiency", *of_all)
    note = "Fixed batch: each GPU gets fewer samples. Amdahl's ceiling and Gustafson's efficiency: of the plan above."
    return TextTable(columns, tuple(rows), 0, note)


def _roofline(content: Mapping[str, Any]) -> TextTable:
    rows = [
        (
            level["link"],
            byte_size(level["sent_bytes"]),
            f"{level['ccr']:,.0f}",
            f"{level['ridge']:,.0f}",
            level["regime"],
            f"{level['critical_batch']:,.3g}",
            byte_size(level["crossover_bytes"]),
        )
        for level in content["roofline"]
    ]
    columns = ("link", "a GPU sends", "FLOP/byte", "ridge", "regime", "critical batch of a GPU", "n*")
    return TextTable(columns, tuple(rows))


def _all_reduces(content: Mapping[str, Any]) -> TextTable:
    found = content["all_reduce"]
    rows = [
        (one["algorithm"], f"{one['steps']:,.0f}", byte_size(one["sent_bytes"]), _seconds(one["seconds"]))
        for one in found["algorithms"]
    ]
    note = (
        f"{byte_size(found['size_bytes'])} among {found['ranks']:,} GPUs. Adding the numbers (gamma) takes "
        f"{_seconds(found['adding_s'])} of it on each GPU."
    )
    return TextTable(("algorithm", "steps", "busiest rank sends", "time"), tuple(rows), note=note)


def recorded_step_sentence(content: Mapping[str, Any]) -> str:
    """Return the parts of a recorded step."""
    return (
        f"Recorded on {content['gpus']} ranks: a step of {_seconds(content['step_s'])}, computation "
        f"{_seconds(content['compute_s'])}, communication {_seconds(content['communication_s'])}, of which "
        f"{_seconds(content['exposed_s'])} is exposed, other {_seconds(content['rest_s'])}. "
        f"Without overlap it would take {_seconds(content['serial_step_s'])}, with all that is possible "
        f"{_seconds(content['ideal_step_s'])}."
    )


def recorded_roofline_sentence(content: Mapping[str, Any]) -> str:
    """Return where a recording lies on the communication roofline; empty where that is not known."""
    point = content["roofline"]
    if point is None:
        return ""
    return (
        f"Roofline: {point['ccr']:,.0f} FLOPs for each byte sent, ridge {point['ridge']:,.0f} over the recorded "
        f"{point['bytes_per_s'] / 1e9:,.3g} GB/s: {point['regime']}; the ridge is at {point['critical_batch']:,.3g} "
        f"samples of a rank. It computes {point['achieved_flops_per_s'] / 1e12:,.3g} of "
        f"{point['peak_flops'] / 1e12:,.3g} TFLOP/s."
    )


def recorded_roofline_table(content: Mapping[str, Any]) -> TextTable:
    """List the links of a recording, and where its steps lie for each."""
    rows = [
        (
            level["link"],
            byte_size(level["sent_bytes"]),
            f"{level['bytes_per_s'] / 1e9:,.3g}",
            f"{level['ccr']:,.0f}",
            f"{level['ridge']:,.0f}",
            level["regime"],
            f"{level['critical_batch']:,.3g}",
        )
        for level in content["roofline"]["levels"]
    ]
    columns = ("link", "a rank sends", "GB/s", "FLOP/byte", "ridge", "regime", "critical batch of a rank")
    return TextTable(columns, tuple(rows), 1, "Links differ by the groups that use them.")


def recorded_scaling_table(content: Mapping[str, Any]) -> TextTable:
    """List a recorded training on other numbers of ranks, between no overlap and full overlap."""
    rows = [
        (
            f"{row['gpus']:,}",
            _seconds(row["communication_s"]) if row["communication_s"] else "–",
            f"{_seconds(row['weak_overlapped_s'])} to {_seconds(row['weak_serial_s'])}",
            share(row["weak_efficiency"]),
            f"{_seconds(row['strong_overlapped_s'])} to {_seconds(row['strong_serial_s'])}",
            share(row["strong_efficiency"]),
            f"{row['amdahl_ceiling']:,.1f}×",
            share(row["gustafson_efficiency"]),
        )
        for row in content["scaling"]
    ]
    weak, strong = "fixed batch of a rank: step", "fixed batch of all: step"
    columns = ("ranks", "communication", weak, "efficiency", strong, "efficiency", "Amdahl", "Gustafson")
    return TextTable(columns, tuple(rows), 0, "From full overlap to none; efficiency is that with full overlap.")
