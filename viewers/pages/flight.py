"""Where a job hangs, as tables for the terminal and as a page, from the content of ``dptrace flight --json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.core.units import listed, plural, ranks_text
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, Section, section_page, sections
from dptrace.viewers.base.table import TextTable

_MAX_TENSORS = 4
"""Sizes of tensors that are listed."""


def tables(content: Mapping[str, Any], stacks: bool = True, narrow: bool = False) -> dict[str, TextTable]:
    """Return the tables by title: where the ranks are, what follows from the causes, and the stacks.

    Ranks with equal rows share one.

    Args:
        narrow: leave sizes and types out, unless a fault is about them.
    """
    of_tensors = any(fault["kind"] in ("sizes", "dtypes") for fault in content["faults"])
    shown = [name for name in _COLUMNS if of_tensors or not narrow or name not in ("sizes", "dtypes")]
    if narrow and not any(row.get("line") or row.get("place") for row in content["ranks"]):
        shown.remove("where")
    by_cells: dict[tuple[str, ...], list[int]] = {}
    by_stack: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for row in content["ranks"]:
        cells = dict(zip(_COLUMNS[1:], _cells(row), strict=True))
        by_cells.setdefault(tuple(cells[name] for name in shown[1:]), []).append(row["rank"])
        frames = tuple((frame["function"], f"{frame['file']}:{frame['line']}") for frame in row.get("stack", ()))
        if frames and stacks:
            by_stack.setdefault(frames, []).append(row["rank"])
    found = {"Ranks": _table((*shown,), [(ranks_text(ranks), *cells) for cells, ranks in by_cells.items()])}
    follows = [fault for fault in content["faults"] if not fault["is_cause"]]
    if follows:
        found["What follows"] = _table(("what",), [(fault["text"],) for fault in follows])
    for frames, ranks in by_stack.items():
        found[f"Stack of {ranks_text(ranks)}, the most recent call first"] = _table(("function", "line"), frames)
    return found


_COLUMNS = ("ranks", "group", "collective", "operator", "sizes", "dtypes", "state", "where")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if "counts" in row:
        counts = ", ".join(f"{number:,} {operator}" for operator, number in row["counts"].items())
        return row["group"], "", counts, "", "", "", row["place"]
    sizes = [str(list(tensor)).replace(" ", "") for tensor in row["input_sizes"] or row["output_sizes"] or ()]
    more = f" and {len(sizes) - _MAX_TENSORS} more" if len(sizes) > _MAX_TENSORS else ""
    place = row["line"] or "–"
    words = (
        row["group"],
        row["number"],
        row["operator"],
        " ".join(sizes[:_MAX_TENSORS]) + more,
        " ".join(row["dtypes"] or ()),
    )
    return *("–" if word in (None, "") else str(word) for word in words), row["state"] or "no call in its dump", place


def _table(columns: tuple[str, ...], rows: Any) -> TextTable:
    return TextTable(columns, tuple(rows), len(columns))


def causes(content: Mapping[str, Any]) -> str:
    """Return who is the cause and why, as "cause: rank 2 (behind on the GPU)"; "" where no rank is."""
    ranks: dict[str, set[int]] = {}
    for fault in content["faults"]:
        if fault["is_cause"] and fault["culprits"]:
            ranks.setdefault(fault["kind"], set()).update(fault["culprits"])
    said = (f"{ranks_text(sorted(culprits))} ({_WRONG[kind]})" for kind, culprits in ranks.items())
    return f"cause: {listed(list(said))}" if ranks else ""


_WRONG = {
    "missing": "did not come",
    "gpu": "behind on the GPU",
    "group": "in a collective of another group",
    "no dump": "left no dump",
    "operator": "another collective",
    "dtypes": "other types",
    "sizes": "other sizes",
    "order": "another order of collectives",
    "stalled": "furthest behind",
    "unknown": "unknown",
}
"""What is wrong with the ranks that are the cause, by the kind of fault."""


def flight_document(content: Mapping[str, Any]) -> str:
    """Draw where a job hangs as one HTML page."""
    advice = Markup("").join(Markup("<p>→ {}</p>").format(sentence) for sentence in content["next"])
    said = Markup('<section class="part"><p><strong>{}</strong></p>{}</section>').format(content["verdict"], advice)
    parts = [
        Section(f"table-{number}", title, cells=cells, open=True)
        for number, (title, cells) in enumerate(tables(content).items())
    ]
    facts = (content["source"], plural(len(content["ranks"]), "rank"), causes(content))
    head = Headline("Who hangs", "flight", tuple(filter(None, facts)), tuple(content["notes"]))
    return section_page(head, said + sections(parts))
