"""The command line as a whole: verbs, errors, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace import __version__
from dptrace.cli import COMMANDS, cli


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    """Help of each verb explains it and ends in something to copy."""
    result = CliRunner().invoke(cli, [verb, "--help"])

    assert 0 == result.exit_code
    assert "Example" in result.output
    assert f"dptrace {verb}" in result.output


def test_help_lists_the_verbs_and_a_way_through_them() -> None:
    """The group's help shows every verb and the usual order of commands."""
    result = CliRunner().invoke(cli, ["--help"])

    assert all(verb in result.output for verb in COMMANDS)
    assert "dptrace record --mode interleaved --gpus 4" in result.output


def test_an_unknown_verb_names_the_known_ones() -> None:
    """Exit code 2 and the list."""
    result = CliRunner().invoke(cli, ["analyse"])

    assert 2 == result.exit_code
    assert "analyze" in result.output


def test_bad_input_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """A file that is no trace gives a sentence and no traceback."""
    path = tmp_path / "a.json"
    path.write_text("{}")

    result = CliRunner().invoke(cli, ["analyze", str(path)])

    assert 1 == result.exit_code
    assert result.output.startswith(f"Error: {path}: has no traceEvents")


def test_version() -> None:
    """--version prints it."""
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output
