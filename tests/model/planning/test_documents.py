"""Worked numbers of the five documents that dptrace grew from, by its formulas; docs/documents.md lists them.

Where a document contradicts itself or the hardware, the right value is expected and the docstring says what it has.
"""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import predict_report
from dptrace.model.planning.search import layouts, plans
from dptrace.model.scaling import communication_fraction, gustafson_efficiency
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import perceptron
from dptrace.model.training.step import traffic
from dptrace.record.options.modes import WIDTHS
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "documents.md"


@pytest.mark.heavy
def test_the_guides_node_without_nvlink() -> None:
    """Llama 3 8B on eight RTX 4090: the sentence names the plan that the search finds, and the step of TP 8."""
    found = predict_report(Description(model="llama3-8b", gpu="rtx4090", gpus=8))
    split = next(one for one in found["candidates"] if one["layout"] == "TP 8")
    guide = (ROOT / "docs" / "guides" / "plan.md").read_text(encoding="utf-8")
    sentence = next(line for line in guide.splitlines() if "eight RTX 4090" in line)

    assert f"{found['layout']} is the fastest that fits with {found['step_s']:.1f} s a step" in sentence
    assert f"TP 8 takes {split['step_s']:.1f} s, {split['exposed_s']:.2f} s of it for messages" in guide


def plan(**described: object) -> Plan:
    one = Description(**{"micro_batch": 1, "recompute": "none", **described})  # type: ignore[arg-type]
    return plans(one, next(layouts(one)))[0]


@pytest.mark.parametrize(("name", "millions"), [("small", 1.5), ("medium", 8.4), ("large", 35.2), ("xlarge", 52.0)])
def test_the_workshops_models(name: str, millions: float) -> None:
    """Workshop, table of models (the comments in its code say 1.2, 7.2 and 35 million)."""
    assert millions == round(perceptron(WIDTHS[name]).parameters / 1e6, 1)


def test_the_efficiency_of_a_communication_fraction() -> None:
    """Data Parallelism page: with half of a step in communication, efficiency falls below 0.6 from 6 GPUs on."""
    half = communication_fraction(0.5, 1.0)

    assert gustafson_efficiency(half, 5) >= 0.6 > gustafson_efficiency(half, 6)


@pytest.mark.heavy
def test_the_gospels_table() -> None:
    """AllReduce Gospel, simulator: with a fixed batch, the GPUs together take longer the more there are."""
    described = Description(
        params=70e9, gpus=64, gpu="a100", link="nvlink3", precision="fp32", batch=256, seq=2048, strategy="ddp",
        gpus_per_node=64, micro_batch=1, recompute="none",
    )  # fmt: skip
    rows = predict_report(described)["scaling"][:7]
    shares = [step["strong_step_s"] * step["gpus"] for step in rows]

    assert [1, 2, 4, 8, 16, 32, 64] == [row["gpus"] for row in rows]
    assert shares == sorted(shares)
    assert 1 == rows[0]["strong_efficiency"] >= rows[-1]["strong_efficiency"]


def test_the_guides_gpt3() -> None:
    """Guide, section 12.1: 50 MB between stages, and 44 GB of gradients for each of 8."""
    one = plan(params=175e9, layers=96, hidden=12_288, gpus=64, strategy="3d", tp=1, pp=8, batch=256)
    found = {each.what: each for each in traffic(one)}

    assert pytest.approx(50.3, abs=0.1) == found["micro-batches"].bytes / 1e6
    gradients = found["gradients"].bytes * found["gradients"].calls
    assert pytest.approx(44e9, rel=0.02) == gradients


ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| Item", "| ---"))
]
COMMAND = re.compile(r"`(dptrace (?:predict|memory|advise|explain) [^`]*)`")


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if "`" in row[2]], ids=lambda row: row[0][:30])
def test_a_rows_command_prints_its_number(row: list[str]) -> None:
    """docs/documents.md is a promise: what a row says that its commands print stands in their output."""
    _, commands, printed, _ = row
    found = ""
    for command in COMMAND.findall(commands):
        done = CliRunner(env={"COLUMNS": "400"}).invoke(cli, shlex.split(command)[1:])
        assert 0 == done.exit_code, done.output
        found += " ".join(done.output.split())

    assert [] == [text for text in re.findall("`([^`]*)`", printed) if text not in found]


def test_the_list_is_whole() -> None:
    """Each row has a known status; each planner's command says what it prints, and each test that is named exists."""
    named = {name for row in ROWS for name in re.findall(r"tests/[\w/]+\.py", row[2])}
    known = ("computed", "corrected", "measured", "explained", "not computed", "prose")
    planned = re.compile(r"`dptrace (predict|memory|advise) (?![^`]* -o )(?!runs/)")

    assert len(ROWS) > 60
    assert not [name for name in named if not (ROOT / name).exists()]
    assert not [row for row in ROWS if len(row) != 4 or not row[3].startswith(known)]
    assert not [row for row in ROWS if planned.match(row[1]) and "`" not in row[2]]
