"""What ``dptrace whatif`` writes for several values of an option: a table, JSON, a page or a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.commands.shared.pages import write_answer

if TYPE_CHECKING:
    from dptrace.replay.sweep import Sweep
    from dptrace.viewers.base.marks import Drawing

__all__ = ["write_sweep"]

_WIDTH = 960


def write_sweep(sweep: Sweep, output: Path | None, as_json: bool, verbosity: str) -> None:
    """Print the answers, or write them to a file, by what its name says."""
    from dptrace.viewers.terminal.replay.whatif_sweep import print_sweep

    write_answer(
        sweep.to_dict(),
        output,
        as_json,
        verbosity,
        show=lambda console: print_sweep(sweep, console),
        page=lambda: _page(sweep),
        chart=lambda: _chart(sweep),
        width=_WIDTH,
    )


def _page(sweep: Sweep) -> str:
    from dptrace.viewers.pages.whatif_sweep import document

    return document(sweep)


def _chart(sweep: Sweep) -> Drawing:
    from dptrace.viewers.pages.whatif_sweep import sweep_chart

    return sweep_chart(sweep)
