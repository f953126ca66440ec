"""Advice on a training in sentences and tables: the decision path, the ways to train, and the checklists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dptrace.core.units import MINUS, byte_size, duration, plural, share
from dptrace.simulate.explanation import megabytes
from dptrace.viewers.base.table import TextTable

__all__ = [
    "advise_facts",
    "advise_tables",
    "billions",
    "in_flight_table",
    "memory_facts",
    "memory_table",
    "message_facts",
    "message_tables",
    "recommendation",
    "recorded_table",
    "recorded_title",
    "strategies_table",
]


# Memory of a planned training as tables.


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


# The cost of one message by every collective, and by every all-reduce algorithm, as tables.


def message_facts(content: Mapping[str, Any]) -> list[str]:
    """Return the message, each link with its n*, and where the ring becomes the faster all-reduce."""
    links = [
        f"{one['name']}: alpha {_time(one['alpha_s'])}, {one['bytes_per_s'] / 1e9:,.4g} GB/s, n* = alpha·bandwidth = "
        f"{byte_size(one['crossover_bytes'])}: one such message is {one['regime']}."
        for one in content["links"]
    ]
    gamma = content["gamma_s_per_byte"]
    added = f", gamma {1e12 * gamma:,.3g} ps/byte" if gamma else ""
    return [f"{byte_size(content['size_bytes'])} among {content['ranks']:,} ranks{added}.", *links]


def message_tables(content: Mapping[str, Any]) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables with their titles."""
    yield f"Collectives over {content['slowest_link']}", _collectives(content)
    yield "All-reduce by algorithm", _all_reduces(content)


def _collectives(content: Mapping[str, Any]) -> TextTable:
    rows = [
        (one["kind"].replace("_", "-"), one["algorithm"], f"{one['hops']:,.0f}", *_terms(one),
         byte_size(one["crossover_bytes"]))
        for one in content["collectives"]
    ]  # fmt: skip
    columns = ("collective", "algorithm", "messages", "alpha", "beta", "gamma", "time", "regime", "n*")
    note = "n*: from which size on the bytes of the collective take longer than its messages."
    return TextTable(columns, tuple(rows), 2, note)


def _all_reduces(content: Mapping[str, Any]) -> TextTable:
    rows = [
        (one["algorithm"], f"{one['steps']:,.0f}", *(megabytes(one[f"{name}_bytes"]) for name in _VOLUMES),
         *_terms(one))
        for one in content["all_reduce"]
    ]  # fmt: skip
    columns = ("algorithm", "messages", "busiest sends", "sends + receives", "all send")
    crossing = [f"The ring overtakes {one['below']} at {byte_size(one['bytes'])}." for one in content["crossovers"]]
    return TextTable((*columns, "alpha", "beta", "gamma", "time", "regime"), tuple(rows), 1, " ".join(crossing))


_VOLUMES = ("sent", "busiest", "total")


def _terms(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(_time(one[name]) for name in ("latency_s", "transfer_s", "adding_s", "seconds")), one["regime"])


def _time(seconds: float) -> str:
    return duration(1e9 * seconds) if seconds else "–"
