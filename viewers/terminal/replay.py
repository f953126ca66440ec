"""What-ifs, their sweeps and critical paths on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.kernels.names import kernel_names
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.units import duration, milliseconds, plural, sanitize, share, signed_milliseconds
from dptrace.replay.critical_path import CriticalPath
from dptrace.replay.paths import PathPiece
from dptrace.replay.whatif import Point, RankAnswer, Sweep, WhatIf
from dptrace.run.columns import HEADINGS
from dptrace.viewers.base.table import PATH_KINDS, TextTable, plain, print_text_table, step_words

__all__ = ["print_critical_path", "print_sweep", "print_whatif", "sentence", "sweep_sentence", "sweep_table"]


# The answer of a what-if in the terminal: the step before and after, by part and by rank, and reasons to doubt it.


_MOST_RANKS = 16
_MOST_PIECES = 3
_LONGEST_NAME = 40


def print_whatif(answer: WhatIf, console: Console, every: bool = False) -> None:
    """Print an answer.

    Args:
        every: print all ranks, however many.
    """
    parts: list[RenderableType] = [sentence(answer), _replayed(answer), _path(answer), ""]
    for doubt in answer.doubts:
        parts.append(Text("! ", style="bold red" if doubt.refuses else "yellow").append_text(plain(doubt.text)))
    parts += [""] if answer.doubts else []
    parts += [_parts_table(answer), ""]
    if len(answer.ranks) > 1:
        parts += [_rank_table(answer, every), ""]
    parts += [Text("! ", style="yellow").append_text(plain(note)) for note in answer.notes]
    console.print(*parts, sep="\n")


def sentence(answer: WhatIf) -> Text:
    """Describe what a step would take."""
    if not answer.changes:
        return Text(f"A step takes {milliseconds(answer.measured_step_ns)} ms (median of the mean rank).", style="bold")
    text = plain(f"With {', '.join(answer.changes)}: ")
    text.stylize("bold")
    if not answer.can_tell:
        text.append("cannot tell. ", style="bold red")
    gain = answer.measured_step_ns - answer.predicted_step_ns
    changed = f"{duration(abs(gain))} ({share(abs(gain) / max(1, answer.measured_step_ns))}) "
    changed += "shorter" if gain > 0 else "longer"
    text.append(
        f"{milliseconds(answer.predicted_step_ns)} ms a step instead of {milliseconds(answer.measured_step_ns)} ms, "
        f"{changed if gain else 'as long as it was'}; "
        f"range {milliseconds(answer.low_ns)} to {milliseconds(answer.high_ns)} ms."
    )
    if answer.micro_steps > 1:
        text.append(
            f" It has the samples of {answer.micro_steps:,} recorded steps: "
            f"{milliseconds(answer.predicted_ns_per_micro_step)} ms for those of one."
        )
    elif answer.run_gain_ns:
        sooner = "earlier" if answer.run_gain_ns > 0 else "later"
        per_step = duration(abs(answer.step_gain_ns))
        text.append(f" The recording would end {duration(abs(answer.run_gain_ns))} {sooner}, {per_step} a step.")
    return text


def _path(answer: WhatIf) -> Text:
    """Describe the critical path of the predicted run, and its longest pieces."""
    total = max(1, sum(answer.path_ns.values()))
    kinds = sorted(answer.path_ns.items(), key=lambda pair: -pair[1])
    text = ", ".join(f"{kind.replace('_', ' ')} {share(ns / total)}" for kind, ns in kinds if ns >= 0.005 * total)
    pieces = [f"{_short(piece)}, {duration(piece.length_ns)}" for piece in answer.longest[:_MOST_PIECES]]
    return plain(f"Its critical path: {text}. The longest pieces: {'; '.join(pieces)}.")


def _short(piece: PathPiece) -> str:
    # What a host did, and what came after it, is one name.
    most = 2 * _LONGEST_NAME if piece.kind == "host" else _LONGEST_NAME
    name = piece.name if len(piece.name) <= most else f"{piece.name[: most - 1]}…"
    return f"{name}{'' if piece.rank is None else f' on rank {piece.rank}'}"


def _replayed(answer: WhatIf) -> Text:
    """Describe how well the unchanged run is replayed, and what bounds a step in the long run."""
    measured = max(1, answer.measured_step_ns)
    error = 100 * (answer.replayed_step_ns / measured - 1)
    return Text(
        f"The unchanged run replays at {milliseconds(answer.replayed_step_ns)} ms a step, {abs(error):.2f} % off, over "
        f"{plural(len(answer.steps), 'step')}. In the long run, the host alone needs "
        f"{milliseconds(answer.steady.host_ns)} ms, the devices alone {milliseconds(answer.steady.device_ns)} ms."
    )


def _parts_table(answer: WhatIf) -> Table:
    table = Table(title="By part, ms of a step (medians; they need not add up)", title_justify="left", box=None)
    table.add_column("part")
    for heading in ("measured", "predicted", "change"):
        table.add_column(heading, justify="right")
    for name in FIGURES:
        before, after = answer.measured[name], answer.predicted[name]
        if before or after:
            cells = milliseconds(before), milliseconds(after), signed_milliseconds(after - before)
            table.add_row(HEADINGS[name].words, *cells, style="bold" if name == "wall_ns" else "")
    return table


def _rank_table(answer: WhatIf, every: bool) -> Table:
    """Return a row for each rank; of many, those with the longest steps."""
    ranks = sorted(answer.ranks, key=lambda rank: -rank.measured_ns["wall_ns"])
    shown = ranks if every else sorted(ranks[:_MOST_RANKS], key=lambda rank: (rank.rank, rank.device))
    title = "By rank, ms of a step" + (f" (the slowest {_MOST_RANKS})" if len(shown) < len(ranks) else "")
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("rank", "measured", "replayed", "predicted", "change"):
        table.add_column(heading, justify="right")
    for rank in shown:
        table.add_row(*_rank_row(rank))
    return table


def _rank_row(rank: RankAnswer) -> Iterator[str]:
    before, replayed, after = (f["wall_ns"] for f in (rank.measured_ns, rank.replayed_ns, rank.predicted_ns))
    yield str(rank.rank)
    yield from map(milliseconds, (before, replayed, after))
    yield signed_milliseconds(after - before)


# The answers of a what-if for several values: a row for each, the best one marked.


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table, what is best, and the reasons to doubt the answers."""
    console.print(Text(sweep_sentence(sweep), style="bold"))
    print_text_table(sweep_table(sweep), f"Predicted step by {sweep.option}", console)
    doubts = {doubt.text: doubt for point in sweep.points for doubt in point.answer.doubts}
    for doubt in doubts.values():
        console.print(Text("! ", style="bold red" if doubt.refuses else "yellow").append_text(plain(doubt.text)))


def sweep_sentence(sweep: Sweep) -> str:
    """Describe which value is best, and by how much."""
    first = sweep.points[0].answer
    measured = f"The recorded step takes {milliseconds(first.measured_step_ns)} ms."
    best = sweep.best
    if best is None:
        return f"{measured} Each rank keeps its batch, so a step with more ranks has more samples."
    answer = best.answer
    if sweep.alike:
        return (
            f"{measured} It is predicted to take {milliseconds(answer.predicted_step_ns)} ms with each {sweep.option}."
        )
    return (
        f"{measured} The best {sweep.option} is {best.value:g}: {milliseconds(answer.predicted_step_ns)} ms a step "
        f"(range {milliseconds(answer.low_ns)} to {milliseconds(answer.high_ns)} ms)."
    )


def sweep_table(sweep: Sweep) -> TextTable:
    """Return a row for each value."""
    columns = (sweep.option, "step, ms", "range, ms", "exposed, ms", "change", "can tell")
    return TextTable(columns, tuple(_row(sweep, point) for point in sweep.points), 1, "Medians over steps.")


def _row(sweep: Sweep, point: Point) -> tuple[str, ...]:
    answer = point.answer
    change = answer.predicted_step_ns / max(1, answer.measured_step_ns) - 1
    clear = sweep.clearly_best
    best = " (best)" if clear is not None and point.value == clear.value else ""
    return (
        f"{point.value:g}{best}",
        milliseconds(answer.predicted_step_ns),
        f"{milliseconds(answer.low_ns)}–{milliseconds(answer.high_ns)}",
        milliseconds(answer.predicted["exposed_comm_ns"]),
        f"{'−' if change < 0 else '+'}{share(abs(change))}",
        "yes" if answer.can_tell else "no",
    )


# A critical path in the terminal: where the time of a step's longest chain goes, and what shortening it would gain.


_LONGEST = 72
_MOST_PATH_PIECES = 40
_MOST_MODULES = 12


def print_critical_path(path: CriticalPath, console: Console, every: bool = False) -> None:
    """Print a critical path.

    Args:
        every: print every module, and every piece of the chain.
    """
    shorts = kernel_names(path.timelines)
    parts: list[RenderableType] = [_sentence(path)]
    for table in (_kind_table(path), _path_rank_table(path), _item_table(path, shorts)):
        parts += ["", table]
    parts += ["", _module_table(path, every)] if path.by_module else []
    parts += ["", _piece_table(path, shorts, every), ""]
    parts += [Text("! ", style="yellow").append_text(plain(note)) for note in path.notes]
    console.print(*parts, sep="\n")


def _sentence(path: CriticalPath) -> Text:
    """Describe how long the step is, and what most of its chain is."""
    kind = max(path.by_kind, key=lambda name: path.by_kind[name])
    part = share(path.by_kind[kind] / max(1, path.length_ns))
    step = sanitize(step_words(path.step))
    taken = f"{step[0].upper()}{step[1:]} takes {duration(path.length_ns)} across ranks"
    return Text(f"{taken}; {part} of its critical path is {PATH_KINDS[kind]}.", style="bold")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("what", "kind", "name", "module") else "right")
    return table


def _kind_table(path: CriticalPath) -> Table:
    table = _table("By kind", "what", "ms", "share")
    for kind, ns in path.by_kind.items():
        if ns:
            table.add_row(PATH_KINDS[kind], milliseconds(ns), share(ns / max(1, path.length_ns)))
    return table


def _path_rank_table(path: CriticalPath) -> Table:
    table = _table("By rank", "rank", "ms", "share")
    for rank, ns in path.by_rank.items():
        table.add_row("all" if rank is None else str(rank), milliseconds(ns), share(ns / max(1, path.length_ns)))
    return table


def _item_table(path: CriticalPath, shorts: Mapping[str, str]) -> Table:
    table = _table("What takes the most time on it, and what 10 % less would gain", "kind", "name", "ms", "gain, ms")
    for item in path.items:
        kind, name = item.kind.replace("_", " "), _short_name(item.name, shorts)
        table.add_row(kind, name, milliseconds(item.path_ns), milliseconds(item.gain_ns))
    return table


def _module_table(path: CriticalPath, every: bool) -> Table:
    """Return the modules with most time; the others in one row, unless every one is requested."""
    modules = list(path.by_module)
    shown = modules if every else modules[:_MOST_MODULES]
    table = _table("By module", "module", "ms", "share", "compute", "transfer", "host", "gain, ms")
    for one in shown:
        own = [milliseconds(one.by_kind[kind]) for kind in ("compute", "transfer", "host")]
        gain = "" if one.gain_ns is None else milliseconds(one.gain_ns)
        table.add_row(
            _ending(one.module), milliseconds(one.path_ns), share(one.path_ns / max(1, path.length_ns)), *own, gain
        )
    if rest := modules[len(shown) :]:
        ns = sum(one.path_ns for one in rest)
        table.add_row(f"{len(rest):,} others", milliseconds(ns), share(ns / max(1, path.length_ns)))
    return table


def _piece_table(path: CriticalPath, shorts: Mapping[str, str], every: bool) -> Table:
    """Return the pieces of the chain in order of time; the longest of them, unless every one is requested."""
    pieces = list(path.pieces())
    longest = sorted(pieces, key=lambda piece: piece["start_ns"] - piece["end_ns"])
    shown = pieces if every else sorted(longest[:_MOST_PATH_PIECES], key=lambda piece: int(piece["start_ns"]))
    title = (
        "The chain"
        if len(shown) == len(pieces)
        else f"The chain: the {_MOST_PATH_PIECES} longest of {len(pieces):,} pieces"
    )
    table = _table(title, "at, ms", "ms", "rank", "kind", "name")
    for piece in shown:
        at, length = piece["start_ns"] - path.start_ns, piece["end_ns"] - piece["start_ns"]
        rank = "all" if piece["rank"] is None else str(piece["rank"])
        kind = piece["kind"].replace("_", " ")
        table.add_row(milliseconds(at), milliseconds(length), rank, kind, _short_name(piece["name"], shorts))
    return table


def _ending(path: str) -> Text:
    """Shorten the path of a module, whose end names it."""
    return plain(path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}")


def _short_name(full: str, shorts: Mapping[str, str]) -> Text:
    """Return a kernel's short name, or the name of what is no kernel."""
    name = shorts.get(full, full)
    return plain(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
