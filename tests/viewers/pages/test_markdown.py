"""A run as Markdown, for a ticket or a prompt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.pages.markdown import document
from tests.support.builders import TimelineBuilder
from tests.support.paths import ROOT

RUN = ROOT / "traces" / "interleaved_cpu_2ranks"


def _rank(rank: int, late: int) -> Timeline:
    """Return three steps of many kernels with hostile names; *late* ns pass before the all-reduce of each."""
    build = TimelineBuilder(rank, bounds=(0, 1_000_000, 2_000_000, 3_000_000))
    for step in range(3):
        at = step * 1_000_000
        for k in range(30):
            build.compute(at + k * 10_000, at + k * 10_000 + 9_000, name=f"k{k}`*|[x]#" + "n" * 99)
        build.all_reduce(at + 300_000 + late, at + 900_000)
    return build.build()


@pytest.mark.heavy
def test_it_has_at_most_sixty_lines_and_names_the_notable_rank() -> None:
    """Of many ranks, kernels and notes; names are no markup, and none is a heading."""
    ranks = tuple(_rank(rank, 500_000 if rank == 33 else 0) for rank in range(40))
    text = document(Run("a|<i>run", ranks, notes=tuple(f"note *{number}" for number in range(50)), world_size=40))
    lines = text.splitlines()

    assert 40 < len(lines) <= 60
    headings = [line for line in lines if line.startswith("#")]
    assert ["## Findings", "## Mean step of each rank", "## Kernels"] == headings[1:]
    assert headings[0].startswith("# a\\|&lt;i>run · 40 ranks")
    assert 8 == sum(line.startswith("| rank ") for line in lines[1:]) - 1
    assert any(line.startswith("| rank 33 (most idle) |") for line in lines)
    assert "k0\\`\\*\\|\\[x]#nnn" in text
    assert ("- note \\*7", True) == (lines[-2], lines[-1].endswith(" more notes"))


def test_the_limit_counts_findings_and_rows(tmp_path: Path) -> None:
    """--limit gives each list that many entries; a file named .md holds what --markdown prints."""
    asked = CliRunner().invoke(cli, ["analyze", str(RUN), "--markdown", "--limit", "1"])
    lines = asked.stdout.splitlines()
    written = CliRunner().invoke(cli, ["analyze", str(RUN), "-o", str(tmp_path / "run.md"), "--limit", "1"])

    assert (0, 0) == (asked.exit_code, written.exit_code)
    assert 1 == sum(line[:1].isdigit() for line in lines)
    assert 2 * 3 == sum(line.startswith("|") for line in lines)
    assert any(re.fullmatch(r"- \d+ more findings?", line) for line in lines)
    assert asked.stdout == (tmp_path / "run.md").read_text(encoding="utf-8")


def test_a_limit_without_short_markdown_is_refused() -> None:
    """It would be ignored."""
    for more in (["--json"], ["--markdown", "--all"], ["--memory", "--markdown"]):
        refused = CliRunner().invoke(cli, ["analyze", str(RUN), "--limit", "3", *more])

        assert (2, "") == (refused.exit_code, refused.stdout), more
        assert "--limit" in refused.stderr, more
