"""A run in the terminal: what it is and where its time goes, then findings, tables, and notes on the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from dptrace.analysis.findings.finding import unprofiled_step_ns
from dptrace.analysis.matching.calls import coordinates, place
from dptrace.analysis.per_gpu.device import expert_loads
from dptrace.analysis.per_gpu.split import (
    EXPOSED_LABELS,
    overlap_percent,
)
from dptrace.core.checks import rank_memory
from dptrace.core.notes import SELECTED
from dptrace.core.units import MINUS, byte_size, duration, share
from dptrace.model.training.layout import held_activations
from dptrace.replay.findings import findings_of
from dptrace.run.cross_rank import MeanStep, mean_step
from dptrace.run.run import Run
from dptrace.run.shared_clock import collectives_on_one_clock, times_note
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import column_table, plain, rank_label, step_label
from dptrace.viewers.terminal.screen import exposed_parts, length_words, step_parts, utilization_sentence
from dptrace.viewers.terminal.split import (
    MAX_STEPS,
    collective_table,
    findings_list,
    idle_table,
    step_tables,
    timing_table,
)

# Facts as sentences: memory of the ranks, load of the experts, the profiler's overhead, what the steps compute.


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
    amounts_of = {what: rank_memory(info, key) for key, what in _HELD.items()}
    held = {what: values for what, values in amounts_of.items() if values}
    clauses = []
    if held:
        each = "Each rank holds" if any(len(values) > 1 for values in held.values()) else "The rank holds"
        several = any(min(values) < max(values) for values in held.values())
        who = "A rank holds up to" if several else each
        amounts = [f"{byte_size(max(values)) if max(values) else '0 B'} {what}" for what, values in held.items()]
        clauses.append(f"{who} {', '.join(amounts[:-1])} and {amounts[-1]}" if amounts[1:] else f"{who} {amounts[0]}")
    if peaks := rank_memory(info, "peak_allocated_bytes"):
        clauses.append(f"GPU memory peaked at {byte_size(max(peaks))}")
    elif peaks := rank_memory(info, "peak_process_bytes"):
        clauses.append(f"a process used up to {byte_size(max(peaks))}, including Python and torch")
    return f"Memory: {'; '.join(clauses)}." if clauses else ""


_MAX_RANGE = 2
"""Width of the range of an overhead, as a share, from which it cannot be told."""
_SHORT_STEP_NS = 5_000_000
"""About the time for which a system lets another process run: it makes a shorter step several times as long."""


def profiler_sentence(info: Mapping[str, Any]) -> str:
    """Return the length of a step without and with the profiler; empty where that was not measured.

    Args:
        info: the contents of run.json.
    """
    overhead = info.get("profiler_overhead")
    limits, cpu = info.get("profiler_overhead_range"), info.get("profiler_cpu_overhead")
    if not isinstance(overhead, float | int) and not isinstance(limits, list):
        return ""
    plain = unprofiled_step_ns(info)
    if plain is None:
        return ""
    try:
        # Windows that differ by more than that show nothing.
        told = isinstance(limits, list) and limits[1] - limits[0] < _MAX_RANGE
        windows = f"{_signed(limits[0])} to {_signed(limits[1])} by window" if limits and told else ""
        processor = f"processor time {_signed(cpu)}" if isinstance(cpu, float | int) else ""
    except (KeyError, IndexError, TypeError, ValueError):  # not measured, or edited by hand
        return ""
    text = f"Steps timed apart from these take {duration(plain)} without the profiler"
    if not isinstance(overhead, float | int):
        seen = "; ".join(filter(None, (windows, processor)))
        why = "from steps as short as these" if plain < _SHORT_STEP_NS else "on a machine as busy as this"
        return f"{text}. What it costs cannot be told {why}" + (f" ({seen})." if seen else ".")
    # Steps that are faster with the profiler show how much steps vary, not what the profiler costs.
    profiled = f" and {duration(plain * (1 + overhead))} with it" if overhead > 0 else ""
    cost = _signed(overhead) if overhead > 0 else "no overhead seen"
    return f"{text}{profiled} ({'; '.join(filter(None, (cost, windows, processor)))})."


def _signed(fraction: float) -> str:
    return f"+{share(fraction)}" if fraction >= 0 else f"{MINUS}{share(-fraction)}"


MAX_LAYERS = 8
"""Most layers or ranks that are listed without --all."""


def expert_lines(info: Mapping[str, Any], all_rows: bool = False) -> list[str]:
    """Return each layer's most and least loaded expert, a line each; empty for a run without experts.

    Args:
        info: the contents of run.json.
        all_rows: leave no layer out.
    """
    loads = expert_loads(info)
    if not loads:
        return []
    lines = [
        f"layer {load.layer}: most {100 * load.shares[load.most_loaded]:.1f} % (expert {load.most_loaded}), "
        f"least {100 * load.shares[load.least_loaded]:.1f} % (expert {load.least_loaded})"
        + ("" if load.dropped is None else f", dropped {100 * load.dropped:.1f} %")
        for load in loads
    ]
    even = f"{100 * loads[0].even_share:.1f} %"
    return _list(f"Tokens of each expert, all steps (an even load is {even}):", lines, "layers", all_rows)


def _list(heading: str, lines: Sequence[str], what: str, all_rows: bool) -> list[str]:
    """Return the first lines below a heading, or every line, and the number of those left out."""
    shown = lines if all_rows else lines[:MAX_LAYERS]
    left = len(lines) - len(shown)
    rest = [f"  {left:,} more {what}; --all shows them."] if left else []
    return [heading, *(f"  {line}" for line in shown), *rest]


def in_flight_lines(info: Mapping[str, Any], all_rows: bool = False) -> list[str]:
    """Return how many micro-batches' activations each rank of a pipeline held, next to the schedule's, a line each.

    Args:
        info: the contents of run.json.
        all_rows: leave no rank out.
    """
    found = held_activations(info)
    if not found:
        return []
    lines = []
    for held in found:
        expected = "no formula" if held.expected is None else f"expected {held.expected}"
        size = "" if held.bytes is None else f", {byte_size(held.bytes)}"
        lines.append(f"rank {held.rank}: {held.micro_batches} ({expected}){size}")
    heading = f"Activations in flight, by {found[0].schedule} (micro-batches that a rank held at once):"
    return _list(heading, lines, "ranks", all_rows)


def mesh_lines(mesh: Mapping[int, Mapping[str, int]], all_rows: bool = False) -> list[str]:
    """Return where each rank stands in the mesh of the job, a line each; empty without a mesh.

    Args:
        mesh: the numbers of each rank in the dimensions.
        all_rows: leave no rank out.
    """
    if not mesh:
        return []
    names = dict.fromkeys(name for numbers in mesh.values() for name in numbers)
    sizes = {name: len({numbers[name] for numbers in mesh.values() if name in numbers}) for name in names}
    lines = [f"rank {rank}: {place(numbers)}" for rank, numbers in mesh.items()]
    return _list(f"Mesh: {' × '.join(f'{name} {size}' for name, size in sizes.items())}", lines, "ranks", all_rows)


MAX_COLLECTIVES = 60

HINT = "--all prints every table in full: each step, rank and collective."


def sentence(run: Run) -> Text:
    """Return the length of the mean step, and its exposed communication and idle time, as one sentence."""
    found = mean_step(run.cross_rank)
    if found is None:
        return Text("There is no step in this run.", style="bold")
    figures, text = found.figures_ns, Text()
    for lines, style in ((run.several_runs, "bold red"), (found.limits, "bold yellow")):
        text.append("".join(f"{line}\n" for line in lines), style=style)
    text.append(f"{length_words(found)}: ", style="bold")
    if figures["exposed_comm_ns"] is None:
        text.append("exposed communication unknown", style="bold red")
    else:
        text.append(_exposed(run, found), style="bold red")
    idle = figures["idle_ns"]
    bound = f"{found.bounds['idle_ns']} " if found.bounds.get("idle_ns", "about") != "about" else ""
    text.append(", idle unknown" if idle is None else f", {bound}{100 * idle / max(found.wall_ns, 1):.1f} % idle")
    if "overlapped_comm_ns" in found.unknown or "exposed_comm_ns" in found.unknown:
        text.append("; overlap unknown.")
    else:
        percent = overlap_percent(figures["overlapped_comm_ns"], figures["exposed_comm_ns"])
        hidden = "no communication" if percent is None else f"{percent:.1f} % of communication overlapped"
        text.append(f"; {hidden}.")
    if (recomputed := run.recompute_percent()) is not None:
        text.append(f" {recomputed:.1f} % of backward recomputes forward (activation checkpointing).")
    return text


def _exposed(run: Run, found: MeanStep) -> str:
    """Return the shares of waiting and of transfer in exposed communication, with the ranks that are waited for."""
    unknown = found.waits_ns["exposed_wait_ns"] is None and found.waits_ns["exposed_unmatched_ns"]
    why = f" (waiting unknown: {run.cross_rank.not_recorded or 'incomplete collectives'})" if unknown else ""
    missing = EXPOSED_LABELS["exposed_unmatched_ns"]
    shares = {label: 100 * ns / max(found.wall_ns, 1) for _, label, ns in exposed_parts(found)}
    kept = {label: part for label, part in shares.items() if label != missing or part >= 0.05}
    return ", ".join(f"{part:.1f} % {label.lower()}" for label, part in kept.items()) + why


def mean_split(run: Run) -> str:
    """Return the mean step by part."""
    found = mean_step(run.cross_rank)
    if found is None or not found.wall_ns:
        return ""
    parts = step_parts(found)
    listed = (f"{label.lower()} {duration(ns)} ({share(ns / found.wall_ns)})" for _, label, ns in parts if ns)
    step = "Mean step" if found.marked else "The whole recording"
    step += ", about" if "wall_ns" in found.bounds else ","
    return f"{step} {duration(found.wall_ns)}: {', '.join(listed)}."


def note_lines(notes: Sequence[str]) -> RenderableType:
    """Return notes that limit the figures: missing, dropped or inferred data."""
    return Group(*(Text("! ", style="yellow").append_text(plain(note)) for note in notes))


def print_run(run: Run, console: Console, all_rows: bool = False, sections: Collection[str] = ()) -> None:
    """Print the headline of *run*, its findings, its tables and the notes on its data.

    Args:
        all_rows: print each table in full, and a table by step for each rank.
        sections: print these alone, of SECTIONS, in its order.
    """
    lines = (mean_split(run), utilization_sentence(run.efficiency), profiler_sentence(run.metadata))
    parts: list[RenderableType] = [plain(headline(run).line), sentence(run)]
    parts += [Text(line) for line in lines if line]
    names = [name for name in SECTIONS if not sections or name in sections]
    # What findings do not show is said beside them, but once.
    selected = [note for note in run.notes if note.startswith(SELECTED)]
    for name in names:
        for part in SECTIONS[name](run, all_rows):
            parts += ["", part]
        if name == "findings" and "notes" not in names and selected:
            parts += ["", note_lines(selected)]
    console.print(*parts, sep="\n")


def _findings(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    yield findings_list(findings_of(run), run.on_cpu, run.is_limited)


def _split(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    yield from step_tables(run, all_rows)


def _communication(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    yield from filter(None, (collective_table(run), timing_table(run.cross_rank, all_rows)))


def _idle(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    yield from filter(None, [idle_table(run, all_rows)])
    if run.pipelines:
        from dptrace.viewers.views.timelines import bubble_table  # a plain analyze starts without it

        yield from filter(None, [bubble_table(run)])


def _facts(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    if all_rows and not run.figures_only:
        from dptrace.viewers.terminal.kernels import kernel_parts

        yield from kernel_parts(run)
    if memory := memory_sentence(run.metadata):
        yield Text(memory)
    mesh = coordinates(run.cross_rank.matches.groups, run.metadata, run.world_size)
    lists = mesh_lines(mesh, all_rows), in_flight_lines(run.metadata, all_rows), expert_lines(run.metadata, all_rows)
    yield from (Text("\n".join(lines)) for lines in lists if lines)


def _notes(run: Run, all_rows: bool) -> Iterator[RenderableType]:
    if not all_rows and (len(run.splits) > 1 or any(len(figures.names) > MAX_STEPS for figures in run.splits)):
        yield Text(HINT, style="dim")
    if run.notes or run.cross_rank.notes:
        yield note_lines((*run.notes, *run.cross_rank.notes))


SECTIONS: dict[str, Callable[[Run, bool], Iterator[RenderableType]]] = {
    "findings": _findings,
    "split": _split,
    "communication": _communication,
    "idle": _idle,
    "facts": _facts,
    "notes": _notes,
}
"""The sections of a run's answer, in their order."""


def print_collectives(run: Run, console: Console, all_rows: bool = False) -> None:
    """Print a row for each collective on each GPU; only the first ones unless *all_rows*."""
    rows = collectives_on_one_clock(run)
    if not len(rows):
        console.print("No communication in this run.")
    else:
        shown = rows if all_rows else rows.head(MAX_COLLECTIVES)
        _print_collective_rows(run, shown.to_dict("records"), console)
        if len(shown) < len(rows):
            console.print(f"{len(rows) - len(shown):,} more; --all shows them, --csv writes them.")
    if run.notes or times_note(run):
        console.print(note_lines((*run.notes, *times_note(run))))


def _print_collective_rows(run: Run, rows: list[dict[Any, Any]], console: Console) -> None:
    firsts = zip(run.shifts, run.timelines, strict=True)
    origin = min(int(shift(timeline.windows.bounds[:1])[0]) for shift, timeline in firsts)
    labels = {(timeline.rank, timeline.device): rank_label(run, timeline) for timeline in run.timelines}
    columns: dict[str, Callable[[Any], str | Text]] = {
        "rank": lambda row: labels[row["rank"], row["device"]],
        "step": lambda row: plain(step_label(row["step"])) if isinstance(row["step"], str) else "–",
        "kind": lambda row: row["kind"],
        "phase": lambda row: row["phase"],
        "bytes": lambda row: byte_size(row["bytes"] if isinstance(row["bytes"], int) else 0),
        "start\nms": lambda row: f"{(row['start_ns'] - origin) / 1e6:,.3f}",
        "ms": lambda row: f"{(row['end_ns'] - row['start_ns']) / 1e6:.3f}",
        "exposed\nms": lambda row: _fine(row["exposed_ns"]),
    }
    if any(isinstance(row["exposed_wait_ns"], int) for row in rows):
        columns |= {"waiting\nms": lambda row: _waiting(row)[0], "for\nrank": lambda row: _waiting(row)[1]}
    columns |= {"overl.\nms": lambda row: _fine(row["overlapped_ns"])}
    console.print(column_table("collectives of each GPU", columns, rows, ("step", "kind", "phase")))


def _waiting(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Return a collective's exposed wait and the rank that it was for; empty where there is none."""
    wait, rank = row["exposed_wait_ns"], row["waits_for"]
    return _fine(wait), str(rank) if isinstance(wait, int) and wait and isinstance(rank, int) else ""


def _fine(ns: Any) -> str:
    """Return a time in ms to the microsecond, or ? for one that is not known."""
    return f"{ns / 1e6:.3f}" if isinstance(ns, int) else "?"
