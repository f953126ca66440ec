"""What the planners answer, in sentences and tables: of ``dptrace predict``, its ``--memory``, and ``dptrace advise``.

Each table is a row of columns: its headings, and how a cell is written from a row of the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dptrace.core.notes import SEVERAL_RUNS
from dptrace.core.units import MINUS, byte_size, duration, number, plural, share
from dptrace.model.gpu_peaks import LARGEST_BYTES, USUAL_HOST_BYTES
from dptrace.simulate.explanation import megabytes
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.planning.cells import HELD, Columns, Row, billions, cell, columns, seconds, table_of

Titled = Iterator[tuple[str, TextTable]]


def facts(content: Row) -> list[str]:
    """Return an answer in sentences: what is asked about first, then what follows."""
    return list(_FACTS[_kind(content)](content))


def tables(content: Row, every: bool = False) -> Titled:
    """Yield the tables of an answer with their titles.

    Args:
        every: of advice, all candidates, and the items that do not apply, too.
    """
    kind = _kind(content)
    return _advise_tables(content, every) if content["kind"] == "advise" else _TABLES[kind](content)


def _kind(content: Row) -> str:
    return f"recorded {content['kind']}" if "recorded" in content else str(content["kind"])


def _training(content: Row, *more: str) -> str:
    """Return what is trained on what, with more about it."""
    shape, samples = content["shape"], plural(content["batch"], "sample")
    layers, each = f"{plural(shape['layers'], 'layer')} of {shape['hidden']:,}", f" of {plural(shape['seq'], 'token')}"
    if shape["layers_of"]:
        layers, each = f"{plural(shape['layers'], 'layer')} ({shape['layers_of']})", ""
    parts = (f"{billions(content['params'])} parameters", layers, f"{samples}{each} in a step", content["precision"])
    return ", ".join((*parts, *filter(None, more))) + "."


def _attention(content: Row) -> str:
    return f"{content['attention']} attention" if content["attention"] else ""


def _tokens(content: Row, shown: Columns) -> Columns:
    """Return columns in which a stack of layers has samples for tokens."""
    of_stack = content["shape"]["layers_of"]
    return {"samples/s" if of_stack and name == "tokens/s" else name: write for name, write in shown.items()}


# dptrace predict --memory


def _memory_facts(content: Row) -> Iterator[str]:
    """Yield the state, the activations, and whether they fit."""
    each = content["bytes_per_parameter"]
    usable = content["gpu_memory_bytes"] * content["usable_share"]
    yield (
        f"{billions(content['params'])} parameters × {each['total']:g} bytes = "
        f"{byte_size(content['model_state_bytes'])} of state ({each['parameters']:g} weights, {each['gradients']:g} "
        f"gradients, {each['optimizer']:g} optimizer and master weights): the memory of "
        f"{content['gpus_for_state']:,} × {content['gpu']}."
    )
    every = f" in every {content['recompute_every']}th layer" if content["recompute_every"] > 1 else ""
    of_stack, attention = content["shape"]["layers_of"], _attention(content)
    size = content["micro_batch"]
    tokens = plural(size, "sample") if of_stack else f"{size} × {plural(content['shape']['seq'], 'token')}"
    yield (
        f"A micro-batch of {tokens} keeps {byte_size(content['activation_bytes'])} of activations in the layers "
        f"({attention}{', ' if attention else ''}recompute {content['recompute']}{every})."
    )
    fits = "fits" if content["fits"] else "does not fit"
    where = (
        f"{content['layout']} on {content['gpus']:,} GPUs"
        if content["gpus"] > 1
        else f"{content['layout'][0].upper()}{content['layout'][1:]}"
    )
    yield (
        f"{where} takes {byte_size(content['per_gpu_bytes'])}{' on each' if content['gpus'] > 1 else ''}: "
        f"it {fits} into {byte_size(usable)}, {share(content['usable_share'])} of the GPU's memory."
    )
    wall = content["ddp_wall_params"]
    yield (
        f"With DDP, a GPU holds the state of at most {billions(wall)} parameters, and the "
        f"{share(content['usable_share'])} of it that can be used that of {billions(wall * content['usable_share'])}."
    )


def _memory_tables(content: Row) -> Titled:
    total, parts = content["per_gpu_bytes"], content["per_gpu"]
    rows = [(name, byte_size(parts[key]), share(parts[key] / total)) for key, name in HELD.items() if parts[key]]
    rows.append(("together", byte_size(total), ""))
    if content["host_bytes"]:
        rows.append(("in the host's memory, for each GPU", byte_size(content["host_bytes"]), ""))
        rows.append(("in the memory of each host", byte_size(content["node_host_bytes"]), ""))
    title = f"{'on each GPU, ' if content['gpus'] > 1 else ''}{content['layout']}"
    yield "Memory of a GPU", TextTable((title, "bytes", "share"), tuple(rows))

    def kept(kind: str) -> Callable[[Row], str]:
        return lambda row: f"{byte_size(row['per_gpu_bytes'][kind])}{' *' if row['fits'][kind] else '  '}"

    shown = columns(f"on {plural(content['gpus'], 'GPU')}=layout, state=state_bytes")
    shown |= {"recompute none": kept("none"), **{kind: kept(kind) for kind in ("selective", "half", "full")}}
    some = any(any(row["fits"].values()) for row in content["strategies"])
    note = "* fits into a GPU." if some else "None fits into a GPU."
    yield "By strategy", table_of(content["strategies"], shown, note=note)


def _recorded_memory_tables(content: Row) -> Titled:
    """Yield what a recording's ranks held next to what the formulas give, and the activations of a pipeline."""

    def off(row: Row) -> str:
        measured, expected = row["measured_bytes"], row["expected_bytes"]
        if not expected or measured is None:
            return ""
        return f"{100 * (measured / expected - 1):+.1f} %".replace("-", MINUS)

    def held(key: str, none: str) -> Callable[[Row], str]:
        return cell(key, lambda size: byte_size(size) if size else "0 B", none)

    shown = columns("mean of the ranks=what") | {
        "expected": held("expected_bytes", "not computed"),
        "measured": held("measured_bytes", "not recorded"),
        "off": off,
    }
    title = f"{billions(content['params'])} parameters, {content['strategy']} on {plural(content['gpus'], 'rank')}"
    yield title, table_of(content["recorded"]["compared"], shown)
    if "in_flight" in content["recorded"]:
        shown = columns("rank, expected=expected_micro_batches, held=micro_batches, bytes") | {
            "expected": cell("expected_micro_batches", str, "no formula"),
            "bytes": cell("bytes", byte_size, "not measured"),
        }
        note = "A micro-batch counts once for each of the rank's stages; bytes are what autograd kept."
        yield "Micro-batches in flight", table_of(content["recorded"]["in_flight"], shown, note=note)


# dptrace predict


_TARGETS = {"mfu": "MFU", "bubble": "bubble", "overlap": "overlap"}
_STEP = {
    "compute_s": "computation",
    "bubble_s": "bubble of the pipeline",
    "optimizer_s": "optimizer",
    "exposed_s": "exposed communication",
    "step_s": "together",
    "communication_s": "all communication",
    "serial_step_s": "step without any overlap",
    "ideal_step_s": "step if the longer of the two hid the other",
}
_COMMUNICATION = columns(
    "what, collective=kind, runs under=hides_under, ranks, calls, bytes each=bytes, sent in all=sent_bytes, "
    "time=total_s"
) | {"runs under": lambda row: row["hides_under"] or "nothing"}
_CANDIDATES = columns(
    "plan=layout, fits, on a GPU=per_gpu_bytes, micro-batch=micro_batch, recompute, step=step_s, "
    "tokens/s=tokens_per_s, MFU=mfu, bubble, exposed=exposed_s"
)
_LEAVING = ("exposed", "bubble", "tokens/s", "efficiency", "recompute", "micro-batch", "MFU")
"""Columns of plans that a narrow terminal goes without, the least important first."""
_SCALING = columns(
    "GPUs=gpus, fits, step=step_s, tokens/s=tokens_per_s, comm.=communication_share, efficiency=weak_efficiency, "
    "fixed batch: step=strong_step_s, its efficiency=strong_efficiency, Amdahl=amdahl_ceiling, "
    "Gustafson=gustafson_efficiency"
)
_SCALING_NOTE = (
    "Fixed batch: each GPU gets fewer samples. Amdahl's ceiling and Gustafson's efficiency: of the plan above."
)
_ABOVE = " Above 100 %: more GPUs share the optimizer's state, or gather what fewer hold, so each does less."
_ROOFLINE = columns(
    "link, a GPU sends=sent_bytes, FLOP/byte=ccr, ridge, regime, critical batch of a GPU=critical_batch, "
    "batch for 90 %=critical_batch, n*=crossover_bytes"
) | {"batch for 90 %": lambda row: f"{0.9 * row['critical_batch']:,.3g}"}
_ROOFLINE_NOTE = (
    "By the GPU's peak: one that reaches half of it hides twice as much. A batch is a micro-batch where parameters are "
    "gathered for each."
)
_ALGORITHMS = columns("algorithm, steps, busiest rank sends=sent_bytes, time=seconds")


def _predict_facts(content: Row) -> Iterator[str]:
    yield _training(content, _attention(content), f"{content['gpus']:,} × {content['gpu']}")
    rate, start = content["samples_per_s"], ""
    if not content["fits"]:
        yield _unfit(content, content)
        start = "If there were room, "
    tokens = "" if content["shape"]["layers_of"] else f"{content['tokens_per_s']:,.0f} tokens/s, "
    yield (
        f"{start}{content['layout']}: {seconds(content['step_s'])} a step, {rate:{',.0f' if rate >= 100 else ',.3g'}} "
        f"samples/s, {tokens}MFU {share(content['mfu'])}; "
        f"{byte_size(content['per_gpu_bytes'])} of {byte_size(content['usable_bytes'])}{_each(content)} (micro-batch "
        f"{content['micro_batch']}, recompute {content['recompute']})."
    )
    if content["fits"]:
        yield from _expected(content)
    if "training_days" in content:
        yield f"Training takes {_days(content['training_days'])}."
    yield " · ".join(
        f"{_TARGETS[target['name']]} {_reached(target)} "
        f"(goal {target['goal']}{'' if target['met'] in (True, None) else ', missed'})"
        for target in content["targets"]
    )


def _unfit(content: Row, one: Row) -> str:
    """Return that no plan fits, what the smallest of them takes, and with which options one does."""
    usable, total, parts = content["usable_bytes"], one["per_gpu_bytes"], one["per_gpu"]
    state = sum(size for key, size in parts.items() if key not in ("activation_bytes", "recompute_bytes"))
    large, what = (state, "parameters, gradients and optimizer") if state > usable else (total - state, "activations")
    none = f"Nothing fits, of {content['tried']:,} ways:" if content["tried"] > 1 else "It does not fit:"
    helps = [f"{row['option']} ({_remedy(row)})" for row in content["remedies"]]
    needed = total / usable * content["gpu_memory_bytes"]
    helps += [f"GPUs with {byte_size(needed)} of memory"] if needed <= LARGEST_BYTES else []
    more = "" if needed <= LARGEST_BYTES else f" No known GPU has the {byte_size(needed)} of memory that it needs."
    return (
        f"{none} {one.get('label', one['layout'])} takes {byte_size(total)}{_each(content)}, "
        f"{byte_size(total - usable)} more than can be used, {byte_size(large)} of it for {what}. What fits: "
        f"{', or '.join(helps) or 'nothing that was tried'}.{more}"
    )


def _days(days: float) -> str:
    """Write how long a training takes: below a day in seconds.

    >>> _days(2423.4), _days(12.34), _days(0.0202)
    ('2,423 days', '12.3 days', '1,745 s')
    """
    return seconds(86_400 * days) if days < 1 else f"{number(days)} days"


def _reached(target: Row) -> str:
    """Write the value of a goal, of one that is just missed with as many digits as show it."""
    value, goal = target["value"], target["goal"].split(maxsplit=1)[1]
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if share(value) == goal and not target["met"] else share(value)


def _each(content: Row) -> str:
    return " on each GPU" if content["gpus"] > 1 else ""


def _remedy(row: Row) -> str:
    size = row["node_host_bytes"]
    few = f", where hosts rarely have more than {USUAL_HOST_BYTES / 1e12:g} TB" if size > USUAL_HOST_BYTES else ""
    host = f", {byte_size(size)} in each host's memory{few}" if size else ""
    return f"{row['label']}: {byte_size(row['per_gpu_bytes'])}{host}, {seconds(row['step_s'])} a step"


def _expected(content: Row) -> Iterator[str]:
    """Yield between which lengths the step can be expected, or why that is not known."""
    found = content["expected"]
    yield (
        f"How far this is off is unknown: {found['unknown']}."
        if found["unknown"]
        else f"Expect {seconds(found['low_s'])} to {seconds(found['high_s'])}, by {found['runs']} published runs of "
        f"its kind ({found['kind']}): {found['inside']} were within the range of the other sources, in the median "
        f"{share(found['left_out_error'])} off."
    )


def _predict_tables(content: Row) -> Titled:
    parts = ((name, content[key]) for key, name in _STEP.items() if content[key])
    rows = tuple((name, seconds(value), share(value / content["step_s"])) for name, value in parts)
    yield "The step", TextTable(("", "time", "of the step"), rows)
    if content["communication"]:
        yield (
            "Communication of a GPU in a step",
            table_of(content["communication"], _COMMUNICATION, 3, leaving=("runs under", "ranks", "bytes each")),
        )
    if len(content["candidates"]) > 1:
        yield (
            "Plans, fastest that fits first",
            table_of(content["candidates"], _tokens(content, _CANDIDATES), 2, leaving=_LEAVING),
        )
    title, rows = f"{content['layout']} on other numbers of GPUs", content["scaling"]
    best = max((row[f"{of}_efficiency"] or 0.0 for row in rows for of in ("weak", "strong")), default=0.0)
    note = _SCALING_NOTE + (_ABOVE if best > 1.005 else "")
    yield title, table_of(content["scaling"], _tokens(content, _SCALING), 0, note)
    if content["roofline"]:
        yield "Communication roofline", table_of(content["roofline"], _ROOFLINE, note=_ROOFLINE_NOTE)
    if found := content["all_reduce"]:
        note = (
            f"{byte_size(found['size_bytes'])} among {found['ranks']:,} GPUs. Adding the numbers (gamma) takes "
            f"{seconds(found['adding_s'])} of it on each GPU."
        )
        yield "All-reduce of all gradients by algorithm", table_of(found["algorithms"], _ALGORITHMS, note=note)


def _recorded_predict_facts(content: Row) -> Iterator[str]:
    """Yield the parts of a recorded step, and where it lies on the communication roofline, if that is known."""
    yield (
        f"Recorded on {content['gpus']} ranks: a step of {seconds(content['step_s'])}, computation "
        f"{seconds(content['compute_s'])}, communication without known waiting "
        f"{seconds(content['communication_s'])}, of which {seconds(content['exposed_s'])} is exposed, "
        f"other {seconds(content['rest_s'])}. Without overlap it would take {seconds(content['serial_step_s'])}, with "
        f"all that is possible {seconds(content['ideal_step_s'])}."
    )
    if point := content["roofline"]:
        yield (
            f"Roofline: {point['ccr']:,.0f} FLOPs for each byte sent, ridge {point['ridge']:,.0f} over the recorded "
            f"{point['bytes_per_s'] / 1e9:,.3g} GB/s: {point['regime']}; the ridge is at "
            f"{point['critical_batch']:,.3g} samples of a rank. It computes "
            f"{point['achieved_flops_per_s'] / 1e12:,.3g} of {point['peak_flops'] / 1e12:,.3g} TFLOP/s."
        )


_RECORDED_ROOFLINE = columns(
    "link, a rank sends=sent_bytes, GB/s=bytes_per_s, FLOP/byte=ccr, ridge, regime, "
    "critical batch of a rank=critical_batch"
) | {"GB/s": lambda row: f"{row['bytes_per_s'] / 1e9:,.3g}"}
_RECORDED_SCALING = columns(
    "ranks=gpus, communication=communication_s, fixed batch of a rank: step=gpus, efficiency=weak_efficiency, "
    "fixed batch of all: step=gpus, its efficiency=strong_efficiency, Amdahl=amdahl_ceiling, "
    "Gustafson=gustafson_efficiency"
) | {
    "fixed batch of a rank: step": lambda row: _between(row, "weak"),
    "fixed batch of all: step": lambda row: _between(row, "strong"),
}


def _between(row: Row, name: str) -> str:
    return f"{seconds(row[f'{name}_overlapped_s'])} to {seconds(row[f'{name}_serial_s'])}"


def _recorded_predict_tables(content: Row) -> Titled:
    point = content["roofline"]
    if point and len(point["levels"]) > 1:
        note = "Links differ by the groups that use them."
        yield "Communication roofline by link", table_of(point["levels"], _RECORDED_ROOFLINE, 1, note)
    note = "From full overlap to none; efficiency is that with full overlap."
    yield "On other numbers of ranks", table_of(content["scaling"], _RECORDED_SCALING, 0, note)


# dptrace predict --bytes


def _message_facts(content: Row) -> Iterator[str]:
    """Yield the message, and each link with its n*."""
    gamma = content["gamma_s_per_byte"]
    added = f", gamma {1e12 * gamma:,.3g} ps/byte" if gamma else ""
    yield f"{byte_size(content['size_bytes'])} among {content['ranks']:,} ranks{added}."
    for one in content["links"]:
        yield (
            f"{one['name']}: alpha {seconds(one['alpha_s'])}, {one['bytes_per_s'] / 1e9:,.4g} GB/s, n* = "
            f"alpha·bandwidth = {byte_size(one['crossover_bytes'])}: one such message is {one['regime']}; chunks of "
            f"{byte_size(9 * one['crossover_bytes'])} reach 90 % of the bandwidth."
        )


_TERMS = "alpha=latency_s, beta=transfer_s, gamma=adding_s, time=seconds, regime"
_COLLECTIVES = columns(f"collective=kind, algorithm, messages=hops, {_TERMS}, n*=crossover_bytes")
_SENT = {"busiest sends": "sent_bytes", "sends + receives": "busiest_bytes", "all send": "total_bytes"}
_ALL_REDUCES = {
    **columns("algorithm, messages=steps"),
    **{heading: cell(key, megabytes) for heading, key in _SENT.items()},
    **columns(_TERMS),
}


def _message_tables(content: Row) -> Titled:
    note = "n*: from which size on the bytes of the collective take longer than its messages."
    yield f"Collectives over {content['slowest_link']}", table_of(content["collectives"], _COLLECTIVES, 2, note)
    crossing = [f"The ring overtakes {one['below']} at {byte_size(one['bytes'])}." for one in content["crossovers"]]
    crossing += ["servers: as many as ranks, on CPUs beside them."]
    yield "All-reduce by algorithm", table_of(content["all_reduce"], _ALL_REDUCES, 1, " ".join(crossing))


# dptrace advise


MAX_FITTING, MAX_UNFIT = 8, 3
_STATUS = {
    "apply": "What to change, by gain",
    "keep": "What the prediction assumes, with the cost of leaving it out",
    "skip": "What does not apply, or gains less than 1 %",
}
_RECORDED_STATUS = {
    **_STATUS,
    "apply": "Other changes, which are no findings, each by itself",
    "keep": "What the run does already, with the cost of leaving it out",
}
_NOTHING = "No item of the checklists gains 1 % or more."


def _advise_facts(content: Row) -> Iterator[str]:
    """Yield what the advice is about, which plan to take, what is as good, and what the documents' tree says."""
    more = (_attention(content), f"{content['gpus']:,} × {content['gpu']}")
    yield _training(content, *more, " and ".join(dict.fromkeys(content["links"])))
    best = content["chosen"]
    plan = (
        f"micro-batches of {best['micro_batch']}, recompute {best['recompute']}, "
        f"{byte_size(best['per_gpu_bytes'])} of {byte_size(content['usable_bytes'])}{_each(content)}"
    )
    if best["fits"]:
        rate = f"{best['tokens_per_s']:,.0f} {'samples' if content['shape']['layers_of'] else 'tokens'}/s"
        yield (
            f"Fastest that fits, of {plural(content['tried'], 'way')}: {best['label']}, {duration(best['step_ns'])} a "
            f"step, {rate}, MFU {share(best['mfu'])}; {plan}."
        )
    else:
        yield _unfit(content, best)
    if content["tied"]:
        simplest = content["simplest"]
        simpler = "" if simplest == best["label"] else f" The simplest of these is {simplest}."
        tied = plural(len(content["tied"]), "more kind of plan is", "more kinds of plan are")
        yield f"{tied} within {share(content['tied_within'])}, which predictions can't tell apart (≈ below).{simpler}"
    if best["fits"]:
        yield from _expected(content)
    yield _tree(content)
    if own := content["plan"]:
        fits = "fits" if own["fits"] else f"does not fit: {byte_size(own['over_bytes'])} too much"
        yield (
            f"Your plan, {own['label']}: {duration(own['step_ns'])} a step, MFU {share(own['mfu'])}, "
            f"{byte_size(own['per_gpu_bytes'])}{_each(content)}; it {fits}. The checklists are about it."
        )


def _tree(content: Row) -> str:
    tree = content["tree"]
    ends = f"The guide's decision tree ends at {tree['strategy']}"
    if tree["label"] is None:
        return f"{ends}: no such plan divides the GPUs, the heads and the batch."
    if not tree["fits"]:
        return f"{ends}: {tree['label']} does not fit." if content["gpus"] > 1 else f"{ends}."
    return f"{ends}: {tree['label']} is {share(tree['slower'])} slower." if tree["slower"] else f"{ends}, too."


def _recorded_advise_facts(content: Row) -> Iterator[str]:
    mode = f" of {content['mode']}" if content["mode"] else ""
    parts = content["parts"]
    yield from (note for note in content["assumptions"] if any(words in note for words in SEVERAL_RUNS))
    wait_ns = parts["exposed_wait_ns"]
    waiting = "an unknown part" if wait_ns is None else duration(wait_ns)
    yield (
        f"A step{mode} on {plural(content['ranks'], 'rank')} takes {duration(content['step_ns'])}: compute "
        f"{duration(parts['compute_ns'])}, exposed communication {duration(parts['exposed_comm_ns'])}, of which "
        f"{waiting} is waiting for later ranks, idle {duration(parts['idle_ns'])}."
    )


_ADVISED = columns(
    "plan=label, loses by=loses, recompute, on a GPU=per_gpu_bytes, micro-batch=micro_batch, step=step_ns, "
    "tokens/s=tokens_per_s, MFU=mfu, efficiency"
) | {"loses by": lambda row: row["loses"] or ("the best" if row["fits"] else "the smallest")}


def _advise_tables(content: Row, every: bool) -> Titled:
    shown = columns("question, numbers, answer, source" if every else "question, numbers, answer")
    if every:
        shown["numbers"] = lambda row: f"{row['numbers']} ({row['note']})" if row["note"] else row["numbers"]
    yield "The decision", table_of(content["path"], shown, len(shown))
    if found := content.get("candidates"):
        fitting, unfit = ([one for one in found if one["fits"] is fits] for fits in (True, False))
        named = [one for one in fitting[MAX_FITTING:] if one["label"] == content["simplest"]]
        some = found if every else [*fitting[:MAX_FITTING], *named, *unfit[:MAX_UNFIT]]
        more = len(found) - len(some)
        note = f"{more} more kinds of plan: --all." if more else ""
        advised = _tokens(content, _ADVISED)
        marked = {"plan": lambda row: f"≈ {row['label']}" if row["label"] in content["tied"] else row["label"]}
        yield "Ways to train, fastest that fits first", table_of(some, {**advised, **marked}, 3, note, _LEAVING)
    for status, title in (_RECORDED_STATUS if "recorded" in content else _STATUS).items():
        rows = [one for one in content["checks"] if one["status"] == status]
        if rows and (every or status != "skip"):
            shown = _check_columns(rows, status, every)
            yield title, table_of(rows, shown, len(shown))
        elif status == "apply":
            yield title, TextTable(("",), (), note=_NOTHING)


def _check_columns(rows: Sequence[Row], status: str, every: bool) -> dict[str, Callable[[Row], str]]:
    """Return the columns of items of a status: what time and memory an action gains, or what leaving it out costs.

    Where no item is about memory, as for most recordings, it has no column.
    """
    time, memory = ("time without", "memory without") if status == "keep" else ("time saved", "memory saved")
    shown = columns("item=name, what to do=what" if every else "what to do=what") | {time: _gained_time}
    shown |= {memory: _gained_memory} if any(row["gain_bytes"] for row in rows) else {}
    shown |= columns("why=reason, how=do" if every or status == "apply" else "why=reason")
    return shown | ({"computed": lambda row: row["computed"] or "–", **columns("source")} if every else {})


def _gained_time(row: Row) -> str:
    """Write a gain in time; a step that gets longer has a minus."""
    ns, part = row["gain_ns"], row["gain_share"]
    if not ns:
        return "–"
    sign = MINUS if ns < 0 else ""
    return f"{sign}{duration(abs(ns))}" + ("" if part is None else f" ({sign}{share(abs(part))})")


def _gained_memory(row: Row) -> str:
    size = row["gain_bytes"]
    return f"{MINUS if size < 0 else ''}{byte_size(abs(size))}" if size else "–"


_FACTS: dict[str, Callable[[Row], Iterator[str]]] = {
    "memory": _memory_facts,
    "recorded memory": lambda content: iter(()),
    "predict": _predict_facts,
    "recorded predict": _recorded_predict_facts,
    "message_costs": _message_facts,
    "advise": _advise_facts,
    "recorded advise": _recorded_advise_facts,
}
_TABLES: dict[str, Callable[[Row], Titled]] = {
    "memory": _memory_tables,
    "recorded memory": _recorded_memory_tables,
    "predict": _predict_tables,
    "recorded predict": _recorded_predict_tables,
    "message_costs": _message_tables,
}
