"""What-ifs, their sweeps and critical paths on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.findings.finding import Finding, top_findings
from dptrace.analysis.kernels.names import kernel_names
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.units import duration, milliseconds, plural, sanitize, share, signed_milliseconds
from dptrace.replay.critical_path import CriticalPath
from dptrace.replay.paths import PathPiece
from dptrace.replay.whatif import Doubt, Point, Sweep, WhatIf
from dptrace.run.columns import HEADINGS
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.table import (
    PATH_KINDS,
    TextTable,
    column_table,
    figure_words,
    gains_known,
    order_sentence,
    plain,
    print_text_table,
    step_words,
)
from dptrace.viewers.terminal.screen import said
from dptrace.viewers.terminal.split import findings_heading, minor_sentence

# The answer of a what-if in the terminal: the step before and after, by part and by rank, and reasons to doubt it.


_Cells = Mapping[str, Callable[[Any], str | Text]]
_MOST_RANKS = 16
"""The slowest, unless all are asked for."""
_MOST_PIECES = 3
"""Longest pieces of a path that are named."""
_LONGEST_NAME = 40
"""Characters of a name."""
_LONGEST_CHANGE = 80
"""Characters of what a finding says of a change, unless its first clause is longer."""


def print_whatif(
    answer: WhatIf,
    console: Console,
    all_rows: bool = False,
    findings: Sequence[Finding] = (),
    several_runs: Sequence[str] = (),
) -> None:
    """Print an answer.

    Args:
        all_rows: print all ranks, however many.
        findings: of a run without any change: what can be changed, in the order of the list.
        several_runs: notes that say that the files are not those of one run.
    """
    parts: list[RenderableType] = [Text(line, style="bold red") for line in several_runs]
    parts += [sentence(answer), _replayed(answer), _path(answer), ""]
    parts += [_changes(findings), ""] if findings else []
    parts += _doubts(answer.doubts)
    parts += [""] if answer.doubts else []
    parts += [_parts_table(answer), ""]
    if len(answer.ranks) > 1:
        parts += [_rank_table(answer, all_rows), ""]
    parts += [Text("! ", style="yellow").append_text(plain(note)) for note in answer.notes]
    console.print(*parts, sep="\n")


def _changes(findings: Sequence[Finding]) -> RenderableType:
    """Return the findings as changes that a replay can make, with the figures of their list."""
    parts: list[RenderableType] = [Text(findings_heading(findings, " as changes"), style="bold")]
    parts += [plain(order)] if (order := order_sentence(findings)) else []
    table = Table.grid(padding=(0, 1))
    for _ in ("gain", "share"):
        table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    known = gains_known(findings)
    for finding in top_findings(findings):
        figure, part = figure_words(finding, known)
        change = finding.gain.change if finding.has_gain else f"{duration(finding.counted_ns)} counted"
        text = said(finding.text, _LONGEST_CHANGE, 1)
        table.add_row(figure, part and f"({part})", plain(f"{change[:1].upper()}{change[1:]}: {text}"))
    parts += [table, *filter(None, [plain(minor_sentence(findings))])]
    return Group(*parts)


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
        less = "less" if answer.run_gain_ns > 0 else "more"
        per_step = duration(abs(answer.step_gain_ns))
        text.append(f" All steps together would take {duration(abs(answer.run_gain_ns))} {less}, {per_step} a step.")
    return text


def _path(answer: WhatIf) -> Text:
    """Describe the critical path of the predicted run, and its longest pieces."""
    total = max(1, sum(answer.path_ns.values()))
    kinds = sorted(answer.path_ns.items(), key=lambda pair: -pair[1])
    text = ", ".join(f"{kind.replace('_', ' ')} {share(ns / total)}" for kind, ns in kinds if ns >= 0.005 * total)
    pieces = [f"{_short(piece)}, {duration(piece.length_ns)}" for piece in answer.longest[:_MOST_PIECES]]
    run = "as predicted" if answer.changes else "as replayed"
    return plain(f"The critical path {run}: {text}. The longest pieces: {'; '.join(pieces)}.")


def _short(piece: PathPiece) -> str:
    # What a host or a stream did, and what came after it, is one name.
    most = _LONGEST_NAME if piece.kind in ("compute", "memory", "transfer") else 2 * _LONGEST_NAME
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


def _parts_table(answer: WhatIf) -> Fitting:
    before, after = answer.measured, answer.predicted
    columns: _Cells = {
        "part": lambda name: HEADINGS[name].heading,
        "measured": lambda name: milliseconds(before[name]),
        "predicted": lambda name: milliseconds(after[name]),
        "change": lambda name: signed_milliseconds(after[name] - before[name]),
    }
    shown = [name for name in FIGURES if before[name] or after[name]]
    title, bold = "By part, ms (medians; need not add up)", {"wall_ns": "bold"}
    return column_table(title, columns, shown, ("part",), lambda name: bold.get(name, ""))


def _rank_table(answer: WhatIf, all_rows: bool) -> Fitting:
    """Return a row for each rank; of many, those with the longest steps."""
    ranks = sorted(answer.ranks, key=lambda rank: -rank.measured_ns["wall_ns"])
    shown = ranks if all_rows else sorted(ranks[:_MOST_RANKS], key=lambda rank: (rank.rank, rank.device))
    title = "By rank, ms of a step" + (f" (the slowest {_MOST_RANKS})" if len(shown) < len(ranks) else "")
    columns: _Cells = {
        "rank": lambda one: str(one.rank),
        "measured": lambda one: milliseconds(one.measured_ns["wall_ns"]),
        "replayed": lambda one: milliseconds(one.replayed_ns["wall_ns"]),
        "predicted": lambda one: milliseconds(one.predicted_ns["wall_ns"]),
        "change": lambda one: signed_milliseconds(one.predicted_ns["wall_ns"] - one.measured_ns["wall_ns"]),
    }
    return column_table(title, columns, shown)


# The answers of a what-if for several values: a row for each, the best one marked.


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table, what is best, and the reasons to doubt the answers."""
    console.print(Text(sweep_sentence(sweep), style="bold"))
    print_text_table(sweep_table(sweep), f"Predicted step by {sweep.option}", console)
    doubts = {doubt.text: doubt for point in sweep.points for doubt in point.answer.doubts}
    for line in _doubts(doubts.values()):
        console.print(line)


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


_MOST_PATH_PIECES = 40
"""Of a path, unless all are asked for."""
_MOST_MODULES = 12
"""With most of a path, unless all are asked for."""


def print_critical_path(path: CriticalPath, console: Console, all_rows: bool = False) -> None:
    """Print a critical path.

    Args:
        all_rows: print every module, and every piece of the chain.
    """
    shorts = kernel_names(path.timelines, cut=False)
    parts: list[RenderableType] = [_sentence(path)]
    kinds = _shares(path, "what", {kind: ns for kind, ns in path.by_kind.items() if ns}, PATH_KINDS.__getitem__)
    for table in (kinds, _shares(path, "rank", path.by_rank, _rank_name), _item_table(path, shorts)):
        parts += ["", table]
    parts += ["", _module_table(path, all_rows)] if path.by_module else []
    parts += ["", _piece_table(path, shorts, all_rows), ""]
    parts += _doubts(path.doubts)
    parts += [Text("! ", style="yellow").append_text(plain(note)) for note in path.notes]
    console.print(*parts, sep="\n")


def _doubts(doubts: Iterable[Doubt]) -> list[Text]:
    """Return a line for each reason to distrust an answer."""
    lines = ((Text("! ", style="bold red" if doubt.refuses else "yellow"), doubt.text) for doubt in doubts)
    return [mark.append_text(plain(text)) for mark, text in lines]


def _sentence(path: CriticalPath) -> Text:
    """Describe how long the step is, and what most of its chain is."""
    kind = max(path.by_kind, key=lambda name: path.by_kind[name])
    part = share(path.by_kind[kind] / max(1, path.length_ns))
    step = sanitize(step_words(path.step))
    several = len(path.timelines) > 1
    taken = f"{step[0].upper()}{step[1:]} takes {duration(path.wall_ns)}{' (mean of ranks)' if several else ''}"
    where = f" on rank {path.rank}, which ends it last," if several else ""
    taken += f". Its critical path takes {duration(path.length_ns)}{where} as replayed"
    if not path.can_tell:
        return Text(f"{taken}. Cannot tell what sets its length: the replay does not explain the run.", style="bold")
    return Text(f"{taken}; {part} of it is {PATH_KINDS[kind]}.", style="bold")


def _shares(path: CriticalPath, first: str, times: Mapping[Any, int], name: Callable[[Any], str]) -> Fitting:
    """Return a table of times by what they are of, and their shares of the step."""
    columns: _Cells = {
        first: lambda pair: name(pair[0]),
        "ms": lambda pair: milliseconds(pair[1]),
        "share": lambda pair: share(pair[1] / max(1, path.length_ns)),
    }
    return column_table(f"By {'kind' if first == 'what' else first}", columns, times.items())


def _rank_name(rank: int | None) -> str:
    return "all" if rank is None else str(rank)


def _item_table(path: CriticalPath, shorts: Mapping[str, str]) -> Fitting:
    columns: _Cells = {
        "kind": lambda item: item.kind.replace("_", " "),
        "name": lambda item: plain(shorts.get(item.name, item.name)),
        "ms": lambda item: milliseconds(item.path_ns),
        "gain, ms": lambda item: milliseconds(item.gain_ns),
    }
    title = "What takes the most time on it, and what 10 % less would gain"
    table = column_table(title, columns, path.items, leaving=("kind",))
    table.cuts_names = True
    return table


def _module_table(path: CriticalPath, all_rows: bool) -> Fitting:
    """Return the modules with most time; the others in one row, unless every one is requested."""
    modules = list(path.by_module)
    shown = modules if all_rows else modules[:_MOST_MODULES]
    columns: _Cells = {
        "module": lambda one: plain(one.module),
        "ms": lambda one: milliseconds(one.path_ns),
        "share": lambda one: share(one.path_ns / max(1, path.length_ns)),
        "compute": lambda one: milliseconds(one.by_kind["compute"]),
        "transfer": lambda one: milliseconds(one.by_kind["transfer"]),
        "host": lambda one: milliseconds(one.by_kind["host"]),
        "gain, ms": lambda one: "" if one.gain_ns is None else milliseconds(one.gain_ns),
    }
    table = column_table("By module", columns, shown, leaving=("host", "transfer", "compute", "share"))
    if rest := modules[len(shown) :]:
        ns = sum(one.path_ns for one in rest)
        table.add_row(f"{len(rest):,} others", milliseconds(ns), share(ns / max(1, path.length_ns)))
    return table


def _piece_table(path: CriticalPath, shorts: Mapping[str, str], all_rows: bool) -> Fitting:
    """Return the pieces of the chain in order of time; the longest of them, unless every one is requested."""
    pieces = list(path.pieces())
    longest = sorted(pieces, key=lambda piece: piece["start_ns"] - piece["end_ns"])
    shown = pieces if all_rows else sorted(longest[:_MOST_PATH_PIECES], key=lambda piece: int(piece["start_ns"]))
    title = (
        "The chain"
        if len(shown) == len(pieces)
        else f"The chain: the {_MOST_PATH_PIECES} longest of {len(pieces):,} pieces"
    )
    columns: _Cells = {
        "at, ms": lambda piece: milliseconds(piece["start_ns"] - path.start_ns),
        "ms": lambda piece: milliseconds(piece["end_ns"] - piece["start_ns"]),
        "rank": lambda piece: _rank_name(piece["rank"]),
        "kind": lambda piece: piece["kind"].replace("_", " "),
        "name": lambda piece: plain(shorts.get(piece["name"], piece["name"])),
    }
    table = column_table(title, columns, shown, leaving=("kind", "rank"))
    table.cuts_names = True
    return table
