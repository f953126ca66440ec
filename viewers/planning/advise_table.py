"""Advice on a training in sentences and tables: the decision path, the ways to train, and the checklists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dptrace.core.units import MINUS, byte_size, duration, plural, share
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.planning.memory_table import billions

__all__ = ["advise_facts", "advise_tables", "recommendation"]

_MOST_CANDIDATES = 8
_UNFIT = 3
_STATUS = {
    "apply": "What to change, by gain",
    "keep": "What the prediction assumes, with the cost of leaving it out",
    "skip": "What does not apply, or gains less than 1 %",
}
_NOTHING = "No item of the checklists gains 1 % or more."


def advise_facts(content: Mapping[str, Any]) -> list[str]:
    """Return what the advice is about, in a sentence."""
    if "recorded" in content:
        mode = f" of {content['mode']}" if content["mode"] else ""
        parts = content["parts"]
        exposed = parts["exposed_transfer_ns"] + parts["exposed_wait_ns"]
        return [
            (
                f"A step{mode} on {plural(content['ranks'], 'rank')} takes {duration(content['step_ns'])}: compute "
                f"{duration(parts['compute_ns'])}, exposed communication {duration(exposed)}, of which "
                f"{duration(parts['exposed_wait_ns'])} is waiting for later ranks, idle {duration(parts['idle_ns'])}."
            )
        ]
    shape = content["shape"]
    links = " and ".join(dict.fromkeys(content["links"]))
    return [
        (
            f"{billions(content['params'])} parameters, {plural(shape['layers'], 'layer')} of {shape['hidden']:,}, "
            f"{plural(content['batch'], 'sample')} of {plural(shape['seq'], 'token')} in a step, "
            f"{content['precision']}, "
            f"{content['attention']} attention, {content['gpus']} × {content['gpu']}, {links}."
        )
    ]


def recommendation(content: Mapping[str, Any]) -> list[str]:
    """Return which plan to take, what else is as good, and what the documents' tree says, in sentences."""
    best = content["chosen"]
    plan = (
        f"micro-batches of {best['micro_batch']}, recompute {best['recompute']}, "
        f"{byte_size(best['per_gpu_bytes'])} of {byte_size(content['usable_bytes'])} on each GPU"
    )
    nothing = (
        f"Nothing fits. Nearest is {best['label']}: {plan}, {byte_size(best['over_bytes'])} too much. More GPUs, "
        "larger ones, or fewer tokens at once."
    )
    fastest = (
        f"Fastest that fits, of {plural(content['tried'], 'way')}: {best['label']}, "
        f"{duration(best['step_ns'])} a step, "
        f"{best['tokens_per_s']:,.0f} tokens/s, MFU {share(best['mfu'])}; {plan}."
    )
    said = [fastest if best["fits"] else nothing]
    if content["tied"]:
        simplest = content["simplest"]
        said.append(
            f"Within the prediction's error of 5 %: {', '.join(content['tied'])}."
            + ("" if simplest == best["label"] else f" The simplest of these is {simplest}.")
        )
    return [*said, _tree(content), *_plan(content)]


def _tree(content: Mapping[str, Any]) -> str:
    tree = content["tree"]
    ends = f"The guide's decision tree ends at {tree['strategy']}"
    if tree["label"] is None:
        return f"{ends}: no such plan divides the GPUs, the heads and the batch."
    if not tree["fits"]:
        return f"{ends}: {tree['label']} does not fit." if content["gpus"] > 1 else f"{ends}."
    return f"{ends}: {tree['label']} is {share(tree['slower'])} slower." if tree["slower"] else f"{ends}, too."


def _plan(content: Mapping[str, Any]) -> list[str]:
    """Return how the plan that was described compares."""
    own = content["plan"]
    if own is None:
        return []
    fits = "fits" if own["fits"] else f"does not fit: {byte_size(own['over_bytes'])} too much"
    return [
        (
            f"Your plan, {own['label']}: {duration(own['step_ns'])} a step, MFU {share(own['mfu'])}, "
            f"{byte_size(own['per_gpu_bytes'])} on each GPU; it {fits}. The checklists are about it."
        )
    ]


def advise_tables(content: Mapping[str, Any], every: bool = False) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables with their titles.

    Args:
        every: all candidates, and the items that do not apply, too.
    """
    yield "The decision", _path(content["path"], every)
    if "candidates" in content:
        yield "Ways to train, fastest that fits first", _candidates(content["candidates"], every)
    for status, title in _STATUS.items():
        rows = [one for one in content["checks"] if one["status"] == status]
        if status == "apply" and not rows:
            yield title, TextTable(("",), (), note=_NOTHING)
        elif rows and (every or status != "skip"):
            yield title, _checks(rows, every)


def _path(path: Sequence[Mapping[str, Any]], every: bool) -> TextTable:
    rows = []
    for one in path:
        note = f" ({one['note']})" if every and one["note"] else ""
        rows.append((one["question"], f"{one['numbers']}{note}", one["answer"], *([one["source"]] if every else [])))
    columns = ("question", "numbers", "answer", *(["source"] if every else []))
    return TextTable(columns, tuple(rows), len(columns))


def _candidates(found: Sequence[Mapping[str, Any]], every: bool) -> TextTable:
    rows = []
    fitting = [one for one in found if one["fits"]]
    unfit = [one for one in found if not one["fits"]]
    shown = list(found) if every else [*fitting[:_MOST_CANDIDATES], *unfit[:_UNFIT]]
    for one in shown:
        rows.append(
            (
                one["label"],
                one["loses"] or "the best",
                one["recompute"],
                byte_size(one["per_gpu_bytes"]),
                f"{one['micro_batch']}",
                duration(one["step_ns"]),
                f"{one['tokens_per_s']:,.0f}",
                share(one["mfu"]),
                share(one["efficiency"]),
            )
        )
    more = len(found) - len(shown)
    note = f"{more} more kinds of plan: --all." if more else ""
    columns = ("plan", "loses by", "recompute", "on a GPU", "micro-batch", "step", "tokens/s", "MFU", "efficiency")
    return TextTable(columns, tuple(rows), 3, note)


def _checks(rows: Sequence[Mapping[str, Any]], every: bool) -> TextTable:
    lines = []
    for one in rows:
        line = [one["what"], _gain(one), one["reason"]]
        line += [one["do"]] if every or one["status"] == "apply" else []
        lines.append((one["name"], *line, one["computed"] or "–", one["source"]) if every else tuple(line))
    gain = "cost without" if rows[0]["status"] == "keep" else "gain"
    columns = ["what to do", gain, "why"] + (["how"] if every or rows[0]["status"] == "apply" else [])
    columns = ["item", *columns, "computed", "source"] if every else columns
    return TextTable(tuple(columns), tuple(lines), len(columns))


def _gain(one: Mapping[str, Any]) -> str:
    """Write a gain; what gets longer or larger has a minus."""
    parts = []
    if ns := one["gain_ns"]:
        sign = MINUS if ns < 0 else ""
        part = f" ({sign}{share(abs(one['gain_share']))})" if one["gain_share"] is not None else ""
        parts.append(f"{sign}{duration(abs(ns))}{part}")
    if size := one["gain_bytes"]:
        parts.append(f"{MINUS if size < 0 else ''}{byte_size(abs(size))}")
    return ", ".join(parts) or "–"
