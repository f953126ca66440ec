"""``dptrace view --figure``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.commands.view import parse_size
from dptrace.viewers.gantt.chart import chart
from dptrace.viewers.gantt.page import document as page
from dptrace.viewers.gantt.page import server
from dptrace.viewers.views.names import NAMES
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.pictures import pdf_test, png_test, size_of
from tests.support.synthetic import training_run

RUN = Path(__file__).parents[2] / "traces" / "ddp_cpu_2ranks"


def view(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["view", str(RUN), *map(str, arguments)])


@pytest.mark.heavy
def test_an_svg_has_the_chosen_ranks_and_steps(tmp_path: Path) -> None:
    """One step of all ranks where none are chosen."""
    whole, part = tmp_path / "whole.svg", tmp_path / "part.svg"
    written = view("--figure", whole, "--annotate")
    chosen = view("--figure", "-o", part, "--ranks", "1", "--figure-width", 480)

    assert (0, 0) == (written.exit_code, chosen.exit_code), (written.output, chosen.output)
    assert f"Wrote {whole} (" in written.output
    assert {"rank 0", "rank 1"} <= set(re.findall(r">(rank \d+)", whole.read_text()))
    assert {"rank 1"} == set(re.findall(r">(rank \d+)", part.read_text()))
    assert "480" == ET.fromstring(part.read_text()).get("width")


@pytest.mark.heavy
@png_test
@pdf_test
def test_a_figure_is_a_dense_png_and_a_pdf(tmp_path: Path) -> None:
    """Three pixels for one of the figure."""
    png, pdf = tmp_path / "x.png", tmp_path / "x.pdf"

    assert 0 == view("--figure", "-o", png, "-o", pdf).exit_code
    assert 3 * 640 == size_of(png.read_bytes())[0]
    assert pdf.read_bytes().startswith(b"%PDF")


# ``dptrace view`` with --view, pictures and --size.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    for rank in (0, 1):
        file = training_step(training_step(KinetoFile(rank=rank, world_size=2), 4, 0), 5, 100)
        file.write(place / f"r{rank}.json.gz")
    return place


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["view", *map(str, arguments)])


def test_the_views_are_listed() -> None:
    """Without a run, each with what it shows; and help names them all."""
    listed, help_text = run("--view", "list"), run("--help").output

    assert 0 == listed.exit_code, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()] == list(NAMES)
    for name, about in NAMES.items():
        assert about in listed.output
        assert name in help_text


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_view_is_a_page_an_svg_and_a_text(name: str, folder: Path, tmp_path: Path) -> None:
    """By the names of the files, and beside the text."""
    page, drawn = tmp_path / "x.html", tmp_path / "x.svg"
    text = run(folder, "--view", name, "-o", page, "-o", drawn, "--text")

    assert 0 == text.exit_code, text.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "svg" in ET.fromstring(drawn.read_text(encoding="utf-8")).tag
    assert "2 ranks" in drawn.read_text(encoding="utf-8")
    assert f"Wrote {drawn} (" in text.stderr
    assert "rank" in text.stdout or "no communication" in text.stdout or "find" in text.stdout.lower()


@pytest.mark.heavy
@png_test
@pytest.mark.parametrize(("name", "size"), [("gantt", "800x300"), ("breakdown", None)])
def test_a_png_has_the_requested_size(name: str, size: str | None, folder: Path, tmp_path: Path) -> None:
    """Else it is as wide as a slide and as high as needed."""
    path = tmp_path / "x.png"
    result = run(folder, "--view", name, "-o", path, *(["--size", size] if size else []))

    assert 0 == result.exit_code, result.output
    width, height = size_of(path.read_bytes())
    assert (800, 300) == (width, height) if size else width == 1600
    assert {"run", "x.png"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.heavy
def test_without_what_draws_a_png_nothing_is_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what to install; exit code 1."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    result = run(folder, "-o", tmp_path / "x.png")

    assert 1 == result.exit_code
    assert "pip install" in result.stderr
    assert {"run"} == {path.name for path in tmp_path.iterdir()}


def test_sizes_are_read() -> None:
    """With an x, or a times sign."""
    assert (1600, 900) == parse_size("1600x900") == parse_size(" 1600 × 900 ")


# ``dptrace view --serve`` as a user runs it.


TRACE = RUN.with_name("single_cpu")


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
    result = run(TRACE, "--serve", "--no-browser")

    assert 0 == result.exit_code, result.output
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/\n", result.stdout)
    assert "Ctrl-C" in result.stderr
    assert "Traceback" not in result.output
    assert served_pages[0].startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_the_index_is_kept_in_the_cache(
    served_pages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the same ranks and steps, mapped the next time; none with --no-cache."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path))

    def entries() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in tmp_path.glob("*.tiles")}

    run(TRACE, "--serve", "--no-browser", "--no-cache")
    assert {} == entries()
    run(TRACE, "--serve", "--no-browser")
    once = entries()
    assert 1 == len(once)
    run(TRACE, "--serve", "--no-browser")
    assert once == entries()
    run(TRACE, "--serve", "--no-browser", "--ranks", "0")
    assert 2 == len(entries())
    assert 4 == len(served_pages)


@pytest.mark.heavy
def test_over_ssh_it_gives_the_tunnel(served_pages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line to type, with the port that is served."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.5 22")
    result = run(TRACE, "--serve", "--no-browser")
    port = re.search(r":(\d+)/", result.stdout)

    assert port
    assert re.search(rf"ssh -N -L {port[1]}:127\.0\.0\.1:{port[1]} \S+@10\.0\.0\.5\n", result.stderr)


@pytest.mark.heavy
def test_another_address_is_served_with_a_warning(served_pages: list[str]) -> None:
    """Only on request; --host and --port request a server too."""
    result = run(TRACE, "--host", "0.0.0.0", "--no-browser", "-q")

    assert 0 == result.exit_code, result.output
    assert "anyone who has this address" in result.stderr
    assert "not encrypted" in result.stderr
    assert "anyone" not in run(TRACE, "--serve", "--no-browser").stderr


@pytest.mark.heavy
def test_what_is_too_large_for_a_file_is_served(
    served_pages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unasked where it is to be looked at; where a file is asked for, the refusal names --serve."""
    monkeypatch.setattr(page, "MAX_INTERVALS", 5)
    assert 0 == run(TRACE, "--no-browser").exit_code
    assert 1 == len(served_pages)
    result = run(TRACE, "-o", tmp_path / "page.html")
    assert 1 == result.exit_code
    assert "--serve" in result.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
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


@pytest.mark.heavy
def test_a_chart_that_is_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large runs take seconds to lay out."""
    run = training_run(600)
    gantt_chart = chart(run)
    monkeypatch.delattr(page, "chart")

    assert "synthetic" in page.document(run, gantt_chart)
    assert page.served(run, gantt_chart).store.lanes


@pytest.mark.heavy
def test_a_page_that_is_kept_is_served_without_comparing_ranks(tmp_path: Path) -> None:
    """The second look at a large run costs opening it; its page and what that fetches are those of the first."""
    first = page.served(training_run(600, ranks=3), entry=tmp_path / "run.tiles", host=True)
    run = training_run(600, ranks=3)
    again = page.served(run, entry=tmp_path / "run.tiles", host=True)

    assert first.files == again.files
    assert re.sub(r"p\d{4}", "", first.page) == re.sub(r"p\d{4}", "", again.page)
    assert "cross_rank" not in vars(run)
