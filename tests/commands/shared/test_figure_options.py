"""``dptrace view --figure``."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.browser import browser_test

RUN = Path(__file__).parents[3] / "traces" / "ddp_cpu_2ranks"


def view(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["view", str(RUN), *map(str, arguments)])


def test_an_svg_has_the_chosen_ranks_and_steps(tmp_path: Path) -> None:
    """One step of all ranks where none are chosen."""
    whole, part = tmp_path / "whole.svg", tmp_path / "part.svg"
    written = view("--figure", whole, "--annotate")
    chosen = view("--figure", part, "--ranks", "1", "--figure-width", 480)

    assert (0, 0) == (written.exit_code, chosen.exit_code), (written.output, chosen.output)
    assert f"Wrote {whole} (" in written.output
    assert {"rank 0", "rank 1"} <= set(re.findall(r">(rank \d+)", whole.read_text()))
    assert {"rank 1"} == set(re.findall(r">(rank \d+)", part.read_text()))
    assert "480" == ET.fromstring(part.read_text()).get("width")


@browser_test
def test_a_png_is_three_times_as_dense_and_a_pdf_has_one_page(tmp_path: Path) -> None:
    """The PDF's text is text."""
    png, pdf = tmp_path / "x.png", tmp_path / "x.pdf"

    assert 0 == view("--figure", png).exit_code
    assert 0 == view("--figure", pdf).exit_code
    assert 3 * 640 == struct.unpack(">I", png.read_bytes()[16:20])[0]
    assert 1 == len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert b"/Font" in pdf.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--annotate",), "add --figure"),
        (("--figure-width", 500), "add --figure"),
        (("--figure", "x.gif"), "svg, .pdf or .png"),
        (("--figure", "x.svg", "--text"), "leave"),
        (("--figure", "x.svg", "--svg", "y.svg"), "leave"),
        (("--figure", "x.svg", "--figure-width", 12), "2,000"),
        (("--figure", "x.svg", "--against", RUN), "leave"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: tuple[object, ...], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any work, with what to do instead."""
    monkeypatch.chdir(tmp_path)
    refused = view(*arguments)

    assert 2 == refused.exit_code
    assert advice in " ".join(refused.output.split())
    assert [] == list(tmp_path.iterdir())


def test_a_figure_is_not_overwritten(tmp_path: Path) -> None:
    """Without --force."""
    path = tmp_path / "x.svg"
    path.write_text("mine")

    assert 2 == view("--figure", path).exit_code
    assert "mine" == path.read_text()
    assert 0 == view("--figure", path, "--force").exit_code
