"""The options of ``dptrace view`` that serve a page instead of writing a file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import field_of, group
from dptrace.commands.shared.output import print_hint
from dptrace.commands.shared.progress import progress
from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.viewers.gantt.chart import Chart

__all__ = ["ServeOptions", "open_browser", "serve_options"]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Whether and where a page is served."""

    serve_requested: bool = False
    host: str | None = None
    port: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a server is requested, by any of its options."""
        return self.serve_requested or self.host is not None or self.port is not None

    def check(self, other: bool) -> None:
        """Refuse combinations that can't work, before any work.

        Args:
            other: whether a file, the terminal, another view than the Gantt chart, or two runs are requested.

        Raises:
            UsageError: the message says what to do instead.
        """
        if self.requested and other:
            raise UsageError(
                "--serve, --host and --port serve the Gantt page of one run and can't be combined with -o, --text, "
                "--view, --against, --svg or --png."
            )

    def serve(self, run: Run, gantt_chart: Chart, entry: Path | None, browser: bool, verbosity: str) -> None:
        """Serve a run's page until its tab is closed or Ctrl-C is pressed.

        Args:
            entry: the file in the cache that keeps the chart's index; None for none.
        """
        from dptrace.viewers.gantt.host.host_data import HostAnswers
        from dptrace.viewers.gantt.page.document import served
        from dptrace.viewers.gantt.page.server import LOOPBACK, PageServer
        from dptrace.viewers.gantt.tiles.service import TileService

        with progress("Drawing", verbosity, measured=False):
            drawn = served(run, gantt_chart, entry, host=True)
        answers = {"host": HostAnswers(run, gantt_chart)}
        service, host = TileService(drawn.store), self.host or LOOPBACK
        server = PageServer(drawn.page, drawn.files, service, host, self.port or 0, answers)
        try:
            self._print_address(server, verbosity)
            if browser:
                open_browser(server.url)
            server.wait()
        except KeyboardInterrupt:
            click.echo("", err=True)
        finally:
            server.close()

    def _print_address(self, server: Any, verbosity: str) -> None:
        from dptrace.viewers.gantt.page.server import LOOPBACK, tunnel

        click.echo(server.url)
        if server.host not in (LOOPBACK, "localhost", "::1"):
            click.echo(
                f"! Listening at {server.host}: anyone who has this address with its token can see the recording, and "
                "the connection is not encrypted.",
                err=True,
            )
        elif "SSH_CONNECTION" in os.environ:
            line = tunnel(os.environ["SSH_CONNECTION"], _user(), server.port)
            click.echo(f"From your own machine: {line}\nthen open the address above there.", err=True)
        print_hint("Serving until the page's tab is closed, or Ctrl-C.", verbosity)


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"


def open_browser(address: str) -> bool:
    """Open an address; return whether a browser could be opened."""
    import webbrowser

    # Without a display, webbrowser would find a text browser, which takes the terminal and runs no scripts.
    needs_display = sys.platform not in ("darwin", "win32") or "SSH_CONNECTION" in os.environ
    has_display = not needs_display or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return has_display and webbrowser.open(address)


_SERVE = "Serve the page until its tab is closed; always for very large runs without -o."
_HOST = "Address of this machine to serve at. [127.0.0.1: this machine only]"
_FIELD = field_of("serve", ServeOptions())
serve_options = group(
    click.option("--serve", "serve_requested", is_flag=True, help=_SERVE, **_FIELD),
    click.option("--port", type=Whole(1, 65535), metavar="N", help="Port to serve at. [a free one]", **_FIELD),
    click.option("--host", metavar="ADDRESS", help=_HOST, **_FIELD),
)
"""--serve, --port and --host, as one argument *serve*."""
