"""``dptrace view --serve`` as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.serve_options import ServeOptions
from dptrace.errors import UsageError
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page import document as page
from dptrace.viewers.gantt.page import server
from tests.support.synthetic import training_run

TRACE = Path(__file__).resolve().parents[3] / "traces" / "single_cpu"


def view(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["view", *map(str, arguments)])


@pytest.fixture
def served_pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let servers stop at once, and keep the pages that they serve."""
    pages: list[str] = []

    def wait(self: server.PageServer) -> None:
        pages.append(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url).read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(server.PageServer, "wait", wait)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return pages


@pytest.mark.heavy
def test_it_serves_until_ctrl_c_and_says_where(served_pages: list[str]) -> None:
    """The address alone on stdout, exit code 0, no traceback, no file."""
    result = view(TRACE, "--serve", "--no-browser")

    assert 0 == result.exit_code, result.output
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/\n", result.stdout)
    assert "Ctrl-C" in result.stderr
    assert "Traceback" not in result.output
    assert served_pages[0].startswith("<!DOCTYPE html>")


@pytest.mark.heavy
def test_the_index_is_kept_in_the_cache(
    served_pages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the same ranks and steps, mapped the next time; none with --no-cache."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path))

    def entries() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in tmp_path.glob("*.tiles")}

    view(TRACE, "--serve", "--no-browser", "--no-cache")
    assert {} == entries()
    view(TRACE, "--serve", "--no-browser")
    once = entries()
    assert 1 == len(once)
    view(TRACE, "--serve", "--no-browser")
    assert once == entries()
    view(TRACE, "--serve", "--no-browser", "--ranks", "0")
    assert 2 == len(entries())
    assert 4 == len(served_pages)


@pytest.mark.heavy
def test_over_ssh_it_gives_the_tunnel(served_pages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line to type, with the port that is served."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.5 22")
    result = view(TRACE, "--serve", "--no-browser")
    port = re.search(r":(\d+)/", result.stdout)

    assert port
    assert re.search(rf"ssh -N -L {port[1]}:127\.0\.0\.1:{port[1]} \S+@10\.0\.0\.5\n", result.stderr)


@pytest.mark.heavy
def test_another_address_is_served_with_a_warning(served_pages: list[str]) -> None:
    """Only on request; --host and --port request a server too."""
    result = view(TRACE, "--host", "0.0.0.0", "--no-browser", "-q")

    assert 0 == result.exit_code, result.output
    assert "anyone who has this address" in result.stderr
    assert "not encrypted" in result.stderr
    assert "anyone" not in view(TRACE, "--serve", "--no-browser").stderr


def test_what_is_too_large_for_a_file_is_served(
    served_pages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unasked where it is to be looked at; where a file is asked for, the refusal names --serve."""
    monkeypatch.setattr(page, "MAX_INTERVALS", 5)
    assert 0 == view(TRACE, "--no-browser").exit_code
    assert 1 == len(served_pages)
    result = view(TRACE, "-o", tmp_path / "page.html")
    assert 1 == result.exit_code
    assert "--serve" in result.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "other", [["-o", "x.html"], ["--text"], ["--against", "y"], ["--svg", "x.svg"], ["--view", "heatmap"]]
)
@pytest.mark.parametrize("asked", [["--serve"], ["--port", "8000"], ["--host", "::1"]])
def test_a_server_is_for_the_page_of_one_run(asked: list[str], other: list[str]) -> None:
    """Refused before anything is read."""
    result = view("missing", *asked, *other)

    assert 2 == result.exit_code
    assert "Gantt page of one run" in result.stderr


def test_nothing_is_served_unasked() -> None:
    """The options alone decide."""
    assert not ServeOptions().requested
    assert ServeOptions(port=1).requested
    ServeOptions().check(other=True)
    with pytest.raises(UsageError):
        ServeOptions(serve_requested=True).check(other=True)


@pytest.mark.spawn
def test_ctrl_c_ends_the_process_quietly() -> None:
    """A real process, a real signal; a shell that ran pytest in the background would have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "dptrace", "view", str(TRACE), "--serve", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_PROXY": "*"}
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()

    assert 0 == process.returncode
    assert "Traceback" not in errors


def test_a_chart_that_is_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large runs take seconds to lay out."""
    run = training_run(600)
    gantt_chart = chart(run)
    monkeypatch.delattr(page, "chart")

    assert "synthetic" in page.document(run, gantt_chart)
    assert page.served(run, gantt_chart).store.lanes
