"""Pages and pictures that a command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.commands.shared.output import NORMAL, QUIET
from dptrace.commands.shared.pages import file_stem, svg_height, write_page


def test_a_page_is_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its size is that of the file in UTF-8; --quiet says nothing."""
    path = tmp_path / "page.html"
    write_page(path, lambda: "µ" * 600, NORMAL)
    assert "µ" * 600 == path.read_text(encoding="utf-8")
    assert f"Wrote {path} (1.2 kB)." in capsys.readouterr().err

    write_page(path, lambda: "", QUIET)
    assert ("", "") == (path.read_text(), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("runs/ddp", "ddp"),
        ("runs/my run/", "my_run"),
        ("s3://bucket/runs/ddp/", "ddp"),
        ("/", "run"),
        ("x/..hidden", "hidden"),
        ("a" * 200, "a" * 60),
    ],
)
def test_a_name_is_safe_in_a_file_name(path: str, stem: str) -> None:
    """Without spaces, leading dots, or a secret of a URL."""
    assert stem == file_stem(path)
    assert "secret" not in file_stem("https://host/ddp?token=secret")


def test_a_drawing_keeps_its_proportions() -> None:
    """Twice as wide is twice as high."""
    assert [150, 300] == [svg_height('<svg width="800.0" height="300">', width) for width in (400, 800)]
