"""What slows down a timeline of pipeline stages, on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from dptrace.core.units import MINUS, milliseconds, plural, share
from dptrace.viewers.base.table import TextTable, plain, print_text_table

_CAUSES = {
    "worker": "the slowest worker",
    "stages": "uneven stages",
    "sequences": "uneven micro-batches",
    "transfers": "slow transfers",
}
_NEGLIGIBLE = 0.0005
"""Value that is shown as 0."""


def print_stage_whatif(content: dict[str, Any], console: Console) -> None:
    """Print an answer of :func:`dptrace.stage_whatif`."""
    console.print(Text(content["text"], style="bold"))
    recorded, replayed, ideal = (content[f"{name}_step_ns"] for name in ("recorded", "replayed", "ideal"))
    size = f"{plural(len(content['stages']), 'stage')} of {plural(content['dp_ranks'], 'data-parallel rank')}"
    console.print(
        plain(
            f"A step takes {milliseconds(recorded)} ms (mean of {plural(content['steps'], 'step')}, {size}), and "
            f"{milliseconds(replayed)} ms replayed: "
            f"{content['slowdown']:.2f} times the ideal, {milliseconds(ideal)} ms."
        )
    )
    causes = tuple((_CAUSES[name], _share(value)) for name, value in content["explains"].items())
    note = "Shares need not add up: what one change hides, another one gains."
    _print(TextTable(("cause", "explains"), causes, note=note), "What the slowdown comes from", console)
    stages = tuple(
        (str(row["stage"]), milliseconds(row["compute_ns"]), _share(row["explains"])) for row in content["stages"]
    )
    _print(TextTable(("stage", "compute (ms per step)", "explains"), stages, 0), "Stages", console)
    workers = tuple((str(row["stage"]), str(row["dp_rank"]), _share(row["explains"])) for row in content["workers"])
    _print(TextTable(("stage", "dp rank", "explains"), workers, 0), "The slowest workers", console)
    phases, stages_alike = content["forward_backward_correlation"], content["stage_correlation"]
    console.print(
        plain(
            f"Correlation of micro-batches: forward with backward {_number(phases)}, "
            f"between stages {_number(stages_alike)}."
        )
    )


def _print(cells: TextTable, title: str, console: Console) -> None:
    console.print()
    print_text_table(cells.truncated(), title, console)


def _share(value: float | None) -> str:
    if value is None:
        return "unknown"
    return "0 %" if abs(value) < _NEGLIGIBLE else f"{MINUS if value < 0 else ''}{share(abs(value))}"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return "0 %" if abs(value) < _NEGLIGIBLE else f"{value:.2f}"
