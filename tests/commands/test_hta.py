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
from dptrace.hta.analyses import ANALYSES


def hta(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["hta", *map(str, arguments)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Let every analysis give two tables, so that no HTA is needed; collect what was asked for."""
    calls: list[Any] = []

    def analyze(name: str, found: Any, strict: bool) -> Any:
        calls.append((name, strict))
        frame = pd.DataFrame({"name": ["gemm\x1b[31m", "copy"], "sum (us)": [1.25, float("nan")]})
        return {"kinds": frame, "kernels": frame.head(1)}, ("mind this",)

    monkeypatch.setattr("dptrace.hta.analyses.analyze", analyze)
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text("{}")
    return calls


def test_without_an_analysis_all_are_listed() -> None:
    """Neither the run nor HTA is needed."""
    result = hta("t.json")

    assert 0 == result.exit_code
    assert list(ANALYSES) == [line.split()[0] for line in result.stdout.splitlines()]


def test_tables_in_the_terminal(asked: list[Any]) -> None:
    """Each with its name; notes on stderr."""
    result = hta("t.json", "kernel-breakdown", "--strict")

    assert 0 == result.exit_code
    assert "kernel-breakdown: kinds" in result.stdout
    assert "gemm\\x1b[31m" in result.stdout
    assert "! mind this" in result.stderr
    assert [("kernel-breakdown", True)] == asked


def test_json_holds_all_tables(asked: list[Any]) -> None:
    """A missing value is null."""
    answer = json.loads(hta("t.json", "kernel-breakdown", "--json").stdout)

    assert (1, "kernel-breakdown", ["mind this"]) == (answer["schema"], answer["analysis"], answer["notes"])
    assert [1.25, None] == [row["sum (us)"] for row in answer["tables"]["kinds"]]


def test_csv_holds_one_table(asked: list[Any]) -> None:
    """Where there are several, one must be chosen; its texts are legible."""
    result = hta("t.json", "kernel-breakdown", "--csv")
    assert (2, True) == (result.exit_code, "--table: kinds, kernels" in result.stderr)

    rows = list(csv.reader(io.StringIO(hta("t.json", "kernel-breakdown", "--csv", "--table", "kernels").stdout)))
    assert [["name", "sum (us)"], ["gemm\\x1b[31m", "1.25"]] == rows
    assert 2 == hta("t.json", "kernel-breakdown", "--table", "absent").exit_code


@pytest.mark.parametrize("name", ["temporal", "runs/a"])
def test_an_unknown_analysis_is_wrong_use(asked: list[Any], name: str) -> None:
    """The message lists those that there are; nothing is read."""
    result = hta("t.json", name)

    assert (2, True, []) == (result.exit_code, all(known in result.stderr for known in ANALYSES), asked)


def test_a_failed_analysis_is_one_line(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, and nothing is written."""

    def fail(*args: Any) -> Any:
        raise DptraceError("HTA's overlap can't be made of this run.")

    monkeypatch.setattr("dptrace.hta.analyses.analyze", fail)

    result = hta("t.json", "overlap", "-o", "a.txt")

    assert (1, "Error: HTA's overlap can't be made of this run.\n") == (result.exit_code, result.stderr)
    assert not Path("a.txt").exists()
