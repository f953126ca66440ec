"""``dptrace mcp``: the figures of runs for an agent, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.options import reading_options
from dptrace.errors import MissingExtraError, UsageError
from dptrace.load.options import ReadOptions

_ROOT = "Only runs in this folder are read. [the current folder]"


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=".", metavar="FOLDER", help=_ROOT)
@reading_options
def command(root: Path, read_options: ReadOptions) -> None:
    """Serve runs to an agent, over the Model Context Protocol on standard input and output.

    A client starts this command and calls its tools: list_runs, open_run, split, findings, stragglers, kernels, diff,
    whatif and picture. They answer with exact figures and their uncertainty, few rows at a time. Nothing in the folder
    is written, and no path leads out of it.

    \b
    Example:
      dptrace mcp --root ~/runs
    """
    root = root.expanduser()  # a client's configuration goes through no shell
    if not root.is_dir():
        raise UsageError(f"--root {root}: is no folder.")
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError:
        raise MissingExtraError("dptrace mcp needs the official SDK of the Model Context Protocol", "mcp") from None
    from dptrace.commands.mcp_tools import serve

    serve(root, read_options)
