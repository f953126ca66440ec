"""One list of findings, whoever asks: the same order and the same numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.core.units import duration, milliseconds
from tests.support.planted import Plant, planted_job

PLANTS = [Plant(1, "loader", 3), Plant(2, "kernel", 1, layer=5), Plant(0, "operator", 2, [1], layer=1)]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three causes on three ranks."""
    return planted_job(tmp_path_factory.mktemp("one") / "list", PLANTS)


@pytest.fixture(scope="module")
def listed(job: Path) -> list[dict[str, Any]]:
    """The findings in Python that gain 1 % of a step or more."""
    run = dptrace.open(job)
    found: list[Any] = run.findings().to_dict("records")
    return [row for row in found if row["gain_share"] >= 0.01]


def in_order(text: str, parts: list[str]) -> None:
    """Check that texts are there, one after the other."""
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert sorted(places) == places


def plain(text: str) -> str:
    """Return a terminal's or a page's text without line breaks and escapes."""
    text = re.sub(r"\\([^\w\s])", r"\1", text.replace("&amp;", "&").replace("&#34;", '"').replace("&quot;", '"'))
    return re.sub(r"\s+", " ", text)


def test_data_and_agents_have_the_list(
    job: Path, listed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--json, and the tool of the MCP server, to the nanosecond."""
    from dptrace.commands.mcp_tools import Root, Tools
    from dptrace.load.options import ReadOptions

    names = ("kind", "text", "gain_ns", "gain_next_ns", "counted_ns")
    expected = [tuple(row[name] for name in names) for row in listed]
    answer = json.loads(printed("analyze", str(job), "--json"))["findings"][: len(listed)]
    monkeypatch.chdir(job.parent)  # as the server does
    agents = Tools(Root(job.parent), ReadOptions()).findings(job.name)["rows"][: len(listed)]

    assert 3 <= len(listed)
    assert expected == [tuple(row[name] for name in names) for row in answer]
    assert expected[: len(agents)] == [tuple(row[name] for name in names) for row in agents]


def test_texts_have_the_list(job: Path, listed: list[dict[str, Any]]) -> None:
    """The terminal, Markdown and the table of the view: each finding with its figure, in the order of the list."""
    for text in (
        printed("analyze", str(job), "--findings"),
        printed("analyze", str(job), "--markdown"),
    ):
        in_order(plain(text), [f"{milliseconds(row['gain_next_ns'])} ms" for row in listed])
        in_order(plain(text), [row["text"][:30] for row in listed])
    view = printed("view", str(job), "--view", "findings", "--text")
    in_order(plain(view), [f"{milliseconds(row['gain_next_ns'])} ms" for row in listed])


def test_pages_have_the_list(job: Path, listed: list[dict[str, Any]], tmp_path: Path) -> None:
    """The Gantt page, of which the first three stand above the chart, and the report."""
    printed("view", str(job), "-o", str(tmp_path / "page.html"))
    printed("report", str(job), "-o", str(tmp_path / "report.html"))
    page, report = ((tmp_path / name).read_text(encoding="utf-8") for name in ("page.html", "report.html"))

    in_order(plain(page[page.index('id="findings"') :]), [duration(row["gain_next_ns"]) for row in listed[:3]])
    above = plain(report[report.index('<ol class="findings">') :])
    in_order(above, [f"{milliseconds(row['gain_next_ns'])} ms" for row in listed])


def test_advice_and_what_if_agree_with_the_list(job: Path, listed: list[dict[str, Any]]) -> None:
    """Advice has the gains of late ranks as one item; without any straggler, a step gains about as much."""
    checks = json.loads(printed("advise", str(job), "--json"))["checks"]
    answer = json.loads(printed("whatif", str(job), "--no-straggler", "--json"))
    late = [row["gain_next_ns"] for row in listed if row["kind"] == "straggler"]

    assert sum(late) == pytest.approx(next(c["gain_ns"] for c in checks if c["name"] == "straggler"), abs=10)
    assert max(late) < answer["step_gain_ns"] == pytest.approx(sum(late), rel=0.15)
