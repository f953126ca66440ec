"""Reading a run for a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.options import Selection
from dptrace.commands.shared.output import VERBOSE
from dptrace.commands.shared.reading import open_with_progress
from dptrace.load.options import ReadOptions
from tests.support.kineto_files import KinetoFile, training_step


def test_files_are_listed_and_the_selection_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -v, each file once it is read."""
    for rank in (0, 1):
        training_step(KinetoFile(rank=rank, world_size=2), 1, 0).write(tmp_path / f"r{rank}.json")
    run = open_with_progress([str(tmp_path)], ReadOptions(cache=False), VERBOSE, Selection(ranks=frozenset({1})))

    assert (1,) == run.ranks
    assert "(2 of 2)" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["", "~nobodyhere/x.json", "a" * 5000])
def test_impossible_paths_are_errors(path: str) -> None:
    """No traceback for an empty, an overlong or an impossible path."""
    result = CliRunner().invoke(cli, ["analyze", path])

    assert result.exit_code in (1, 2)
    assert "Error" in result.output
