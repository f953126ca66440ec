"""A critical path in the terminal: where the time of a step's longest chain goes, and what shortening it would gain."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.kernels.names import kernel_names
from dptrace.core.units import duration, milliseconds, sanitize, share
from dptrace.replay.critical_path import CriticalPath
from dptrace.viewers.base.format import plain
from dptrace.viewers.base.path_kinds import PATH_KINDS, step_words

__all__ = ["print_critical_path"]

_LONGEST = 72
_MOST_PIECES = 40
_MOST_MODULES = 12


def print_critical_path(path: CriticalPath, console: Console, every: bool = False) -> None:
    """Print a critical path.

    Args:
        every: print every module, and every piece of the chain.
    """
    shorts = kernel_names(path.timelines)
    parts: list[RenderableType] = [_sentence(path)]
    for table in (_kind_table(path), _rank_table(path), _item_table(path, shorts)):
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


def _rank_table(path: CriticalPath) -> Table:
    table = _table("By rank", "rank", "ms", "share")
    for rank, ns in path.by_rank.items():
        table.add_row("all" if rank is None else str(rank), milliseconds(ns), share(ns / max(1, path.length_ns)))
    return table


def _item_table(path: CriticalPath, shorts: Mapping[str, str]) -> Table:
    table = _table("What takes the most time on it, and what 10 % less would gain", "kind", "name", "ms", "gain, ms")
    for item in path.items:
        kind, name = item.kind.replace("_", " "), _short(item.name, shorts)
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
    shown = pieces if every else sorted(longest[:_MOST_PIECES], key=lambda piece: int(piece["start_ns"]))
    title = (
        "The chain" if len(shown) == len(pieces) else f"The chain: the {_MOST_PIECES} longest of {len(pieces):,} pieces"
    )
    table = _table(title, "at, ms", "ms", "rank", "kind", "name")
    for piece in shown:
        at, length = piece["start_ns"] - path.start_ns, piece["end_ns"] - piece["start_ns"]
        rank = "all" if piece["rank"] is None else str(piece["rank"])
        kind = piece["kind"].replace("_", " ")
        table.add_row(milliseconds(at), milliseconds(length), rank, kind, _short(piece["name"], shorts))
    return table


def _ending(path: str) -> Text:
    """Shorten the path of a module, whose end names it."""
    return plain(path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}")


def _short(full: str, shorts: Mapping[str, str]) -> Text:
    """Return a kernel's short name, or the name of what is no kernel."""
    name = shorts.get(full, full)
    return plain(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
