"""Pictures of pages by an installed Chromium."""

from __future__ import annotations

import struct
from pathlib import Path

import psutil
import pytest

from dptrace.errors import DptraceError
from dptrace.viewers.base.screenshot import find_chromium, screenshot
from tests.support.browser import browser_test


@browser_test
def test_a_page_becomes_a_png_of_its_size(tmp_path: Path) -> None:
    """To the pixel."""
    path = tmp_path / "x.png"
    screenshot("<!DOCTYPE html><body style='background:#1b4f9c'>", path, (640, 480))
    data = path.read_bytes()

    assert data.startswith(b"\x89PNG")
    assert (640, 480) == struct.unpack(">II", data[16:24])


def test_without_chromium_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install one, or write an SVG."""
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "none"))

    assert find_chromium() is None
    with pytest.raises(DptraceError, match=r"apt-get install chromium.*--svg"):
        screenshot("", tmp_path / "x.png", (640, 480))


def test_a_browser_that_draws_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the browser's last lines, and no file is left."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no display >&2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))

    with pytest.raises(DptraceError, match="drew nothing: no display"):
        screenshot("", tmp_path / "x.png", (640, 480))
    assert ["broken"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.heavy
def test_a_browser_that_is_ended_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its processes, and none of its temporary files."""
    (temporary := tmp_path / "temporary").mkdir()
    slow, child = tmp_path / "slow", tmp_path / "child"
    slow.write_text(f"#!/bin/sh\nmktemp\nsleep 100 &\necho $! > {child}\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(slow))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("dptrace.viewers.base.screenshot._PATIENCE", 0.5)

    with pytest.raises(DptraceError, match="could not draw"):
        screenshot("", tmp_path / "x.png", (640, 480))

    assert [] == list(temporary.iterdir())
    number = int(child.read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
