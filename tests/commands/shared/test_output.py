"""Where results go."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from dptrace.commands.shared import output as module
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.output import (
    NORMAL,
    QUIET,
    OutputFile,
    csv_text,
    emit,
    file_stem,
    json_text,
    print_hint,
    print_notes,
    progress,
    quoted_paths,
    svg_height,
    tables_text,
    write_page,
)
from tests.support.kineto_files import KinetoFile, training_step


def test_text_goes_to_a_file_or_to_stdout(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """As UTF-8 bytes, whatever the terminal's encoding."""
    emit("µ\n", None)
    emit("µ\n", tmp_path / "x.txt")

    assert "µ\n".encode() == capsysbinary.readouterr().out == (tmp_path / "x.txt").read_bytes()
    assert ["x.txt"] == [path.name for path in tmp_path.iterdir()]


def test_tables_in_a_file_are_not_folded() -> None:
    """A line of 130 columns stays one."""
    assert "x" * 130 + "\n" == tables_text(lambda console: console.print("x" * 130))


@pytest.mark.parametrize("command", ["analyze", "view --text", "kernels"])
def test_lines_end_where_their_text_does(command: str, tmp_path: Path) -> None:
    """Tables fill their rows with blanks, which a terminal, a pipe and a file do not need."""
    for rank in (0, 1):
        training_step(training_step(KinetoFile(rank=rank, world_size=2), 1, 0), 2, 100).write(tmp_path / f"{rank}.json")

    lines = CliRunner().invoke(cli, [*command.split(), str(tmp_path)]).stdout.splitlines()

    assert len(lines) > 9
    assert [line.rstrip() for line in lines] == lines


def test_csv_keeps_numbers_and_makes_names_harmless() -> None:
    """Escapes are spelled out, and a spreadsheet computes nothing; missing names stay empty."""
    names = ["a\x1b[2J", None, "=1+1", "+1", "-1", "@A1", "\ta"]
    frame = pd.DataFrame({"name": names, "ns": range(-2, 5), "mixed": [None, -1, 0.5, "-", 1, 2, 3]})

    lines = ["a\\x1b[2J,-2,", ",-1,-1", "'=1+1,0,0.5", "'+1,1,'-", "'-1,2,1", "'@A1,3,2", "'\ta,4,3"]
    assert ["name,ns,mixed", *lines] == csv_text(frame).splitlines()


def test_json_escapes_all_but_printable_ascii() -> None:
    """No name controls the terminal, and a name whose bytes were not UTF-8 can be written."""
    for name in ("µs\x1b\x7f\x9b\u202e", "\udcff", "😀", "a\nb"):
        text = json_text({"name": name})

        assert re.fullmatch("[\n -~]*", text)
        assert {"name": name} == json.loads(text)


def test_json_takes_numbers_of_numpy_and_has_no_nan() -> None:
    """RFC 8259 has none."""
    assert [1.5, 3, None] == json.loads(json_text([np.float64(1.5), np.int64(3), float("nan")]))


@pytest.mark.heavy
def test_ten_thousand_collectives_are_written_fast() -> None:
    """Python's own encoder takes 0.4 s for these, where it indents."""
    rows = [{f"column {i}": i for i in range(30)} for _ in range(10_000)]
    began = time.process_time()
    json_text(rows)
    ours, began = time.process_time() - began, time.process_time()
    json.dumps(rows, indent=1)

    assert ours < (time.process_time() - began) / 2


def test_hints_are_quiet_and_notes_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """-q hides what to do next, never what limits the figures."""
    print_hint("hint", QUIET)
    print_hint("shown\x1b", NORMAL)
    print_notes(["note"])

    assert ("", "shown\\x1b\n! note\n") == tuple(capsys.readouterr())


def test_paths_are_quoted_without_secrets() -> None:
    """A pipe can't be read twice, so the next command names RUN."""
    assert "'a b' c" == quoted_paths(["a b", "c"])
    assert "RUN" == quoted_paths(["-"])
    assert "secret" not in quoted_paths(["https://user:secret@host/x.json"])


def test_a_dash_is_stdout_only_where_it_is_allowed() -> None:
    """And a folder's name is never a file."""
    assert OutputFile(dash=True).convert("-", None, None) is None
    assert Path("x") == OutputFile().convert("x", None, None)
    for text in ("-", "folder/"):
        with pytest.raises(click.BadParameter):
            OutputFile().convert(text, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "analyze RUN --json -o x.csv",
        "view RUN -o x.svg",
        "report RUN -o x.json",
        "diff RUN RUN --csv -o x.json",
        "diff RUN RUN --html x.json",
        "whatif RUN --csv -o x.json",
        "whatif RUN --json -o x.html",
        "critical-path RUN --json -o x.csv",
        "hta RUN overlap --csv -o x.html",
        "predict --params 1e9 --json -o x.svg",
        "explain ring --json -o x.html",
        "links --from links.json --html x.json",
    ],
)
def test_a_file_holds_what_its_name_says(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verb refuses another kind of file before it reads anything, names it, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, line.split())

    assert (2, []) == (done.exit_code, list(tmp_path.iterdir())), done.output
    assert line.split()[-1] in done.output


# Progress on stderr.


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


# Pages and pictures.


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
