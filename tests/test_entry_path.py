"""The way into the code is as short as the documents say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.heavy
def test_the_way_into_the_code_is_as_short_as_documented() -> None:
    """``dptrace analyze`` is no deeper at the first byte, and enters no more files, than both documents say; and it
    enters each file of the architecture's table.
    """
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    row = re.search(r"^\| now, .*\| (\d+) \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stated = re.search(r"at most (\d+) calls deep .* enters at most (\d+) files", text, re.DOTALL)
    assert row is not None
    assert stated is not None
    command = [sys.executable, str(ROOT / "benchmarks" / "entry_path.py")]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    numbers, *entered = out.splitlines()
    files, before, _, depth = map(int, re.findall(r"\d+", numbers))
    rows = text.partition("\n| File | Result |\n")[2].partition("\n\n")[0].splitlines()
    steps = [name for line in rows for name in re.findall(r"`([\w/]+\.py)`", line.split(" | ")[0])]

    assert len(steps) > 10
    assert [] == [step for step in steps if not any(f"/{file}".endswith(f"/{step}") for file in entered)]
    assert (row[2], row[3]) == stated.groups()
    assert depth <= int(row[2])
    assert files <= int(row[3])
    assert before <= int(row[1])
