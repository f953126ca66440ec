"""The command line as a whole: verbs, errors, exit codes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace import __version__
from dptrace.commands.shared.main import COMMANDS, ENVIRONMENT, EXIT_CODES, LazyGroup, cli
from tests.support.kineto_files import KinetoFile, training_step


@cache
def help_of(verb: str) -> list[str]:
    return CliRunner().invoke(cli, [verb, "--help"], terminal_width=110).output.splitlines()


MISSING = ("none.json: no such file.",)


@pytest.mark.heavy
def test_help_fits_and_has_a_line_for_each_option() -> None:
    """No line is wider than 110 columns, and none continues the option above it; examples are there to copy."""
    for verb in sorted(COMMANDS):
        lines = help_of(verb)
        pairs = itertools.pairwise(lines)

        assert any("Example" in line for line in lines), verb
        assert any(f"dptrace {verb}" in line for line in lines), verb
        assert not [line for line in lines if len(line) > 110], verb
        assert not [line for above, line in pairs if re.match("  -{1,2}[a-z]", above) and line.startswith(" " * 8)]
        if "Examples:" in lines:  # where the last lines of a long one are seen
            assert lines.index("Options:" if "Options:" in lines else "Other:") < lines.index("Examples:"), verb


def test_help_is_a_command_too() -> None:
    """``dptrace help`` and ``dptrace help VERB`` print what ``--help`` does; a verb that is none is wrong use."""
    run = CliRunner().invoke

    assert run(cli, ["--help"]).output == run(cli, ["help"]).output == run(cli, ["help", "help"]).output
    assert run(cli, ["analyze", "--help"]).output == run(cli, ["help", "analyze"]).output
    assert 2 == run(cli, ["help", "nope"]).exit_code


def test_examples_of_help_can_be_typed() -> None:
    """Every example has only options that exist, with values that they take; nothing runs."""
    assert isinstance(cli, LazyGroup)
    for verb in sorted(COMMANDS):
        typed = [line.partition("  #")[0].strip() for line in help_of(verb)]
        words = [
            shlex.split(re.split(r" \| | && | > [\w.]+$", line)[0])
            for line in typed
            if line.startswith(f"dptrace {verb} ")
        ]
        command = cli.get_command(click.Context(cli), verb)

        assert command is not None, verb
        for line in words:
            with contextlib.suppress(click.exceptions.Exit):  # of --list
                command.make_context(verb, line[2:], parent=click.Context(cli))


def test_help_lists_the_verbs_and_a_way_through_them() -> None:
    """The group's help shows every verb, the usual order of commands, environment variables and exit codes."""
    result = CliRunner().invoke(cli, ["--help"])

    assert all(verb in result.output for verb in COMMANDS)
    assert "dptrace record --mode interleaved --gpus 4" in result.output
    assert all(name in result.output for name in ENVIRONMENT)
    assert all(f"\n  {code} " in result.output for code in EXIT_CODES)


def test_help_lists_each_verb_once_under_the_heading_of_its_group() -> None:
    """Every verb has a line of its own, below its group's heading and above the next one."""
    lines = CliRunner().invoke(cli, ["--help"]).output.splitlines()
    headings: dict[str, list[str]] = {line[:-1]: [] for line in lines if re.fullmatch(r"\S.*:", line)}
    for line in lines:
        if line[:-1] in headings:
            current = headings[line[:-1]]
        elif match := re.match(r"  ([a-z][a-z-]*)  ", line):
            current.append(match[1])

    assert {verb: heading for verb, (heading, _) in COMMANDS.items()} == {
        verb: heading for heading, verbs in headings.items() for verb in verbs
    }


def test_what_is_not_there_is_named() -> None:
    """A verb, with those that there are, or a file."""
    for line, code, facts in (
        ("--version", 0, (__version__,)),
        ("analyse", 2, ("Did you mean analyze?", *COMMANDS)),
        # A missing file is the same mistake everywhere; one that an option names may be wrong use.
        *(
            (f"{verb} none.json", 1, MISSING)
            for verb in (
                "analyze",
                "kernels",
                "predict --memory",
                "predict",
                "advise",
                "whatif",
                "links --from",
                "bench --from",
                "flight",
            )
        ),
        ("hta none.json overlap", 1, MISSING),
        ("diff none.json none.json", 1, MISSING),
        ("predict --params 1e9 --links none.json", 1, MISSING),
        ("sweep --bucket-cap-mb 1,2 --links none.json", 1, MISSING),
        ("bench --script none.json", 2, MISSING),
    ):
        result = CliRunner().invoke(cli, line.split())

        assert (code, [*facts]) == (result.exit_code, [fact for fact in facts if fact in result.output]), line


@pytest.fixture
def closed(trace: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which some files, and one folder, can't be read: tests may run as root, who can read all."""

    def denied(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            if not isinstance(path, int) and Path(path).name.startswith("closed"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *args, **options)

        return call

    folder = Path(trace).parent / "mixed"
    folder.mkdir()
    for name in ("open_rank0.json", "closed_rank1.json"):
        shutil.copy(trace, folder / name)
    (folder / "closed").mkdir()
    for owner, name in ((Path, "open"), (Path, "read_bytes"), (os, "scandir")):
        monkeypatch.setattr(owner, name, denied(getattr(owner, name)))
    monkeypatch.setattr(os, "access", lambda path, *_, **__: not Path(path).name.startswith("closed"))
    return folder


def test_what_may_not_be_read_is_bad_input_in_one_line(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every verb, for a file, a folder or an option's: with what to do, not as wrong use."""
    monkeypatch.chdir(closed)
    for line in (
        *("analyze closed", "kernels closed", "predict --memory closed", "diff closed closed_rank1.json"),
        *("history closed_rank1.json", "flight closed_rank1.json", "links --from closed_rank1.json"),
        *("sweep --bucket-cap-mb 1,2 --links closed_rank1.json", "bench --script closed_rank1.json"),
    ):
        result = CliRunner().invoke(cli, line.split())

        assert (1, 1) == (result.exit_code, result.stderr.count("\n")), result.stderr
        assert "permission denied. Ask its owner" in result.stderr, line
        assert "Errno" not in result.stderr, line


def test_a_file_that_may_not_be_read_is_left_out_of_its_folder(closed: Path) -> None:
    """With a sentence as the note."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(cli, ["analyze", "--no-cache", str(closed)])

    assert 0 == result.exit_code, result.output
    assert "Left out:" in result.output
    assert "closed_rank1.json: can't be read: permission denied. Ask its owner" in result.output
    assert "Errno" not in result.output


def test_a_rank_or_step_that_a_run_lacks_is_wrong_use(trace: str) -> None:
    """Exit code 2, the run and what it has instead."""
    for option in ("--ranks", "--steps"):
        for verb in ("analyze", "kernels", "whatif", "advise"):
            result = CliRunner().invoke(cli, [verb, trace, option, "77"])

            assert 2 == result.exit_code, (option, verb)
            assert trace in result.output, (option, verb)
            assert ("from 0" if option == "--ranks" else "step has a number 77") in result.output, (option, verb)


def test_a_file_in_the_place_of_a_folder_is_wrong_use(tmp_path: Path) -> None:
    """No traceback, and the file stays."""
    path = tmp_path / "there.txt"
    path.write_text("x")
    for verb in ("bench --modes single", "sweep --bucket-cap-mb 1,2"):
        result = CliRunner().invoke(cli, [*verb.split(), "-o", str(path)])

        assert (2, "x") == (result.exit_code, path.read_text()), result.output
        assert str(path) in result.output, verb


def ended(*arguments: str, shell: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the real command in a shell, with what is added after it."""
    words = shlex.join([sys.executable, "-m", "dptrace", *arguments])
    command = ["bash", "-c", f"{words} {shell}"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=300)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json"))


@pytest.mark.slow
def test_output_that_can_not_be_written_is_one_line(trace: str) -> None:
    """A full disk behind standard output gives a sentence and exit code 1, no traceback."""
    for arguments in (["analyze", trace, "--json"], ["view", trace, "--text"]):
        result = ended(*arguments, shell="> /dev/full")
        assert (1, True) == (result.returncode, "can't be written" in result.stderr), result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_and_a_closed_output_is_one_where_something_is_printed(
    trace: str, tmp_path: Path
) -> None:
    """`| head` ends quietly; `>&-` has exit code 1, unless a file takes the answer."""
    for words in ("analyze -q", "kernels -q", "analyze --json"):
        verb, option = words.split()
        for pipe in ("|", "2>&1 |"):
            piped = ended(verb, trace, option, shell=f"{pipe} true; exit ${{PIPESTATUS[0]}}")
            assert 0 == piped.returncode, (words, pipe)
            assert "Traceback" not in piped.stderr
            assert not (pipe == "|" and option == "-q" and piped.stderr), words
    closed = ended("analyze", trace, "-q", shell=">&-")
    assert (1, 1) == (closed.returncode, closed.stderr.count("\n")), closed.stderr
    written = ended("analyze", trace, "--json", "-o", str(tmp_path / "a.json"), shell=">&-")
    assert 0 == written.returncode, written.stderr


@pytest.mark.heavy
def test_no_columns_are_the_usual_ones(trace: str) -> None:
    """Some terminals say that they have none, and a table of that width is empty."""
    for verb in ("analyze", "kernels", "view --text"):
        usual, none = (
            CliRunner(env={"COLUMNS": columns}).invoke(cli, [*verb.split(), trace]) for columns in (None, "0")
        )

        assert 5 < usual.stdout.count("\n"), verb
        assert usual.stdout == none.stdout, verb


@pytest.mark.slow
def test_no_encoding_is_an_error(trace: str, tmp_path: Path) -> None:
    """In ASCII the tables lose a dot or a dash, JSON stays whole; a file's name that is no text is spelled out."""
    path = os.path.join(os.fsencode(tmp_path), b"bad\xff.json")
    Path(os.fsdecode(path)).write_text(training_step(KinetoFile(), 1, 0).text())
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    odd = ended("analyze", "--json", os.fsdecode(path), env=ascii_only)

    assert (0, 0) == (ended("analyze", trace, env=ascii_only).returncode, odd.returncode), odd.stderr
    assert "bad\\udcff.json" in json.loads(odd.stdout)["run"]


@pytest.mark.slow
def test_names_can_not_give_orders_to_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in file names, notes and kernels reach neither stdout nor stderr."""
    folder = tmp_path / "a\x1b]0;title\x07"
    folder.mkdir()
    file = training_step(KinetoFile(), 1, 0)
    file.kernel("nccl\x1b[2J", 91, 92, 63).write(folder / "rank0.json")
    (folder / "run.json").write_text(json.dumps({"notes": ["clear \x1b[2J"]}))
    for option in ([], ["--json"], ["--csv", "--collectives"], ["--collectives"]):
        result = ended("analyze", str(folder), *option)
        assert 0 == result.returncode
        assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" not in ended("analyze", str(folder / "none.json")).stderr
