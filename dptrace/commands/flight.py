"""``dptrace flight``: who hangs, from the dumps that any job has written."""

from __future__ import annotations

from typing import Any

import click

from dptrace.commands.shared.answer import HTML, JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.options import quiet_option
from dptrace.commands.shared.output import print_hint, print_notes, quoted_paths
from dptrace.core.units import sanitize

_EXAMPLES = """\b
Examples:
  dptrace flight /tmp/dumps                       # nccl_trace_rank_0, nccl_trace_rank_1 …
  dptrace flight dumps.zip -o hang.html           # with the stacks
  dptrace flight nccl_trace_rank_* --json
  ncclras -f json > ras.json && dptrace flight ras.json
"""


_WIDE = 120
"""Columns of a terminal from which on the table has sizes and types."""


@click.command(epilog=_EXAMPLES)
@click.argument("paths", metavar="DUMPS...", nargs=-1, required=True, type=click.Path())
@answer_options(HTML)
@quiet_option
def command(paths: tuple[str, ...], to: Destination, verbosity: str) -> None:
    """Find out in which collective a job hangs, and which rank is the cause.

    Reads the dumps of torch's flight recorder, one for each rank, as pickle or JSON, in folders or zip files: the files
    that torch writes when a collective with NCCL times out (TORCH_NCCL_DUMP_ON_TIMEOUT=1), or what a script has dumped.
    It names the group and the number of the collective, ranks that have not begun it or began another one, and each
    rank's state and line. The JSON of NCCL's RAS (ncclras -f json) and of its Inspector tells which ranks are behind.

    A pickle is read as plain data only; one that holds more is refused, and nothing in it is executed.
    """
    from dptrace.flight.hang import find_hang

    content = find_hang(paths)
    print_notes(content["notes"])
    to.write(
        Answer({TEXT: lambda console: _print(content, console), JSON: lambda: content, HTML: lambda: _page(content)})
    )
    if to.on_terminal and any(row.get("stack") for row in content["ranks"]):
        print_hint(f"The stacks: dptrace flight {quoted_paths(paths)} -o hang.html", verbosity)


def _print(content: dict[str, Any], console: Any) -> None:
    from dptrace.viewers.base.table import MAX_ROWS, plain, print_text_table
    from dptrace.viewers.pages.flight import causes, tables

    is_piped = not console.is_terminal  # one line for a sentence, for grep
    if cause := causes(content):
        console.print(plain(sanitize(f"C{cause[1:]}")), style="bold", soft_wrap=is_piped)
    console.print(plain(sanitize(content["verdict"])), soft_wrap=is_piped)
    for sentence in content["next"]:
        console.print(plain(sanitize(f"→ {sentence}")), style="bold", soft_wrap=is_piped)
    for title, cells in tables(content, stacks=False, narrow=console.width < _WIDE).items():
        console.print()
        print_text_table(cells.truncated(MAX_ROWS), title, console)


def _page(content: dict[str, Any]) -> str:
    from dptrace.viewers.pages.flight import flight_document

    return flight_document(content)
