"""``dptrace view`` as a user runs it."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks in a folder, a cache of our own, and no display."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "run"
    place.mkdir()
    for rank in (0, 1):
        file = training_step(training_step(KinetoFile(rank=rank, world_size=2), 4, 0), 5, 100)
        file.write(place / f"r{rank}.json.gz")
    return place


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what a browser is asked to open; it says yes."""
    addresses: list[str] = []

    def open_(address: str) -> bool:
        addresses.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    return addresses


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["view", *map(str, arguments)])


@pytest.mark.heavy
def test_a_page_is_written_where_asked(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    """It says what it wrote, opens nothing, and leaves no other file."""
    page = tmp_path / "out.html"
    result = run(folder, "-o", page)

    assert 0 == result.exit_code, result.output
    assert f"Wrote {page} (" in result.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [] == opened
    assert {"out.html", "run"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.heavy
def test_three_runs_are_a_page(folder: Path, tmp_path: Path) -> None:
    """Each has its letter; the terminal draws two."""
    page, against = tmp_path / "three.html", ("--against", folder, "--against", folder)
    assert 0 == run(folder, *against, "-o", page).exit_code
    assert 6 == page.read_text(encoding="utf-8").count(" \\u00b7 rank ")
    assert 2 == run(folder, *against, "--text").exit_code


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder and the display are told for Linux here")
def test_without_a_place_it_goes_to_the_cache(
    folder: Path, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file for each run; without a display, how to view it."""
    monkeypatch.delenv("DPTRACE_CACHE", raising=False)
    first, second = run(folder), run(folder)
    pages = list((tmp_path / "cache" / "dptrace" / "pages").iterdir())

    assert 0 == first.exit_code == second.exit_code
    assert 1 == len(pages)
    assert pages[0].name.startswith("run-")
    assert str(pages[0]) in first.output
    assert f"dptrace view {folder} --text" in first.output
    assert [] == opened


@pytest.mark.heavy
def test_with_a_display_it_is_opened(folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--no-browser prevents it; one that does not open is reported."""
    monkeypatch.setenv("DISPLAY", ":0")
    assert "No browser" not in run(folder).output
    assert 1 == len(opened)
    assert opened[0].startswith("file://")

    run(folder, "--no-browser")
    assert 1 == len(opened)
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert "No browser could be opened here." in run(folder).output


def test_text_draws_in_the_terminal(folder: Path, tmp_path: Path) -> None:
    """No page then."""
    result = run(folder, "--text")

    assert 0 == result.exit_code, result.output
    assert "rank 1" in result.output
    assert not (tmp_path / "cache").exists()


@pytest.mark.heavy
def test_ranks_and_steps_can_be_chosen(folder: Path, tmp_path: Path) -> None:
    """The page then holds these, and says so."""
    page = tmp_path / "part.html"
    result = run(folder, "--ranks", "1", "--steps", "5", "-o", page)
    text = page.read_text(encoding="utf-8")

    assert 0 == result.exit_code, result.output
    assert "1 of 2 ranks" in text
    assert "Only step 5 is selected" in text
    assert "ProfilerStep#4" not in text


@pytest.mark.heavy
def test_a_critical_path_is_drawn_on_the_page(folder: Path, tmp_path: Path) -> None:
    """That of the selected step; a page without the option has none."""
    marked, plain = tmp_path / "path.html", tmp_path / "plain.html"
    results = [run(folder, "--critical-path", "--steps", "5", "-o", marked), run(folder, "-o", plain)]

    assert [0, 0] == [result.exit_code for result in results], results[0].output
    assert '"path":{"step":"ProfilerStep#5"' in marked.read_text(encoding="utf-8")
    assert '"path":{"step"' not in plain.read_text(encoding="utf-8")
