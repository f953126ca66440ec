"""``dptrace view A --against B``, and ``--text`` on a terminal, as a user runs them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.pictures import png_test, size_of


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two runs, the second one with a step more, a cache of our own, and no display."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, ranks, steps in (("naive", 2, 2), ("other", 1, 3)):
        (tmp_path / name).mkdir()
        for rank in range(ranks):
            file = KinetoFile(rank=rank, world_size=ranks)
            for step in range(steps):
                file = training_step(file, 4 + step, 100 * step)
            file.write(tmp_path / name / f"r{rank}.json.gz")
    return tmp_path / "naive", tmp_path / "other"


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, ["view", *map(str, arguments)])


@pytest.mark.heavy
def test_two_runs_are_written_as_one_page(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Aligned by step unless asked otherwise; what one of them lacks is said on it."""
    a, b = folders
    pages = []
    for options in ([], ["--align", "step"], ["--align", "start"]):
        result = run(a, "--against", b, "-o", tmp_path / "page.html", "--force", *options)
        assert 0 == result.exit_code, result.output
        pages.append((tmp_path / "page.html").read_text(encoding="utf-8"))

    assert [True, True, False] == ['"slots":' in page for page in pages]
    assert "A has 2 steps and B has 3" in pages[0]


@pytest.mark.heavy
def test_each_pair_has_its_place_in_the_cache(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A run's own page is not overwritten by that of two; and the way to draw both in the terminal is told."""
    a, b = folders
    alone, both = run(a), run(a, "--against", b)

    assert 0 == alone.exit_code == both.exit_code
    assert 2 == len(list((tmp_path / "cache" / "pages").iterdir()))
    assert f"dptrace view {a} --against {b} --text" in both.stderr


@pytest.mark.heavy
def test_two_runs_stand_over_each_other_in_the_terminal(folders: tuple[Path, Path]) -> None:
    """In 80 columns when piped, in COLUMNS where that is set; without a colour."""
    a, b = folders
    usual, narrow = run(a, "--against", b, "--text"), run(a, "--against", b, "--text", COLUMNS="50")

    assert 0 == usual.exit_code == narrow.exit_code
    assert "\x1b" not in usual.stdout
    rows = [line for line in usual.stdout.splitlines() if re.match(r"[AB] rank \d  [^ ]*[FBX]", line)]
    assert ["A rank 0", "A rank 1", "B rank 0"] == [row[:8] for row in rows]
    assert {80} == {len(row) for row in rows}
    assert max(map(len, narrow.stdout.splitlines())) <= 50


@pytest.mark.heavy
@png_test
def test_two_runs_are_a_picture_for_slides(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """As SVG, and as PNG as large as asked for, with the rows of both."""
    svg, png = tmp_path / "pair.svg", tmp_path / "pair.png"
    result = run(folders[0], "--against", folders[1], "-o", svg, "--png", png, "--size", "900x500")
    names = re.findall(r">([AB] · rank \d) ", svg.read_text(encoding="utf-8"))

    assert 0 == result.exit_code, result.output
    assert (900, 500) == size_of(png.read_bytes())
    assert ["A · rank 0", "A · rank 1", "B · rank 0"] == names


def on_a_terminal(folder: Path, width: int, **environment: str) -> str:
    """Give what a terminal of some width and no scroll gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "COLUMNS")}
    command = [sys.executable, "-m", "dptrace", "view", str(folder), "--text"]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=kept | environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # what Linux says once nobody has the other end
            break
        if not read:
            break
        found += read
    os.close(ours)
    assert 0 == process.wait(30)
    return found.decode()


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(
    ("environment", "coloured", "width"),
    [
        ({"TERM": "xterm-256color"}, r"\x1b\[38;5;\d+;48;5;\d+m", 100),
        ({"TERM": "linux"}, r"\x1b\[37;44m", 64),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "", 100),
        ({"TERM": "dumb"}, "", 80),
        ({"TERM": "linux", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, r"\x1b\[37;44m", 90),
    ],
)
def test_every_terminal_gets_what_it_can_show(
    folders: tuple[Path, Path], environment: dict[str, str], coloured: str, width: int
) -> None:
    """Colours it has and none else, its own width, and no sign that its encoding lacks."""
    text = on_a_terminal(folders[0], width, **environment)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    row = next(line for line in plain.splitlines() if line.startswith("rank 0  "))

    assert width == len(row)
    assert bool(coloured) == bool(re.search(r"\x1b\[[\d;]*[34]\d", text))
    if coloured:
        assert re.search(coloured, text)
    if "LC_ALL" in environment:
        assert plain.isascii()
