"""``dptrace critical-path`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile
from tests.support.replay_files import write_job, write_job_with_modules


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("path_job"))


def critical_path(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["critical-path", "--no-cache", *map(str, arguments)])


def test_it_prints_what_the_path_is(job: Path) -> None:
    """The sentence has the length and the largest kind, the tables kernels and the gain of a tenth less."""
    result = critical_path(job, "--step", "1")

    assert 0 == result.exit_code, result.output
    assert "Step 1 takes 800 µs across ranks; 81 % of its critical path is compute" in result.output
    assert "backward" in result.output


def test_json_has_the_chain(job: Path) -> None:
    """The pieces of the chain and their sum by kind."""
    answer = json.loads(critical_path(job, "--json").stdout)

    assert 800_000 == answer["length_ns"] == sum(answer["by_kind"].values())
    assert {"compute", "transfer"} <= {piece["kind"] for piece in answer["path"]}


def test_csv_has_the_slack_of_each_kernel(job: Path, tmp_path: Path) -> None:
    """A row for each kernel of the step."""
    path = tmp_path / "slack.csv"

    result = critical_path(job, "--step", "2", "--csv", "-o", path)

    assert 0 == result.exit_code, result.output
    assert 1 + 2 * 4 == len(path.read_text().splitlines())


def test_modules_are_in_every_output(tmp_path: Path) -> None:
    """A table in text, rows of CSV, a list in JSON."""
    job = write_job_with_modules(tmp_path)
    text = critical_path(job, "--step", "1").stdout
    rows = critical_path(job, "--step", "1", "--csv", "--by", "module").stdout.splitlines()
    [first, *_] = json.loads(critical_path(job, "--step", "1", "--json").stdout)["modules"]

    assert "By module" in text
    assert "layers.0" in text
    assert rows[0].startswith("module,path_ns,share,compute_ns")
    assert rows[1].startswith("layers.0,4")
    assert "layers.0" == first["module"]
    assert 41_000 == first["gain_ns"]


def test_without_modules_their_table_is_empty(job: Path) -> None:
    """CSV has its header only, and the text no table."""
    assert 1 == len(critical_path(job, "--csv", "--by", "module").stdout.splitlines())
    assert "By module" not in critical_path(job).stdout


@pytest.mark.heavy
def test_a_page_shows_the_step(job: Path, tmp_path: Path) -> None:
    """Instead of text in the terminal; a second time only with --force."""
    page = tmp_path / "path.html"
    result = critical_path(job, "--step", "2", "-o", page)

    assert 0 == result.exit_code, result.output
    assert '"path":{"step":"ProfilerStep#2"' in page.read_text(encoding="utf-8")
    assert 2 == critical_path(job, "-o", page).exit_code
    assert 0 == critical_path(job, "-o", page, "--force").exit_code


def test_a_run_without_steps_of_their_own_is_one(tmp_path: Path) -> None:
    """A trace without marks, and one kernel: the whole recording is the step."""
    KinetoFile().op("aten::mm", 1, 9).kernel("gemm", 20, 60, 5).write(tmp_path / "one.json")
    result = critical_path(tmp_path / "one.json", "--json")

    assert 0 == result.exit_code, result.output
    answer = json.loads(result.stdout)
    assert answer["length_ns"] == sum(answer["by_kind"].values())
    assert 2 == critical_path(tmp_path / "one.json", "--step", "1").exit_code


def test_a_run_without_work_is_refused(tmp_path: Path) -> None:
    """With a message and no traceback."""
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    result = critical_path(tmp_path / "empty.json")

    assert result.exit_code in (1, 2)
    assert "empty.json" in result.output
