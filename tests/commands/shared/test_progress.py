"""Progress on stderr."""

from __future__ import annotations

import io

import pytest

from dptrace.commands.shared import progress as module
from dptrace.commands.shared.output import QUIET
from dptrace.commands.shared.progress import progress


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_silent_where_stderr_is_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped or logged, no bar is drawn however long it takes."""
    with progress("Reading") as show:
        show(0.5, "a file")

    assert ("", "") == tuple(capsys.readouterr())


@pytest.mark.parametrize("measured", [True, False])
def test_a_terminal_shows_elapsed_and_remaining_time(measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remaining time only where the fraction is known; nothing with --quiet."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(module, "_DELAY_S", 0.0)
    with progress("Reading", QUIET) as show:
        show(0.5, "a file")
    assert "" == stream.getvalue()

    with progress("Reading", measured=measured) as show:
        show(0.5, "a file")
        while "a file" not in stream.getvalue():
            pass
    assert "Reading" in stream.getvalue()
    assert measured == ("left" in stream.getvalue())
