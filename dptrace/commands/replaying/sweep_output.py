"""What ``dptrace whatif`` writes for several values of an option: a table, JSON, a page or a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.commands.shared.output import emit, json_text, print_hint, print_tables, write_text
from dptrace.core.files import atomic_write

if TYPE_CHECKING:
    from dptrace.replay.sweep import Sweep

__all__ = ["write_sweep"]

_WIDTH = 960


def write_sweep(sweep: Sweep, output: Path | None, as_json: bool, verbosity: str) -> None:
    """Print the answers, or write them to a file, by what its name says."""
    suffix = "" if output is None else output.suffix
    if as_json:
        emit(json_text(sweep.to_dict()), output)
    elif output is not None and suffix == ".html":
        from dptrace.commands.shared.pages import write_page
        from dptrace.viewers.pages.whatif_sweep import document

        write_page(output, lambda: document(sweep), verbosity)
        return
    elif output is not None and suffix in (".svg", ".png"):
        _write_picture(sweep, output)
    else:
        from dptrace.viewers.terminal.replay.whatif_sweep import print_sweep

        print_tables(lambda console: print_sweep(sweep, console), output)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)


def _write_picture(sweep: Sweep, output: Path) -> None:
    from dptrace.commands.shared.pages import svg_height
    from dptrace.viewers.base.screenshot import framed, screenshot
    from dptrace.viewers.base.svg_renderer import svg
    from dptrace.viewers.pages.whatif_sweep import sweep_chart

    drawn = svg(sweep_chart(sweep))
    if output.suffix == ".svg":
        write_text(output, drawn)
    else:
        with atomic_write(output) as temporary:
            screenshot(framed(drawn), temporary, (_WIDTH, svg_height(drawn, _WIDTH)))
