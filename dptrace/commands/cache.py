"""``dptrace cache``: where parsed traces are kept, how large they are, and how to delete them."""

from __future__ import annotations

import click

from dptrace.commands.shared.answer import JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.options import quiet_option
from dptrace.commands.shared.output import print_hint
from dptrace.core.units import byte_size, plural


@click.command()
@click.option("--clear", is_flag=True, help="Delete parsed traces and pages; other files in the folder stay.")
@answer_options()
@quiet_option
def command(clear: bool, to: Destination, verbosity: str) -> None:
    """Show where parsed traces are cached, how many there are and how large they are.

    dptrace caches the parsed form of every trace that it reads, and the pages that dptrace view opens. Clearing the
    cache is safe: the next command parses the traces again. The environment variable DPTRACE_CACHE names another
    folder.

    \b
    Examples:
      dptrace cache
      dptrace cache --clear
      dptrace cache --json | jq .trace_bytes
    """
    from dptrace.load.rank_file import cache_summary

    summary = cache_summary(remove=clear)
    names = ("traces", "trace_bytes", "pages", "page_bytes")
    figures = {"folder": str(summary.folder), **{name: getattr(summary, name) for name in names}}
    traces = plural(summary.traces, "parsed trace")
    content = (
        f"{traces} ({_size(summary.trace_bytes)}) and {plural(summary.pages, 'page')} ({_size(summary.page_bytes)})"
    )
    said = f"{'Deleted from ' if clear else ''}{summary.folder}: {content}.\n"
    to.write(Answer({TEXT: said, JSON: lambda: {"schema": 1, "cleared": clear, **figures}}))
    if to.on_terminal and summary.total_bytes and not clear:
        print_hint("Next: dptrace cache --clear deletes them.", verbosity)


def _size(size: int) -> str:
    return byte_size(size) if size else "0 B"
