"""What ``dptrace whatif`` writes for several values, and the page of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.paths import ROOT

RUN = ROOT / "traces" / "ddp_4mb_cpu_2ranks"
CAPS = ("--bucket-cap-mb", "1,4,100")


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["whatif", str(RUN), *map(str, arguments)])


@pytest.mark.heavy
def test_the_table_marks_the_best_value() -> None:
    """A row for each value."""
    result = whatif(*CAPS)

    assert 0 == result.exit_code, result.output
    assert 1 == result.output.count("(best)")
    assert "bucket-cap-mb" in result.output


@pytest.mark.heavy
def test_json_has_an_answer_for_each_value() -> None:
    """With all that a single answer has."""
    content = json.loads(whatif(*CAPS, "--json").stdout)

    assert [1, 4, 100] == [point["value"] for point in content["points"]]
    assert content["best"] in (1, 4)
    assert all(point["low_ns"] <= point["predicted_step_ns"] <= point["high_ns"] for point in content["points"])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["caps.html", "caps.svg"])
def test_a_page_and_a_chart_are_written(tmp_path: Path, name: str) -> None:
    """Both name the best value."""
    result = whatif(*CAPS, "-o", tmp_path / name)

    assert 0 == result.exit_code, result.output
    assert "The best bucket-cap-mb is" in (tmp_path / name).read_text()


@pytest.mark.heavy
def test_the_predicted_run_is_drawn_below_the_measured_one(tmp_path: Path) -> None:
    """One page with both runs."""
    result = whatif("--bucket-cap-mb", "1", "-o", tmp_path / "pair.html")

    assert 0 == result.exit_code, result.output
    page = (tmp_path / "pair.html").read_text()
    assert "Predicted, not recorded: buckets of 1 MB" in page
    assert "ddp_4mb_cpu_2ranks (predicted)" in page
