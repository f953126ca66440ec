"""``dptrace baseline``, and ``dptrace diff`` against one, as a CI job runs them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.comparison import baseline
from dptrace.comparison.compare import compare
from dptrace.comparison.limits import parse
from dptrace.viewers.pages.ci import junit_xml, markdown
from tests.support.jobs import job
from tests.support.paths import TRACES

NAIVE, INTERLEAVED = str(TRACES / "naive_cpu_2ranks"), str(TRACES / "interleaved_cpu_2ranks")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.heavy
def test_a_job_saves_a_baseline_and_compares_with_it(project: Path) -> None:
    """Saved, listed, chosen; a limit that is exceeded ends with 3, and the test cases and the page say so."""
    assert 0 == run("baseline", "save", "main", NAIVE).exit_code
    assert 2 == run("diff", INTERLEAVED).exit_code
    assert 0 == run("baseline", "use", "main").exit_code
    (row,) = json.loads(run("baseline", "list", "--json").stdout)["baselines"]
    assert ("main", True, 1, 4, 2) == tuple(row[key] for key in ("name", "in_use", "recordings", "steps", "ranks"))

    limits = ("--fail-if", "overlapped_comm > +5%", "--fail-if", "wall > +50%", "--fail-if", "mfu < 1%")
    found = run("diff", INTERLEAVED, *limits, "--json", "-o", "-", "-o", "diff.xml", "-o", "diff.html")
    suite = ElementTree.parse(project / "diff.xml").getroot()[0]
    answers = {case.get("name"): case[0].tag for case in suite}

    assert 3 == found.exit_code, found.output
    assert ("3", "1", "1") == tuple(suite.get(key) for key in ("tests", "failures", "skipped"))
    assert {"overlapped_comm > +5%": "failure", "wall > +50%": "system-out", "mfu < 1%": "skipped"} == answers
    assert "no Gantt chart" in (project / "diff.html").read_text()
    plain = json.loads(run("diff", NAIVE, INTERLEAVED, "--json").stdout)
    assert plain["figures"] == json.loads(found.stdout)["figures"]
    assert 0 == run("diff", "--baseline", ".dptrace/baselines/main.json", "--after", INTERLEAVED).exit_code
    assert 2 == run("baseline", "save", "main", NAIVE).exit_code
    assert 0 == run("baseline", "save", "main", NAIVE, "--force").exit_code


@pytest.mark.heavy
def test_names_from_traces_can_not_break_a_report() -> None:
    """Neither the XML nor the Markdown: names of steps, groups and runs come from strangers."""
    hostile = "<b>|\x00\x1b[31m\ufffe"
    found = compare(job(path=hostile, metadata={"mode": hostile}), job(seed=1, factors={"backward": 1.2}))
    results = [parse("wall > +3%").check(found), parse("mfu < 1%").check(found)]
    case = ElementTree.fromstring(junit_xml(found, results))[0][0]

    assert "failure" == case[0].tag
    assert found.summary() == case[0].text
    text = markdown(found, results)
    assert "✗ wall > +3%: crossed" in text
    assert "– mfu < 1%: not checked" in text
    strict = junit_xml(found, [found.check("mfu < 1%", fail_unchecked=True)])
    assert "failure" == ElementTree.fromstring(strict)[0][0][0].tag
    assert "| backward |" in text
    assert not {"<b>", "\x1b", "\x00"} & {part for part in ("<b>", "\x1b", "\x00") if part in text}


def test_a_damaged_baseline_is_named_and_hides_no_other(project: Path) -> None:
    """The good ones are listed, and what to do about it is said."""
    baseline.save(project / "good.json", [job()])
    (project / "bad.json").write_text('{"dptrace_baseline":1,')
    listed = run("baseline", "list", "--folder", ".", "--json")

    assert ["good"] == [row["name"] for row in json.loads(listed.stdout)["baselines"]]
    assert "Left out: bad.json: not a file of dptrace baseline save" in listed.stderr
    assert "Delete the file" in listed.stderr
