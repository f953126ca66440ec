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
def test_each_form_has_every_value_and_names_the_best(tmp_path: Path) -> None:
    """A row of the table for each, an answer with all that a single one has, and a sentence on page and chart."""
    drawn = tmp_path / "caps.html", tmp_path / "caps.svg"
    result = whatif(*CAPS, "-o", "-", "-o", drawn[0], "-o", drawn[1])
    content = json.loads(whatif(*CAPS, "--json").stdout)

    assert 0 == result.exit_code, result.output
    assert (1, True) == (result.output.count("(best)"), "bucket-cap-mb" in result.output)
    assert all("The best bucket-cap-mb is" in path.read_text() for path in drawn)
    assert [1, 4, 100] == [point["value"] for point in content["points"]]
    assert content["best"] in (1, 4)
    assert all(point["low_ns"] <= point["predicted_step_ns"] <= point["high_ns"] for point in content["points"])


@pytest.mark.heavy
def test_the_predicted_run_is_drawn_below_the_measured_one(tmp_path: Path) -> None:
    """One page with both runs."""
    result = whatif("--bucket-cap-mb", "1", "-o", tmp_path / "pair.html")

    assert 0 == result.exit_code, result.output
    page = (tmp_path / "pair.html").read_text()
    assert "Predicted, not recorded: buckets of 1 MB" in page
    assert "ddp_4mb_cpu_2ranks (predicted)" in page
