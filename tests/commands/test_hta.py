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


def test_without_an_analysis_all_are_listed(asked: list[Any]) -> None:
    """Neither the run nor HTA is needed; those of an unknown one are in the message of exit code 2."""
    result, unknown = hta("t.json"), hta("t.json", "temporal")

    assert list(ANALYSES) == [line.split()[0] for line in result.stdout.splitlines()]
    assert (0, 2, []) == (result.exit_code, unknown.exit_code, asked)
    assert all(known in unknown.stderr for known in ANALYSES)


def test_text_and_json_hold_all_tables(asked: list[Any]) -> None:
    """Each with its name, and notes on stderr; in JSON a missing value is null."""
    result = hta("t.json", "kernel-breakdown", "--strict")
    answer = json.loads(hta("t.json", "kernel-breakdown", "--json").stdout)

    assert 0 == result.exit_code
    for fact in ("kernel-breakdown: kinds", "gemm\\x1b[31m"):
        assert fact in result.stdout
    assert "! mind this" in result.stderr
    assert [("kernel-breakdown", True), ("kernel-breakdown", False)] == asked
    assert (1, "kernel-breakdown", ["mind this"]) == (answer["schema"], answer["analysis"], answer["notes"])
    assert [1.25, None] == [row["sum (us)"] for row in answer["tables"]["kinds"]]


def test_csv_holds_one_table(asked: list[Any]) -> None:
    """Where there are several, one must be chosen; its texts are legible."""
    result = hta("t.json", "kernel-breakdown", "--csv")
    assert (2, True) == (result.exit_code, "--table: kinds, kernels" in result.stderr)

    rows = list(csv.reader(io.StringIO(hta("t.json", "kernel-breakdown", "--csv", "--table", "kernels").stdout)))
    assert [["name", "sum (us)"], ["gemm\\x1b[31m", "1.25"]] == rows
    assert 2 == hta("t.json", "kernel-breakdown", "--table", "absent").exit_code
