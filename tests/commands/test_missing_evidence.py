"""Every command on recordings that lack something: an answer or a sentence, and no figure that is not known."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.evidence import REMOVALS
from tests.support.kineto_files import KinetoFile, training_step


@cache
def lacking(removal: str, folder: Path) -> Path:
    """Write two ranks of three steps each without a kind of evidence."""
    folder /= removal
    folder.mkdir()
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        for step in range(3):
            training_step(file, step, 100 * step)
        for event in file.events:
            event |= {"ts": 1000 * event["ts"], "dur": 1000 * event["dur"]}
        file.events = REMOVALS[removal](file.events)
        file.write(folder / f"rank{rank}.json")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recordings are written, each once."""
    return tmp_path_factory.mktemp("lacking")


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(cli, [*map(str, arguments)])


@pytest.mark.slow
def test_a_command_answers_or_says_what_is_unknown(folder: Path) -> None:
    """There is no traceback; what refuses says because of what."""
    for removal in ("launches", "50 % of kernels", "operators", "marks"):
        for command in (
            ("analyze", "--all"),
            ("analyze", "--csv"),
            ("analyze", "--collectives"),
            ("kernels", "--by", "phase"),
            ("whatif", "--bandwidth", "2x"),
            ("critical-path",),
            ("advise",),
            ("predict",),
            ("history",),
            ("view", "--text"),
            *(("view", "--view", view, "--text") for view in ("idle", "summary", "kernels")),
        ):
            verb, *options = command
            result = run(verb, lacking(removal, folder), *options)

            assert isinstance(result.exception, SystemExit | None), result.exception
            assert 0 == result.exit_code or "Error: " in result.output, (removal, command)


@pytest.mark.heavy
def test_a_phase_that_is_not_known_is_no_zero(tmp_path: Path) -> None:
    """In tables of steps, on pages, and of kernels; compute is known."""
    folder = lacking("launches", tmp_path)
    kernels = json.loads(run("kernels", folder, "--json").stdout)["rows"]
    breakdown = run("view", folder, "--view", "breakdown", "--text").output
    run("report", folder, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")

    assert {None} == {row[name] for row in kernels for name in ("forward_ns", "other_ns", "main_phase")}
    assert "forward" not in breakdown
    assert "compute" in breakdown
    assert "Compute, phase unknown" in page
    assert "Other compute" not in page.partition("Definitions")[0]
