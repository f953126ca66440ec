"""The answer of a what-if in the terminal: the step before and after, by part and by rank, and reasons to doubt it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.core.units import duration, milliseconds, plural, share, signed_milliseconds
from dptrace.replay.paths import PathPiece
from dptrace.replay.whatif import RankAnswer, WhatIf
from dptrace.viewers.base.format import plain

__all__ = ["print_whatif", "sentence"]

_LABELS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other",
    "exposed_comm_ns": "exposed communication",
    "exposed_memory_ns": "exposed memory",
    "idle_ns": "idle",
    "wall_ns": "step",
    "overlapped_comm_ns": "overlapped communication",
}
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
            table.add_row(_LABELS[name], *cells, style="bold" if name == "wall_ns" else "")
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
