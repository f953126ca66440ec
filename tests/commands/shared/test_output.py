"""Where results go."""

from __future__ import annotations

import io
import json
import re
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
    file_stem,
    json_text,
    print_hint,
    print_notes,
    print_written,
    progress,
    quoted_paths,
    tables_text,
)
from tests.support.kineto_files import KinetoFile, training_step


@pytest.mark.heavy
def test_lines_end_where_their_text_does(tmp_path: Path) -> None:
    """Tables fill their rows with blanks, which a terminal, a pipe and a file do not need."""
    for rank in (0, 1):
        training_step(training_step(KinetoFile(rank=rank, world_size=2), 1, 0), 2, 100).write(tmp_path / f"{rank}.json")
    assert "x" * 130 + "\n" == tables_text(lambda console: console.print("x" * 130))  # none is folded
    for command in ("analyze", "view --text", "kernels"):
        lines = CliRunner().invoke(cli, [*command.split(), str(tmp_path)]).stdout.splitlines()

        assert len(lines) > 9, command
        assert [line.rstrip() for line in lines] == lines, command


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
    # RFC 8259 has no NaN.
    assert [1.5, 3, None] == json.loads(json_text([np.float64(1.5), np.int64(3), float("nan")]))
    # A name that is no UTF-8 takes another way.
    assert '"\\udce9"' in json_text(["\udce9", np.float64("inf")])
    assert "Infinity" not in json_text(["\udce9", np.float64("inf")])


def test_hints_are_quiet_and_notes_are_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-q hides what to do next and what was written, never what limits the figures, which is as wide as COLUMNS say."""
    (tmp_path / "page.html").write_text("µ" * 600, encoding="utf-8")
    for verbosity, hint in ((QUIET, "hint"), (NORMAL, "shown\x1b")):
        print_hint(hint, verbosity)
        print_written(tmp_path / "page.html", verbosity)
    print_notes(["note"])

    written = f"Wrote {tmp_path / 'page.html'} (1.2 kB)."
    assert ("", f"shown\\x1b\n{written}\n! note\n") == tuple(capsys.readouterr())
    monkeypatch.setenv("COLUMNS", "30")
    print_notes(["a longer note " * 3])
    assert "! a longer note a longer note\n  a longer note\n" == capsys.readouterr().err


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


def test_a_file_holds_what_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verb refuses another kind of file before it reads anything, names it, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    for line in (
        "analyze RUN --json -o x.csv",
        "view RUN -o x.txt",
        "report RUN -o x.json",
        "diff RUN RUN --csv -o x.json",
        "diff RUN RUN -o x.html -o x.svg",
        "whatif RUN --csv -o x.json",
        "whatif RUN --json -o x.html",
        "critical-path RUN --json -o x.csv",
        "hta RUN overlap --csv -o x.html",
        "predict --params 1e9 --json -o x.svg",
        "explain ring --json -o x.html",
        "links --from links.json -o x.svg",
    ):
        done = CliRunner().invoke(cli, line.split())

        assert (2, []) == (done.exit_code, list(tmp_path.iterdir())), done.output
        assert line.split()[-1] in done.output, line


# Progress on stderr.


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
@pytest.mark.parametrize("measured", [True, False])
def test_progress_shows_elapsed_and_remaining_time(
    measured: bool, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal and in a log; the remaining time only where the fraction is known; nothing with --quiet."""
    stream.truncate(stream.seek(0))
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(module, "_DELAY_S", 0.0)
    monkeypatch.setattr(module, "_LINE_S", 0.001)
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


def test_a_name_is_safe_in_a_file_name() -> None:
    """Without spaces, leading dots, or a secret of a URL."""
    for path, stem in (
        ("runs/ddp", "ddp"),
        ("runs/my run/", "my_run"),
        ("s3://bucket/runs/ddp/", "ddp"),
        ("/", "run"),
        ("x/..hidden", "hidden"),
        ("a" * 200, "a" * 60),
    ):
        assert stem == file_stem(path), path
    assert "secret" not in file_stem("https://host/ddp?token=secret")
