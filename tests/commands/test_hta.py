"""``dptrace hta`` on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError
from dptrace.hta.options import ANALYSES, Options


def hta(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["hta", *map(str, arguments)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Let every analysis give two tables, so that no HTA is needed; collect what was asked for."""
    pytest.importorskip("pandas")
    calls: list[Any] = []

    def analyze(name: str, found: Any, options: Options, against: Any, strict: bool, draw: bool, force: bool) -> Any:
        from dptrace.hta.analyses import Result

        calls.append((name, found, options, against, strict, draw, force))
        frame = pd.DataFrame({"name": ["gemm\x1b[31m", "copy"], "sum (us)": [1.25, float("nan")]})
        return Result({"kinds": frame, "kernels": frame.head(1)}, [], (), ("mind this",))

    monkeypatch.setattr("dptrace.hta.analyses.analyze", analyze)
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text("{}")
    return calls


def test_the_list_explains_each() -> None:
    """--list needs neither a run nor HTA."""
    result = hta("--list")

    assert 0 == result.exit_code
    assert list(ANALYSES) == [line.split()[0] for line in result.stdout.splitlines()]


def test_tables_in_the_terminal(asked: list[Any]) -> None:
    """Each with its name; notes on stderr; the way to a picture."""
    result = hta("t.json", "kernel-breakdown")

    assert 0 == result.exit_code
    assert "kernel-breakdown: kinds" in result.stdout
    assert "gemm\\x1b[31m" in result.stdout
    assert "! mind this" in result.stderr
    assert "--html kernel-breakdown.html" in result.stderr
    assert Options() == asked[0][2]


def test_json_holds_all_tables(asked: list[Any]) -> None:
    """A missing value is null."""
    answer = json.loads(hta("t.json", "kernel-breakdown", "--json").stdout)

    assert (1, "kernel-breakdown", ["mind this"]) == (answer["schema"], answer["analysis"], answer["notes"])
    assert [1.25, None] == [row["sum (us)"] for row in answer["tables"]["kinds"]]


def test_csv_holds_one_table(asked: list[Any]) -> None:
    """Where there are several, one must be chosen; its texts are legible."""
    result = hta("t.json", "kernel-breakdown", "--csv")
    assert 2 == result.exit_code
    assert "choose one with --table: kinds, kernels" in result.stderr

    rows = list(csv.reader(io.StringIO(hta("t.json", "kernel-breakdown", "--csv", "--table", "kernels").stdout)))
    assert [["name", "sum (us)"], ["gemm\\x1b[31m", "1.25"]] == rows
    assert "has no table absent" in hta("t.json", "kernel-breakdown", "--table", "absent").stderr


def test_files_are_written_once(asked: list[Any], tmp_path: Path) -> None:
    """Tables, CSV, JSON and pages go where they are told to, and over nothing without --force."""
    for arguments in (["-o", "a.txt"], ["--json", "-o", "a.json"], ["--html", "a.html"]):
        assert 0 == hta("t.json", "kernel-breakdown", *arguments).exit_code
        again = hta("t.json", "kernel-breakdown", *arguments)
        assert (2, True) == (again.exit_code, "--force" in again.stderr)
        assert 0 == hta("t.json", "kernel-breakdown", *arguments, "--force").exit_code
    assert "kernel-breakdown" in (page := Path("a.html").read_text())
    assert "t.json" in page
    assert [False, False, True] == [call[5] for call in asked[::2]]
    assert {"a.txt", "a.json", "a.html", "t.json"} == {path.name for path in tmp_path.iterdir()}


def test_options_are_handed_on(asked: list[Any]) -> None:
    """As HTA will be given them."""
    hta("t.json", "critical-path", "--rank", "3", "--instance", "1:4", "--annotation", "step", "--no-rounding")
    hta("t.json", "trace-diff", "--against", "t.json", "--device", "gpu", "--strict")

    assert Options(ranks=(3,), instance=(1, 4), annotation="step", rounding=False) == asked[0][2]
    assert Options(device="gpu") == asked[1][2]
    assert asked[1][3] is not None
    assert asked[1][4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t.json"], "Name an analysis after the run: dptrace hta t.json ANALYSIS"),
        (["overlap"], "Name a run before the analysis: dptrace hta RUN overlap"),
        (["overlap", "runs/a"], "Name the run before the analysis: dptrace hta runs/a overlap"),
        (["t.json", "temporal"], "Did you mean temporal-breakdown?"),
        (["t.json", "overlap", "--series"], "overlap has no option --series; it has --ranks"),
        (["t.json", "overlap", "--against", "t.json"], "trace-diff needs a second run"),
        (["t.json", "trace-diff"], "--against RUN2"),
        (["t.json", "trace-diff", "--against", "t.json", "--include-last-step"], "--iteration"),
        (["t.json", "critical-path", "--ranks", "0,1"], "analyzes one rank"),
        (["t.json", "critical-path", "--instance", "3:1"], "such as 1:3"),
        (["t.json", "frequent-sequences"], "--operator aten::linear"),
        (["t.json", "overlap", "--json", "--csv"], "Choose one of --json and --csv"),
        (["t.json", "overlap", "--html", "a.html", "-o", "b.txt"], "leave -o out"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: list[Any], arguments: list[str], message: str) -> None:
    """Before any work, with exit code 2."""
    result = hta(*arguments)

    assert 2 == result.exit_code
    assert message in result.stderr
    assert not asked


def test_a_failed_analysis_is_one_line(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, and nothing is written."""

    def fail(*args: Any) -> Any:
        raise DptraceError("HTA's overlap can't be made of this run.")

    monkeypatch.setattr("dptrace.hta.analyses.analyze", fail)

    result = hta("t.json", "overlap", "-o", "a.txt")

    assert (1, "Error: HTA's overlap can't be made of this run.\n") == (result.exit_code, result.stderr)
    assert not Path("a.txt").exists()
