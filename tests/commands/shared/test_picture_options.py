"""``dptrace view`` with --view, --svg, --png and --size."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.picture_options import parse_size
from dptrace.errors import UsageError
from dptrace.viewers.views.names import NAMES
from tests.support.browser import browser_test
from tests.support.kineto_files import KinetoFile, training_step


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


@pytest.mark.parametrize("name", ["new.png", "new.svg", "new.PDF"])
def test_a_picture_named_as_the_page_is_refused_with_the_option_that_writes_it(name: str) -> None:
    """Before the run is read, and with the name as it was given."""
    refused = run("nowhere", "-o", name)
    option = refused.output.split(" use: ")[-1].split()[0]

    assert 2 == refused.exit_code, refused.output
    assert f"{option} {name}" in refused.output
    assert f" {option} PATH" in run("--help").output


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_view_is_a_page_an_svg_and_a_text(name: str, folder: Path, tmp_path: Path) -> None:
    """Each by its own option."""
    page, drawn = tmp_path / "x.html", tmp_path / "x.svg"
    written = run(folder, "--view", name, "-o", page)
    pictured = run(folder, "--view", name, "--svg", drawn)
    text = run(folder, "--view", name, "--text")

    assert (0, 0, 0) == (written.exit_code, pictured.exit_code, text.exit_code), (written.output, pictured.output)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "svg" in ET.fromstring(drawn.read_text(encoding="utf-8")).tag
    assert "2 ranks" in drawn.read_text(encoding="utf-8")
    assert f"Wrote {drawn} (" in pictured.output
    assert "rank" in text.output or "no communication" in text.output or "find" in text.output.lower()


@browser_test
@pytest.mark.parametrize(("name", "size"), [("gantt", "800x300"), ("breakdown", None)])
def test_a_png_is_drawn_by_chromium(name: str, size: str | None, folder: Path, tmp_path: Path) -> None:
    """Of the requested size, else as wide as a slide and as high as needed."""
    path = tmp_path / "x.png"
    result = run(folder, "--view", name, "--png", path, *(["--size", size] if size else []))
    data = path.read_bytes()

    assert 0 == result.exit_code, result.output
    width, height = struct.unpack(">II", data[16:24])
    assert ("do not fit every row" in result.output) == bool(size)
    assert (800, 300) == (width, height) if size else width == 1600
    assert {"run", "x.png"} == {path.name for path in tmp_path.iterdir()}


def test_without_chromium_nothing_is_left(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install; exit code 1."""
    monkeypatch.setenv("CHROMIUM", "/none")
    result = run(folder, "--png", tmp_path / "x.png")

    assert 1 == result.exit_code
    assert "--svg" in result.stderr
    assert {"run"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--view", "pie"], "'gantt', 'summary'"),
        (["--size", "10x10", "--png", "x.png"], "for example 1600x900"),
        (["--size", "800x600"], "add --png FILE"),
        (["--png", "x.jpg"], "name the file .png"),
        (["--svg", "x.PNG"], "name the file .svg"),
        (["--svg", "x.svg", "--text"], "leave -o and --text out"),
        (["--svg", "x.svg", "-o", "x.html"], "leave -o and --text out"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, arguments: list[str], words: str) -> None:
    """Before anything is read, with what to do."""
    result = run(folder / "missing", *arguments)

    assert 2 == result.exit_code
    assert words in result.stderr


def test_nothing_is_overwritten_unasked(folder: Path, tmp_path: Path) -> None:
    """Pictures need --force too."""
    path = tmp_path / "x.svg"
    path.write_text("mine")

    assert 2 == run(folder, "--svg", path).exit_code
    assert "mine" == path.read_text()
    assert 0 == run(folder, "--svg", path, "--force").exit_code


@pytest.mark.parametrize("text", ["", "1600", "1600x", "99999x900", "x900", "1600x100"])
def test_other_sizes_are_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="1600x900"):
        parse_size(text)


def test_sizes_are_read() -> None:
    """With an x, or a times sign."""
    assert (1600, 900) == parse_size("1600x900") == parse_size(" 1600 × 900 ")
