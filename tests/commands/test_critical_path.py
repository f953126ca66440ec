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


@pytest.mark.heavy
def test_text_json_and_csv_have_the_chain(job: Path) -> None:
    """The sentence has the length and the largest kind, JSON the pieces, CSV a row for each kernel of the step."""
    text, chosen = critical_path(job), critical_path(job, "--step", "1").stdout
    answer = json.loads(critical_path(job, "--json").stdout)

    assert (0, False) == (text.exit_code, "By module" in text.stdout)
    sentence = " ".join(chosen.split())
    assert "Step 1 takes 800 µs" in sentence
    assert "critical path takes 800 µs on rank" in sentence
    assert "81 % of it is compute" in sentence
    assert 800_000 == answer["length_ns"] == sum(answer["by_kind"].values())
    assert {"compute", "transfer"} <= {piece["kind"] for piece in answer["path"]}
    assert 1 + 2 * 4 == critical_path(job, "--step", "2", "--csv").stdout.count("\n")
    assert 1 == critical_path(job, "--csv", "--by", "module").stdout.count("\n")


@pytest.mark.heavy
def test_modules_are_in_every_output(tmp_path: Path) -> None:
    """A table in text, rows of CSV, a list in JSON."""
    job = write_job_with_modules(tmp_path)
    text, csv, data = (
        critical_path(job, "--step", "1", *form).stdout for form in ([], ["--csv", "--by", "module"], ["--json"])
    )
    [first, *_] = json.loads(data)["modules"]

    assert "By module" in text
    assert csv.startswith("module,path_ns,share,compute_ns")
    assert "\nlayers.0,4" in csv
    assert ("layers.0", 41_000) == (first["module"], first["gain_ns"])


@pytest.mark.heavy
def test_a_page_shows_the_step(job: Path, tmp_path: Path) -> None:
    """Instead of text in the terminal."""
    page = tmp_path / "path.html"
    result = critical_path(job, "--step", "2", "-o", page)

    assert 0 == result.exit_code, result.output
    assert '"path":{"step":"ProfilerStep#2"' in page.read_text(encoding="utf-8")


def test_a_run_without_steps_of_their_own_is_one(tmp_path: Path) -> None:
    """A trace without marks, and one kernel: the whole recording is the step."""
    KinetoFile().op("aten::mm", 1, 9).kernel("gemm", 20, 60, 5).write(tmp_path / "one.json")
    result = critical_path(tmp_path / "one.json", "--json")

    assert 0 == result.exit_code, result.output
    answer = json.loads(result.stdout)
    assert answer["length_ns"] == sum(answer["by_kind"].values())
    assert 2 == critical_path(tmp_path / "one.json", "--step", "1").exit_code
