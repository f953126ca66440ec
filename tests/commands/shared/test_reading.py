"""Reading a run for a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.options import Selection
from dptrace.commands.shared.output import VERBOSE
from dptrace.commands.shared.reading import Sides, SidesCommand, open_with_progress, side_options
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions
from tests.support.kineto_files import KinetoFile, training_step


def test_files_are_listed_and_the_selection_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -v, each file once it is read."""
    for rank in (0, 1):
        training_step(KinetoFile(rank=rank, world_size=2), 1, 0).write(tmp_path / f"r{rank}.json")
    run = open_with_progress([str(tmp_path)], ReadOptions(cache=False), VERBOSE, Selection(ranks=frozenset({1})))

    assert (1,) == run.ranks
    assert "(2 of 2)" in capsys.readouterr().err


def test_impossible_paths_are_errors() -> None:
    """No traceback for an empty, an overlong or an impossible path."""
    for path in ("", "~nobodyhere/x.json", "a" * 5000):
        result = CliRunner().invoke(cli, ["analyze", path])

        assert result.exit_code in (1, 2), path
        assert "Error" in result.output, path


# The arguments of two sides.


@click.command(cls=SidesCommand)
@side_options
@click.option("--flag", is_flag=True)
def command(sides: Sides, flag: bool) -> None:
    chosen = [selection.steps for selection in sides.selections()]
    click.echo(json.dumps([*sides.recordings(), sides.arguments, chosen, flag]))


def parsed(*arguments: str) -> Any:
    result = CliRunner().invoke(command, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def test_sides_are_what_the_options_list() -> None:
    """All arguments up to the next option; the order of the options does not matter."""
    for arguments, before, after in (
        (("a", "b"), ["a"], ["b"]),
        (("--before", "a", "--after", "b"), ["a"], ["b"]),
        (("--before", "a", "b", "--flag", "--after", "c", "d", "e"), ["a", "b"], ["c", "d", "e"]),
        (("--after", "c", "--before", "a", "b"), ["a", "b"], ["c"]),
        (("--before", "a", "--before", "b", "--after", "c"), ["a", "b"], ["c"]),
    ):
        found = parsed(*arguments)

        assert [before, after] == found[:2], arguments
        assert ("--flag" in arguments) == found[4], arguments
        assert found[:2] == parsed(*found[2])[:2], arguments


def test_steps_are_chosen_for_each_side() -> None:
    """Or with --steps for both."""
    assert [[4, 9], [10, 15]] == parsed("a", "a", "--before-steps", "4:9", "--after-steps", "10:15")[3]
    assert [[4, 9], None] == parsed("a", "b", "--before-steps", "4:9")[3]
    assert [[3, 3], [3, 3]] == parsed("a", "b", "--steps", "3")[3]


def test_sides_that_make_no_comparison_are_refused() -> None:
    """A missing side, a recording given twice, and the same steps on both sides."""
    for arguments in (
        (),
        ("--before", "a"),
        ("a", "--before", "b", "--after", "c"),
        ("--before", "a", "./a", "--after", "b"),
        ("--before", "a", "b", "--after", "b"),
        ("-", "-"),
        ("a", "a", "--before-steps", "4:9"),
        ("a", "a", "--before-steps", "4:9", "--after-steps", "9:12"),
    ):
        with pytest.raises(UsageError):
            parsed(*arguments)
